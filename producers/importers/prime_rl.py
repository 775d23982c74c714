"""prime-rl and verifiers: episodes of `traces.jsonl`, and the `metrics.jsonl` of a trainer.

    DIR/rollouts/step_{n}/{train|eval}/{all|effective}/traces.jsonl    prime-rl
    DIR/traces.jsonl                                                   an evaluation of verifiers
    DIR/metrics.jsonl, DIR/*/metrics.jsonl                             {step, time, ...}

One line is an episode of verifiers v1: the traces of its agents. An attempt is a trace of a
trainable agent, a group what the episode names (or its task in that step). `effective` is the part
of `all` that was trained on: it is compared with, and adds no attempt.

Read from the sources of verifiers 0.4.0 and prime-rl; see prime_rl_trace.py for what a trace says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase, RunKind, StopReason
from producers.importers import Options, configuration_of, figures
from producers.importers.prime_rl_trace import Policy, add_trace
from producers.importers.run import ForeignRun
from producers.importers.source import BadImport, Json, SourceFile, digest_of, listed, name_below
from producers.importers.steps import end_to_end
from producers.importers.sums import sum_of_all, sum_of_known
from producers.importers.times import UNKNOWN, epoch

FORM = "prime-rl"
_STEP_S = "time/step"
_SAMPLED_TOKENS = f"""SELECT coalesce(({figures.COMPLETION_TOKENS}), 0) + coalesce((
    {figures.of_facts("turn_failed", "sum(tokens_so_far)::BIGINT")}
), 0)"""
"""Those of calls that failed as well."""


@dataclass(frozen=True, slots=True)
class _Episode:
    """One line, and where it belongs."""

    row: Json
    step: int | None
    """The step that it was sampled for; null: of no training."""
    evaluation: bool


def read(path: Path, options: Options) -> list[ForeignRun]:
    """One run for the training, and one for the evaluation of each step. Raises BadImport."""
    options.taken()
    root = path if path.is_dir() else path.parent
    files = [path] if path.is_file() else sorted(path.rglob("traces.jsonl"))
    taken = [file for file in files if not _is_effective(file, files)]
    metrics = [] if path.is_file() else sorted(path.rglob("metrics.jsonl"))
    if not files and not metrics:
        raise BadImport(f"{path.name} must hold traces.jsonl or metrics.jsonl, got neither")
    episodes = [episode for file in taken for episode in _episodes(file, root)]
    by_run: dict[tuple[str, ...], list[_Episode]] = {}
    for episode in episodes:
        by_run.setdefault(_together(episode), []).append(episode)
    runs = [_run(found, path) for found in by_run.values()]
    trainings = [run for run in runs if run.kind is RunKind.TRAIN]
    if metrics:
        run = trainings[0] if trainings else _bare_run(path, root, metrics[0])
        for file in metrics:
            _add_steps(run, SourceFile.read(file, root))
        if run not in runs:
            runs.append(run)
    for file in files:
        if file not in taken and trainings:
            _note_effective(trainings[0], file, root, episodes)
    return runs


def _is_effective(file: Path, files: Sequence[Path]) -> bool:
    """Whether it is the part of an `all` beside it that was trained on."""
    beside = file.parent.parent / "all" / file.name
    return file.parent.name == "effective" and beside in files


def _episodes(file: Path, root: Path) -> list[_Episode]:
    """The lines of a file. Its folders tell step and purpose where the episode doesn't."""
    parts = file.relative_to(root).parts if file != root else ()
    steps = [part.removeprefix("step_") for part in parts if part.startswith("step_")]
    step = int(steps[0]) if steps and steps[0].isdecimal() else None
    found: list[_Episode] = []
    for row in SourceFile.read(file, root).json_lines():
        if not isinstance(row.value, dict) or "traces" not in row.value:
            raise row.wrong("an episode with traces, as verifiers v1 writes it")
        run = row.member("run")
        work = run.member("work")
        told = work.integer("step")
        kind = work.text("type") or run.text("type") or ("eval" if "eval" in parts else "train")
        if run.value == {} and step is None:
            kind = "eval"  # a run of verifiers' own, which trains nothing
        found.append(_Episode(row, step if told is None else told, kind == "eval"))
    return found


