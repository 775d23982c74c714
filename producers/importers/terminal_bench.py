"""Terminal-Bench 1: `results.json` of one run, or a submission's folder with several.

A submission is one evaluation: each of its runs gives every task one more attempt or a few. There
are no turns, and tokens only as totals; `is_resolved` is three-valued, and independent of
`failure_mode`.

Read from terminal-bench 0.2.18 and 53 public files. Older files have `uuid` in place of `id`, and
no times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ledger.facts.lists import RunKind, Stage, StopReason
from producers.importers import Options, configuration_of, figures
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.sums import sum_of_all, sum_of_known
from producers.importers.times import UNKNOWN, Clock, Moment, seconds

FORM = "terminal-bench"
VERIFIER = "terminal-bench"
_ENDED = {
    "unset": (StopReason.SUBMITTED, None),
    "none": (StopReason.SUBMITTED, None),
    "test_timeout": (StopReason.SUBMITTED, None),
    "parse_error": (StopReason.SUBMITTED, None),
    "agent_timeout": (StopReason.CLOCK_CAP, None),
    "context_length_exceeded": (StopReason.CONTEXT_CAP, Stage.MODEL),
    "output_length_exceeded": (StopReason.OUTPUT_CAP, Stage.MODEL),
    "fatal_llm_parse_error": (StopReason.ERROR, Stage.MODEL),
    "agent_installation_failed": (StopReason.ERROR, Stage.SETUP),
    "unknown_agent_error": (StopReason.ERROR, None),
    "unknown": (StopReason.ERROR, None),
}
_OF_VERIFIER = ("test_timeout", "parse_error")
"""Failure modes of the tests: the agent had ended by then."""
_PHASES = {
    "trial": ("trial_started_at", "trial_ended_at"),
    "environment setup": ("trial_started_at", "agent_started_at"),
    "agent": ("agent_started_at", "agent_ended_at"),
    "test": ("test_started_at", "test_ended_at"),
}


def read(path: Path, options: Options) -> list[ForeignRun]:
    """One evaluation: the results at `path` and in the folders below it. Raises BadImport."""
    options.taken()
    root = path if path.is_dir() else path.parent
    files = sorted(path.rglob("results.json")) if path.is_dir() else [path]
    if not files:
        raise BadImport(f"{path.name} must have a results.json in it or below, got none")
    results = [_Results(SourceFile.read(file, root).json(), file.parent, root) for file in files]
    clock = Clock(options.timezone)
    run = ForeignRun(
        FORM,
        sorted(each.run_id for each in results),
        kind=RunKind.EVAL,
        name=path.name if path.is_dir() else results[0].name,
        ref=results[0].row.ref,
    )
    for each in results:
        for trial in each.trials:
            _trial(run, each, trial, clock)
    _declare(run, results)
    _claim(run, results, clock)
    for note in clock.notes():
        run.note(note)
    return [run]


class _Results:
    """One results.json, and the run_metadata.json beside it."""

    def __init__(self, row: Json, folder: Path, root: Path) -> None:
        self.row = row
        if not isinstance(row.value, dict) or "results" not in row.value:
            raise row.wrong("an object with results, as terminal-bench writes it")
        self.trials = row.items("results")
        self.run_id = row.text("id") or row.text("uuid") or row.source.sha256
        beside = folder / "run_metadata.json"
        self.metadata = (
            SourceFile.read(beside, root).json() if beside.exists() else Json({}, row.source)
        )
        self.name = self.metadata.text("run_id") or folder.name


def _trial(run: ForeignRun, results: _Results, row: Json, clock: Clock) -> None:
    task_id = row.need_text("task_id")
    run.task(task_id, row.ref, statement=row.text("instruction"))
    trial_id = row.text("id") or row.text("uuid") or row.pointer
    attempt = run.group(task_id).attempt([results.run_id, trial_id])
    moments = {
        name: clock.read(row, name) for name in sorted({n for p in _PHASES.values() for n in p})
    }
    attempt.start(moments["trial_started_at"], row.ref)
    mode = row.text("failure_mode") or "unset"
    if mode not in _ENDED:
        run.note(f"{row.place}: failure_mode {mode!r} is none that terminal-bench has")
    _sandbox(attempt, row, mode, moments)
    _reward(attempt, row, mode, moments)
    stop_reason, stage = _ENDED.get(mode, (StopReason.ERROR, None))
    attempt.finish(
        moments["trial_ended_at"],
        row.ref,
        stop_reason=stop_reason,
        stage=stage,
        turns_known=False,
        error_type=mode if stop_reason is StopReason.ERROR else None,
        policy_clock_s=seconds(moments["agent_started_at"], moments["agent_ended_at"]),
        foreign_status=mode,
        foreign_prompt_tokens=row.integer("total_input_tokens"),
        foreign_completion_tokens=row.integer("total_output_tokens"),
    )


def _sandbox(attempt: Attempt, row: Json, mode: str, moments: dict[str, Moment]) -> None:
    """Up by the time that the agent starts. The harness names containers after the trial."""
    name = row.text("trial_name")
    start_s = seconds(moments["trial_started_at"], moments["agent_started_at"])
    if name is None or start_s is None:
        return
    at = moments["agent_started_at"].phase_only()
    attempt.fact(
        "sandbox_started", at, row.ref, try_no=0, backend="docker", sandbox_id=name, start_s=start_s
    )


def _reward(attempt: Attempt, row: Json, mode: str, moments: dict[str, Moment]) -> None:
    """The verdict, where there is one or the tests failed to give one."""
    resolved = row.flag("is_resolved")
    if resolved is None and mode not in _OF_VERIFIER:
        return
    tests = Counter(each.as_text() for each in row.members("parser_results").values())
    told = row.has("parser_results")
    attempt.reward(
        moments["test_ended_at"],
        row.ref,
        value=None if resolved is None else float(resolved),
        verifier=VERIFIER,
        tests_passed=tests["passed"] if told else None,
        tests_failed=tests.total() - tests["passed"] if told else None,
        verify_s=seconds(moments["test_started_at"], moments["test_ended_at"]),
        error_type=mode if mode in _OF_VERIFIER else None,
    )


def _declare(run: ForeignRun, results: Sequence[_Results]) -> None:
    first = results[0].metadata
    for other in results[1:]:
        for name in ("dataset_name", "dataset_version", "agent_name", "model_name"):
            if other.metadata.text(name) != first.text(name):
                run.note(f"{other.metadata.place}: {name} differs from {first.place}")
    dataset, version = first.text("dataset_name"), first.text("dataset_version")
    run.declare(
        dataset=f"{dataset}@{version}" if dataset and version else dataset,
        scaffold=first.text("agent_name"),
        model=first.text("model_name"),
        configuration=configuration_of([each.metadata.value for each in results]),
    )
    limit = first.integer("n_concurrent_trials")
    if limit is not None:
        run.fact(
            "resources_declared",
            UNKNOWN,
            first.ref,
            sandbox_backend="docker",
            trajectory_concurrency=limit,
        )


def _claim(run: ForeignRun, results: Sequence[_Results], clock: Clock) -> None:
    rows = [trial for each in results for trial in each.trials]
    place = f"results of {len(results)} files"
    run.claim("attempts", len(rows), figures.ATTEMPTS, place)
    run.claim("not scored", sum(not each.has("is_resolved") for each in rows), figures.UNSCORED,
              place)  # fmt: skip
    for mode, count in Counter(each.text("failure_mode") or "unset" for each in rows).items():
        run.claim(f"failure_mode {mode}", count, figures.with_status(mode), place)
    for name, column in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        told = sum_of_known(each.integer(f"total_{name}_tokens") for each in rows)
        query = figures.of_attempts(f"sum({column})::BIGINT")
        run.claim(f"{name} tokens", told, query, place)
    _claim_totals(run, results)
    _claim_times(run, rows, place)


def _claim_totals(run: ForeignRun, results: Sequence[_Results]) -> None:
    """What the files sum up themselves. Of several files, counts add up; accuracy and pass@k of
    one are not the submission's, which nobody states."""
    rows = [each.row for each in results]
    whole = rows[0] if len(rows) == 1 else None
    for name, query in (("n_resolved", figures.PASSED), ("n_unresolved", _NOT_PASSED)):
        total = sum_of_all(each.integer(name) for each in rows)
        run.claim(name, total, query, f"{name} of {len(rows)} files")
    total = sum_of_all(each.number("accuracy") for each in rows)
    sizes = {len(each.trials) for each in results}
    mean = None if total is None or len(sizes) > 1 else total / len(rows)
    run.claim("accuracy (pass@1)", mean, figures.PASS_AT_1, f"accuracy of {len(rows)} files")
    told_k = {} if whole is None else whole.members("pass_at_k")
    most = max((len(group.slots) for group in run.groups.values()), default=0)
    for k in sorted({int(name) for name in told_k if name.isdecimal()} | {2, 4, 5}):
        if str(k) in told_k or k <= most:
            told = told_k[str(k)].as_number() if str(k) in told_k else None
            run.claim(f"pass@{k}", told, figures.pass_at_k(k), "pass_at_k")


_NOT_PASSED = figures.of_outcomes("count(*) FILTER (passed IS NOT TRUE)")


def _claim_times(run: ForeignRun, rows: Sequence[Json], place: str) -> None:
    queries = {
        "trial": figures.of_outcomes("sum(wall_s)"),
        "environment setup": figures.of_facts("sandbox_started", "sum(start_s)"),
        "agent": figures.of_outcomes("sum(policy_clock_s)"),
        "test": figures.of_facts("reward_assigned", "sum(verify_s)"),
    }
    plain = Clock(None)
    for phase, (start, end) in _PHASES.items():
        told = sum_of_known(seconds(plain.read(row, start), plain.read(row, end)) for row in rows)
        run.claim(f"{phase} seconds", told, queries[phase], place)
