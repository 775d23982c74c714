"""miles: rollout dumps, what was trained on of them, and the dashboard's streams.

    DIR/rollout_data/{id}.pt, eval_{id}.pt   samples     miles_dump.py, through miles_pickle.py
    DIR/train_data/{id}_{rank}.pt            consumed    miles_dump.py
    DIR/dashboard/*.jsonl, */*.jsonl         clocks      miles_dashboard.py, miles_steps.py
    DIR/*.log, *.txt, *.out                  seconds     slime_lines.py

Any of these will do, as will a folder of dumps or one file. Turns and their times come from the
dashboard alone; without it an attempt's turns are unknown, and only its totals are told. Of several
rewards `--set reward_key=NAME` chooses one; without it only the parts are kept.

Read from miles' source (types, dashboard); the inputs tried were made by torch in that form, since
no public dump was at hand.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.facts.lists import RunKind, StopReason
from producers.importers import Options, figures
from producers.importers.miles_book import add_engines, add_steps
from producers.importers.miles_dashboard import Lifetime, Span, lifetimes, stream
from producers.importers.miles_dump import (
    RolloutDump,
    mask_sum,
    rollout_dumps,
    trained,
)
from producers.importers.miles_run import FORM, dashboard_of, training_run
from producers.importers.rewards import SETTING, chosen_reward
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import BadImport, Json, digest_of
from producers.importers.steps import console_files
from producers.importers.sums import sum_of_all
from producers.importers.times import UNKNOWN, epoch

_ENDED = {
    "completed": StopReason.SUBMITTED,
    "truncated": StopReason.OUTPUT_CAP,
    "aborted": StopReason.CANCELLED,
    "failed": StopReason.ERROR,
}
_TASK_NAMES = ("instance_id", "task_id", "task_name")
"""Members of a sample's metadata that name its task."""


@dataclass(slots=True)
class _Reading:
    """What is asked of every sample."""

    lives: dict[int, list[Lifetime]]
    """Sample index -> its attempts by the dashboard that no dump has taken yet."""
    reward_key: str | None


def read(path: Path, options: Options) -> list[ForeignRun]:
    """One training run, and an evaluation for each eval dump. Raises BadImport."""
    reward_key = options.taken(SETTING).get(SETTING)
    root = path if path.is_dir() else path.parent
    inside = path / "rollout_data"
    dumps = rollout_dumps(inside if inside.is_dir() else path, root)
    board = dashboard_of(path)
    logs = console_files(path) if path.is_dir() else []
    if not dumps and board is None and not logs:
        raise BadImport(f"{path.name} must hold rollout dumps (0.pt), a dashboard folder or"
                        " console output, got none of these")  # fmt: skip
    lives = lifetimes(stream(board, "trajectories", root)) if board else {}
    reading = _Reading(lives, reward_key)
    run = training_run(path, root, dumps, board, logs)
    for dump in dumps:
        if not dump.evaluation:
            _add_dump(run, dump, reading)
    consumed = trained(path / "train_data", root) if path.is_dir() else {}
    add_steps(run, board, logs, root, consumed, [d.number for d in dumps if not d.evaluation])
    if board is not None:
        add_engines(run, board, root)
    if left := sum(map(len, reading.lives.values())):
        run.note(f"the dashboard tells of {left} attempts that are in no dump")
    # Evaluation samples count from 0 again, so the dashboard's indices are not theirs.
    apart = _Reading({}, reward_key)
    evaluations = [_evaluation(run, dump, apart) for dump in dumps if dump.evaluation]
    return [*([run] if run.attempts or run.other_facts else []), *evaluations]


def _evaluation(parent: ForeignRun, dump: RolloutDump, reading: _Reading) -> ForeignRun:
    run = ForeignRun(
        FORM,
        ["eval", dump.source.sha256],
        kind=RunKind.EVAL,
        name=f"{parent.name} eval {dump.number}",
        ref=dump.source.ref(),
    )
    versions = {version for row in dump.samples for version in _versions(row)}
    version = versions.pop() if len(versions) == 1 else None
    run.declare(parent_run_id=parent.run_id, parent_policy_version=version)
    _add_dump(run, dump, reading)
    return run


def _add_dump(run: ForeignRun, dump: RolloutDump, reading: _Reading) -> None:
    leaves: dict[int, list[Json]] = {}
    for place, row in enumerate(dump.samples):
        index = row.integer("index")
        leaves.setdefault(-1 - place if index is None else index, []).append(row)
    for index, rows in leaves.items():
        _add_attempt(run, dump, index, rows, reading)
    if (more := len(dump.samples) - len(leaves)) > 0:
        run.note(f"{dump.source.name}: {more} samples share an index with another: they are leaves"
                 " of one attempt, and count as one")  # fmt: skip
    removed = sum(row.flag("remove_sample") is True for row in dump.samples)
    if removed:
        run.note(f"{dump.source.name}: {removed} samples were removed from the batch")
    _note_zeros(run, dump)
    _claim(run, dump, len(leaves))