def _together(episode: _Episode) -> tuple[str, ...]:
    """What the episodes of one run share. Training and the evaluations of each step are runs of
    their own; of verifiers alone, each file is one."""
    run_id = episode.row.member("run").text("id") or ""
    if not run_id and episode.step is None:
        run_id = episode.row.source.sha256
    name = episode.row.member("env").text("id") or ""
    return ("eval", run_id, name, str(episode.step)) if episode.evaluation else ("train", run_id)


def _run_key(first: _Episode) -> list[str]:
    """A run's own id; where it has none, that of its first episode, which stays the same while the
    run goes on, and wherever its files lie."""
    purpose, _, *more = _together(first)
    run_id = first.row.member("run").text("id")
    if not run_id:
        run_id = first.row.text("id") or digest_of(json.dumps(first.row.value, sort_keys=True))
    return [purpose, run_id, *more]


def _run(episodes: Sequence[_Episode], path: Path) -> ForeignRun:
    """The run of episodes that belong together; the first tells what it was configured with."""
    first = min(episodes, key=lambda each: -1 if each.step is None else each.step)
    run = _declared(_run_key(first), first, path)
    for episode in episodes:
        _add(run, episode)
    _claim(run, [episode.row for episode in episodes])
    return run


def _declared(key: Sequence[str], episode: _Episode, path: Path) -> ForeignRun:
    kind = RunKind.EVAL if episode.evaluation else RunKind.TRAIN
    named = episode.row.member("run").text("name") or path.name
    name = named if episode.step is None or kind is RunKind.TRAIN else f"{named} {episode.step}"
    run = ForeignRun(FORM, key, kind=kind, name=name, ref=episode.row.ref)
    first = episode.row.items("traces")
    agent = first[0].member("agent") if first else episode.row.member("nothing")
    config = agent.member("config")
    policy = Policy.of(episode.row)
    run.declare(
        dataset=episode.row.member("env").text("id") or None,
        model=config.text("model"),
        configuration=configuration_of(config.value),
    )
    if kind is RunKind.EVAL and policy.known is not None:
        run.declare(parent_policy_version=policy.known)
    return run


def _bare_run(path: Path, root: Path, file: Path) -> ForeignRun:
    source = SourceFile.read(file, root)
    first = source.text.partition("\n")[0]
    return ForeignRun(FORM, [first], kind=RunKind.TRAIN, name=path.name, ref=source.ref())


def _add(run: ForeignRun, episode: _Episode) -> None:
    """The attempts of an episode; one without a trace is an attempt that came to nothing."""
    row = episode.row
    task_id = _task_id(row)
    run.task(task_id, row.ref, task_checksum=row.member("task").text("hash"))
    group_id = row.member("group").text("id")
    step = "" if episode.step is None else episode.step
    target = None if episode.evaluation else episode.step
    policy = Policy.of(row)
    group = run.group(
        task_id, [group_id or "task", step], target_step=target, policy_version=policy.start
    )
    episode_id = row.text("id") or row.ref
    trainable = _trainable(row)
    if (others := len(row.items("traces")) - len(trainable)) > 0:
        run.note(f"{row.place}: {others} traces are of agents that aren't trained: left out")
    for place, trace in enumerate(trainable):
        attempt = group.attempt([episode_id, trace.text("id") or place])
        add_trace(attempt, trace, policy)
    if not trainable:
        attempt = group.attempt([episode_id])
        attempt.start(UNKNOWN, row.ref)
        errors = row.items("errors")
        last = errors[-1] if errors else None
        timed_out = row.flag("is_timeout") is True
        attempt.finish(
            UNKNOWN,
            row.ref,
            stop_reason=StopReason.CLOCK_CAP if timed_out else StopReason.ERROR,
            turns_known=False,
            error_type=last.text("type") if last else None,
            error=last.text("message") if last else None,
            foreign_status="timeout" if timed_out else "error",
        )


def _trainable(row: Json) -> list[Json]:
    """Traces of agents whose policy is trained; all of them unless they say otherwise."""
    return [
        each for each in row.items("traces") if each.member("agent").flag("trainable") is not False
    ]


def _task_id(row: Json) -> str:
    task = row.member("task")
    data = task.member("data")
    for told in (data.text("id"), task.text("key"), task.text("hash"), data.text("name")):
        if told:
            return told
    index = data.integer("idx")
    if index is None:
        raise task.wrong("a task with an id, key, hash, name or idx")
    return f"task-{index}"


