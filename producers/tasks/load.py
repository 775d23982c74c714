"""Which tasks a run is about, from one line of text.

    micro_repair:train?seed=0           generated; also micro_repair:held_out
    micro_repair:train?verbose=4        the tests of four of them print without end
    lite.jsonl?tokenizer=models/qwen3   SWE-bench or SWE-smith rows
    lite.jsonl?tokenizer=...&split=test&ids=a__b-1,c__d-2&limit=10

Options follow `?`, joined by `&`, written as they are. Every error says the value, the rule and
the place, before any sandbox starts.
"""

from __future__ import annotations

from pathlib import Path

from producers.tasks.micro_repair.task import micro_repair
from producers.tasks.task import Caps, TaskSet, TasksRefused

SWE_CAPS = Caps(turns=100, output_tokens=8192, context_tokens=65_536, clock_s=3600.0)
"""Where a run says nothing else."""
MICRO_REPAIR = "micro_repair"


def load_tasks(spec: str, *, tokenizer: str | None = None) -> TaskSet:
    """The tasks that `spec` names. `tokenizer` is used where the spec names none: the model's own.
    Raises TasksRefused."""
    name, _, query = spec.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if query]
    options = {key: value for key, _, value in pairs}
    if len(options) < len(pairs) or not all(equals for _, equals, _ in pairs):
        raise TasksRefused(f"options must be name=value, each once, got {query!r} ({spec})")
    if name == MICRO_REPAIR or name.startswith(f"{MICRO_REPAIR}:"):
        _check(options, {"seed", "limit", "verbose"}, spec)
        split = name.partition(":")[2] or "train"
        seed, verbose = (_count(options, each, spec, 0) or 0 for each in ("seed", "verbose"))
        return micro_repair(split, seed, _limit(options, spec), verbose)
    path = Path(name)
    if path.suffix not in (".jsonl", ".json"):
        raise TasksRefused(
            f"tasks must be {MICRO_REPAIR}:train, {MICRO_REPAIR}:held_out, or a .jsonl or .json"
            f" file, got {name!r}"
        )
    if not path.is_file():
        raise TasksRefused(f"the task file must exist: {name}")
    _check(options, {"tokenizer", "dataset", "split", "ids", "limit"}, spec)
    return _load_swe(path, options, options.get("tokenizer") or tokenizer, spec)


def _load_swe(path: Path, options: dict[str, str], tokenizer: str | None, spec: str) -> TaskSet:
    from producers.tasks.swe.chat import ChatTemplate
    from producers.tasks.swe.instances import read_instances
    from producers.tasks.swe.scaffold import VERSION
    from producers.tasks.swe.task import SweTask

    if tokenizer is None:
        raise TasksRefused(f"chat tasks need a tokenizer: add ?tokenizer=FOLDER ({spec})")
    instances = {one.instance_id: one for one in read_instances(path)}
    wanted = options["ids"].split(",") if "ids" in options else list(instances)
    if missing := [name for name in wanted if name not in instances]:
        raise TasksRefused(f"ids must be in the file, and {', '.join(missing)} is not ({path})")
    chosen = [one for name, one in instances.items() if name in wanted]
    chat = ChatTemplate.load(tokenizer)
    subset = [f"{name}={options[name]}" for name in ("ids", "limit") if name in options]
    return TaskSet(
        dataset=options.get("dataset") or path.stem,
        split=options.get("split"),
        subset=", ".join(subset) or None,
        tasks=tuple(SweTask.of(one, chat) for one in chosen[: _limit(options, spec)]),
        scaffold=f"bash {VERSION}",
        caps=SWE_CAPS,
        stop_token_ids=chat.stop_token_ids,
        tokenizer=tokenizer,
    )


def _check(options: dict[str, str], known: set[str], spec: str) -> None:
    for name in options:
        if name not in known:
            raise TasksRefused(f"option {name} must be one of {', '.join(sorted(known))} ({spec})")


def _limit(options: dict[str, str], spec: str) -> int | None:
    limit = _count(options, "limit", spec, None)
    if limit == 0:
        raise TasksRefused(f"limit must be at least 1, got 0 ({spec})")
    return limit


def _count(options: dict[str, str], name: str, spec: str, default: int | None) -> int | None:
    value = options.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise TasksRefused(f"{name} must be a whole number, got {value!r} ({spec})")
    return int(value)