def _add_attempt(
    run: ForeignRun, dump: RolloutDump, index: int, rows: list[Json], reading: _Reading
) -> None:
    row = rows[-1]
    prompt = row.at("prompt").value
    task_id = _task_name(row.member("metadata")) or f"prompt-{_digest(prompt)[:16]}"
    run.task(task_id, row.ref, statement=prompt if isinstance(prompt, str) else None)
    group_index = row.integer("group_index")
    key = [dump.number, "prompt" if group_index is None else group_index]
    target = None if dump.evaluation else dump.number
    group = run.group(task_id, key, target_step=target)
    attempt = group.attempt([dump.number, index])
    lives = reading.lives.get(index, [])
    life = lives.pop(0) if lives else None
    at = epoch(life.started, "ts") if life and life.started else UNKNOWN
    attempt.start(at, row.ref)
    if life is not None:
        _add_spans(attempt, life)
    _add_reward(run, attempt, row, reading.reward_key)
    status = row.need_text("status")
    if status == "pending":
        run.note(f"{row.place}: the sample is pending, so its attempt is in flight")
        return
    stop = _ENDED.get(status, StopReason.ERROR)
    prefix = row.member("prefix_cache_info")
    attempt.finish(
        epoch(life.ended, "ts") if life and life.ended else UNKNOWN,
        row.ref,
        stop_reason=stop,
        turns_known=life is not None and bool(life.requests),
        error_type=status if stop is StopReason.ERROR else None,
        foreign_status=status,
        foreign_completion_tokens=_sampled(rows),
        foreign_prompt_tokens=prefix.integer("total_prompt_tokens") or None,
        foreign_cached_tokens=prefix.integer("cached_tokens") if _asked(prefix) else None,
    )


def _task_name(metadata: Json) -> str | None:
    """The task's own name, a text or a number; null where the metadata has none."""
    for name in _TASK_NAMES:
        value = metadata.at(name).value
        if isinstance(value, str | int) and value != "":
            return str(value)
    return None


def _asked(prefix: Json) -> bool:
    """Whether the engine told of its cache: the totals are 0 where it never did."""
    return bool(prefix.integer("total_prompt_tokens"))


def _sampled(rows: list[Json]) -> int | None:
    """Tokens that the policy sampled, in all leaves: by their loss masks; where a sample has none,
    all of its response, as miles trains on it then."""
    counts = [
        mask_sum(row.at("loss_mask").value) if row.has("loss_mask")
        else row.integer("response_length")
        for row in rows
    ]  # fmt: skip
    return sum_of_all(counts)


def _add_spans(attempt: Attempt, life: Lifetime) -> None:
    """Requests and the stretches between them, by their ends."""
    spans = [(span.end, 0, span) for span in life.requests]
    spans += [(span.end, 1, span) for span in life.tools]
    for _, kind, span in sorted(spans, key=lambda each: each[:2]):
        at, seconds = epoch(span.row, "ts"), _length(span)
        if kind == 0:
            attempt.fact("turn_completed", at, span.row.ref, client_s=seconds)
        else:
            name = span.detail or "tool"
            attempt.fact("tool_call_completed", at, span.row.ref, name=name, wall_s=seconds)


def _length(span: Span) -> float | None:
    return None if span.start is None else max(0.0, span.end - span.start)


def _add_reward(run: ForeignRun, attempt: Attempt, row: Json, reward_key: str | None) -> None:
    """The reward as the sample has it; none where it has none."""
    told = row.at("reward")
    if told.value is None:
        return
    parts: dict[str, float] = {}
    if isinstance(told.value, dict):
        parts = told.numbers(flags=True)
        value = chosen_reward(run, row.source.name, parts, reward_key)
    else:
        value = told.as_number()
    attempt.reward(UNKNOWN, row.ref, value=value, components=parts, verifier=FORM)


def _versions(row: Json) -> list[int]:
    found = [each.value for each in row.items("weight_versions")]
    return [int(each) for each in found if isinstance(each, str) and each.isdecimal()]


def _note_zeros(run: ForeignRun, dump: RolloutDump) -> None:
    zeros = sum(
        row.text("status") == "aborted" and row.at("reward").value == 0 for row in dump.samples
    )
    if zeros:
        run.note(
            f"{dump.source.name}: {zeros} aborted samples have a reward of 0, which miles also"
            " gives where its agent server gave none"
        )


def _claim(run: ForeignRun, dump: RolloutDump, attempts: int) -> None:
    place = dump.source.name
    scope = "true" if dump.evaluation else figures.sampled_for(dump.number)
    what = f"{'eval' if dump.evaluation else 'rollout'} {dump.number}"
    run.claim(f"{what} attempts", attempts, figures.of_attempts("count(*)", scope), place)
    statuses = Counter(row.need_text("status") for row in dump.samples)
    if attempts == len(dump.samples):
        for status, count in sorted(statuses.items()):
            if status != "pending":
                query = figures.of_attempts(
                    "count(*)", f"{scope} AND foreign_status = {figures.quoted(status)}"
                )
                run.claim(f"{what} {status}", count, query, place)
    tokens = sum_of_all(_sampled([row]) for row in dump.samples)
    query = figures.of_attempts("sum(completion_tokens)::BIGINT", scope)
    run.claim(f"{what} sampled tokens", tokens, query, place)


def _digest(prompt: Any) -> str:
    """Of a prompt: a text, or a list of messages."""
    return digest_of(prompt if isinstance(prompt, str) else repr(prompt))