def _claim(run: ForeignRun, rows: Sequence[Json]) -> None:
    """verifiers' own sums over the episodes of a run."""
    place = f"{len(rows)} episodes"
    traces = [trace for row in rows for trace in _trainable(row)]
    failed = sum(each.flag("ok") is not True and bool(each.items("errors")) for each in traces)
    failed += sum(not _trainable(row) and row.flag("is_timeout") is not True for row in rows)
    errors = figures.of_attempts("count(*)", "stop_reason = 'error'")
    run.claim("attempts", len(traces) + sum(not _trainable(row) for row in rows),
              figures.ALL_ATTEMPTS, place)  # fmt: skip
    run.claim("attempts that an error ended", failed, errors, place)
    calls = [call for trace in traces for call in trace.items("calls")]
    told = any(call.has("usage") for call in calls)
    tokens = sum_of_all(_sampled(trace) for trace in traces) if told else None
    run.claim("sampled tokens", tokens, _SAMPLED_TOKENS, place)
    _note_left_out(run, traces)
    answered = sum(not call.has("error") for call in calls)
    run.claim("answered calls", answered, figures.TURNS, place)


def _note_left_out(run: ForeignRun, traces: Sequence[Json]) -> None:
    """What the policy didn't do, or no reward is made of, and has no place in an attempt."""
    extra = [usage for trace in traces for usage in trace.items("extra_usage")]
    if extra:
        costs = sum_of_known(usage.number("cost") for usage in extra)
        told = "of unknown cost" if costs is None else f"of {costs:g} USD"
        run.note(f"{len(extra)} calls of judges and others beside the agent, {told}: left out")
    if metrics := sorted({name for trace in traces for name in trace.members("metrics")}):
        run.note(f"metrics that no reward is made of are left out: {listed(metrics)}")


def _sampled(trace: Json) -> int | None:
    """verifiers' sum of completion tokens with each call counted once. `num_output_tokens` has a
    call again for every branch behind it, and none that committed no message; the total has them
    all once, beside the input."""
    total, fed = trace.integer("num_total_tokens"), trace.integer("num_input_tokens")
    return trace.integer("num_output_tokens") if total is None or fed is None else total - fed


def _note_effective(run: ForeignRun, file: Path, root: Path, episodes: Sequence[_Episode]) -> None:
    """What was trained on has to be among what was sampled; what isn't is named."""
    known = {episode.row.text("id") for episode in episodes}
    trained = [episode.row.text("id") for episode in _episodes(file, root)]
    place = name_below(file, root)
    run.note(f"{place}: {len(trained)} episodes were trained on")
    if lost := [str(each) for each in trained if each not in known]:
        run.note(f"{place}: in no `all`: {listed(lost)}")


def _add_steps(run: ForeignRun, source: SourceFile) -> None:
    """Rows that tell a step's seconds. `time` is when a row was written: the step's end."""
    rows: dict[int, dict[str, float]] = {}
    last: dict[int, Json] = {}
    for row in source.json_lines():
        step = row.integer("step")
        if step is None:
            raise row.at("step").wrong("given, as prime-rl's monitor writes it")
        told = row.numbers()
        del told["step"]
        rows.setdefault(step, {}).update(told)
        last[step] = row
    for step, told in sorted(rows.items()):
        if (wall_s := told.get(_STEP_S)) is None:
            continue
        run.fact(
            "step_completed",
            epoch(last[step], "time").derived(),
            last[step].ref,
            [source.name],
            step=step,
            batch_id=None,
            wall_s=wall_s,
            phases=_phases(told),
            loss=told.get("loss/mean"),
            grad_norm=told.get("optim/grad_norm"),
            metrics={name: value for name, value in told.items() if name != "time"},
        )


def _phases(told: dict[str, float]) -> list[PhaseSpan]:
    """Those that prime-rl's trainer names, end to end in the order in which it runs them."""
    order = (
        (Phase.PUBLISHING, "time/broadcast_weights"),
        (Phase.WAITING, "time/wait_for_batch"),
        (Phase.FORWARD_BACKWARD, "time/forward_backward"),
        (Phase.CHECKPOINT, "time/save_ckpt"),
    )
    return end_to_end((phase, told.get(name, 0.0)) for phase, name in order)
