"""SWE-bench results: run reports of the harness, submissions of the experiments repository, and the
leaderboard's own file.

    <model>.<run_id>.json                  a run report: its attempts are its submitted instances
    <submission>/results/results.json      lists resolved, no_generation and no_logs, and no others
    .../<instance>/report.json             the harness's logs, by themselves or for their tests
    leaderboards.json                      per_instance_details of each entry that has them

One prediction an instance: pass@k takes several runs. What isn't resolved in a submission is the
complement over the dataset, whose ids no file there has: `--set instances=FILE` (ids, one a line,
or a JSON array) makes attempts of them, `--set dataset_size=N` only lets the published share be
computed. Read from swebench 5.0.2 and real run reports; submissions and the leaderboard's file from
their documentation only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.facts.lists import RunKind, StopReason
from producers.importers import Options, configuration_of, figures
from producers.importers.harness_reports import (
    REPORT,
    VERIFIER,
    HarnessReport,
    Tests,
    looks_like_report,
    read_tests,
    reports_below,
)
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.swe_leaderboard import looks_like_leaderboard, read_leaderboard
from producers.importers.times import UNKNOWN

FORM = "swe-bench"
SPLITS = {"verified": 500, "lite": 300, "test": 2294}
"""Folders of the experiments repository, and how many instances those splits have."""


@dataclass(slots=True)
class _Setup:
    """What the user says of the dataset."""

    instances: list[str] = field(default_factory=list[str])
    """All ids; empty: not told."""
    size: int | None = None


def read(path: Path, options: Options) -> list[ForeignRun]:
    """A run for each report, submission or leaderboard entry at `path`. Raises BadImport."""
    setup = _setup(options.taken("instances", "dataset_size"))
    root = path if path.is_dir() else path.parent
    if not path.is_dir():
        return _of_file(SourceFile.read(path, root).json(), path, setup, options)
    runs: list[ForeignRun] = []
    for file in sorted(path.rglob("*.json")):
        try:
            row = SourceFile.read(file, root).json()
        except BadImport:
            if file.name == REPORT:
                continue  # cut short; the harness calls its instance an error
            raise
        if looks_like_report(row) or _is_submission(row) or looks_like_leaderboard(row):
            runs += _of_file(row, file, setup, options)
    return runs or [_of_logs(path, root)]


def _setup(given: dict[str, str]) -> _Setup:
    setup = _Setup()
    if (file := given.get("instances")) is not None:
        path = Path(file)
        source = SourceFile.read(path, path.parent)
        if source.text.lstrip().startswith("["):
            setup.instances = [str(each.as_text()) for each in source.json().array()]
        else:
            setup.instances = source.text.split()
        setup.size = len(setup.instances)
    if (size := given.get("dataset_size")) is not None:
        if not size.isdecimal():
            raise BadImport(f"--set dataset_size must be a whole number, got {size!r}")
        setup.size = int(size)
    return setup


def _of_file(row: Json, path: Path, setup: _Setup, options: Options) -> list[ForeignRun]:
    if looks_like_leaderboard(row):
        return read_leaderboard(row)
    if _is_submission(row):
        return [_of_submission(row, path, setup)]
    report = HarnessReport.of(row)
    for each in options.reports:
        report.tests |= read_tests(each, each)
    return [_of_report(report, *_names(path, options.reports))]


def _names(path: Path, logs: Sequence[Path]) -> tuple[str, str]:
    """The model and the run id of a run report's name. Either may have dots; the folders of the
    run's logs, <run id>/<model>/<instance>, tell where the one ends."""
    for folder in logs:
        for file in folder.resolve().rglob(REPORT):
            names = [each.name for each in file.parents][1:3]
            if len(names) == 2 and path.stem == ".".join(names):
                return names[0], names[1]
    model, _, run_id = path.stem.rpartition(".")
    return model, run_id


def _of_report(report: HarnessReport, model: str, run_id: str) -> ForeignRun:
    row = report.row
    run = ForeignRun(FORM, [row.source.sha256], kind=RunKind.EVAL, name=run_id, ref=row.ref)
    run.declare(model=model.replace("__", "/") or None)
    for instance_id in sorted(report.submitted):
        attempt = _attempt(run, instance_id, row.ref)
        scored = report.assign(attempt, instance_id)
        _finish(attempt, report.status(instance_id), row.ref)
        if not scored:
            run.note(f"{row.place} lists {instance_id} as submitted, and has no verdict on it")
    _never_started(run, report.listed("incomplete_ids") - report.submitted, row.ref)
    report.claim(run)
    total, outside = row.integer("total_instances"), len(report.outside)
    slots = len(report.submitted | report.listed("incomplete_ids"))
    beside = outside and total == slots - outside
    because = f"predictions for none of the dataset's instances: {outside}" if beside else None
    run.claim("total_instances", total, _SLOTS, row.place, because=because)
    return run


def _attempt(run: ForeignRun, instance_id: str, ref: str) -> Attempt:
    run.task(instance_id, ref)
    attempt = run.group(instance_id).attempt([instance_id])
    attempt.start(UNKNOWN, ref)
    return attempt


def _finish(attempt: Attempt, status: str, ref: str, **more: Any) -> None:
    attempt.finish(
        UNKNOWN, ref, stop_reason=StopReason.SUBMITTED, turns_known=False, foreign_status=status,
        **more,
    )  # fmt: skip


def _never_started(run: ForeignRun, instances: set[str], ref: str) -> None:
    """Instances of the dataset that no prediction was handed in for: a slot each, never started."""
    for instance_id in sorted(instances):
        run.task(instance_id, ref)
        run.group(instance_id, ref=ref).reserve()


_SLOTS = "SELECT coalesce(sum(slots), 0)::BIGINT FROM runs WHERE run_id = $run"
_SHARE = """SELECT 100.0 * (
    SELECT count(*) FROM trajectories WHERE run_id = $run AND passed
) / tasks FROM runs WHERE run_id = $run"""


def _is_submission(row: Json) -> bool:
    return row.has_array("resolved")


def _of_submission(row: Json, path: Path, setup: _Setup) -> ForeignRun:
    """A submission of the experiments repository, which tells only some of its instances."""
    folder = path.parent.parent if path.parent.name == "results" else path.parent
    split = folder.parent.name
    run = ForeignRun(
        FORM, [folder.name, row.source.sha256], kind=RunKind.EVAL, name=folder.name, ref=row.ref
    )
    lists = {name: {str(each.as_text()) for each in row.items(name)} for name in row.object()}
    resolved = lists.pop("resolved")
    for name, ids in lists.items():
        if both := resolved & ids:
            raise BadImport(
                f"{row.place}: {min(both)} must be in one list, got resolved and {name}"
            )
    told: dict[str, tuple[str, float | None]] = dict.fromkeys(resolved, ("resolved", 1.0))
    told |= dict.fromkeys(lists.get("no_logs", set()), ("no_logs", None))
    told |= dict.fromkeys(lists.get("no_generation", set()), ("no_generation", 0.0))
    told |= {each: ("unresolved", 0.0) for each in setup.instances if each not in told}
    for instance_id, (status, value) in sorted(told.items()):
        attempt = _attempt(run, instance_id, row.at(status).ref)
        attempt.reward(
            UNKNOWN, row.at(status).ref, value=value, verifier=VERIFIER,
            error_type="no_logs" if status == "no_logs" else None,
        )  # fmt: skip
        _finish(attempt, status, row.at(status).ref)
    size = setup.size or SPLITS.get(split)
    run.declare(dataset="SWE-bench", split=split, tasks=size, **_metadata(folder))
    for name, ids in {"resolved": resolved, **lists}.items():
        run.claim(name, len(ids), figures.with_status(name), row.at(name).place)
    run.claim("resolved, percent of the dataset",
              None if size is None else 100 * len(resolved) / size, _SHARE, row.place)  # fmt: skip
    if size is None or size > len(told):
        run.declare(attempts_per_task=None)  # or the slots of those without a name would be missed
        rest = "the others" if size is None else f"{size - len(told)} others"
        run.note(
            f"{row.place} names no unresolved instance: {rest} are no attempts here"
            " (--set instances=FILE names them)"
        )
    return run


def _metadata(folder: Path) -> dict[str, Any]:
    """What metadata.yaml says of a submission, if it is there."""
    file = folder / "metadata.yaml"
    if not file.exists():
        return {}
    source = SourceFile.read(file, folder)
    value = source.yaml()
    tags = Json(value if isinstance(value, dict) else {}, source).at("tags").value
    tags = tags if isinstance(tags, dict) else {}
    model = tags.get("model")
    return {
        "model": ", ".join(map(str, model)) if isinstance(model, list) else model and str(model),
        "configuration": configuration_of(value if isinstance(value, dict) else {}),
    }


def _of_logs(path: Path, root: Path) -> ForeignRun:
    """A folder of the harness's logs without a run report."""
    reports = reports_below(path, root)
    if not reports:
        raise BadImport(
            f"{path.name} must have a run report, a results.json, report.json files or a"
            " leaderboards.json below it, got none"
        )
    digests = sorted({each.source.sha256 for each in reports.values()})
    first = next(iter(reports.values()))
    run = ForeignRun(FORM, digests, kind=RunKind.EVAL, name=path.name, ref=first.ref)
    for instance_id, report in sorted(reports.items()):
        attempt = _attempt(run, instance_id, report.ref)
        resolved, known = report.flag("resolved"), Tests.of(report)
        attempt.reward(
            UNKNOWN, report.ref, verifier=VERIFIER,
            value=None if resolved is None else float(resolved),
            tests_passed=known.passed if known else None,
            tests_failed=known.failed if known else None,
            error_type="no_verdict" if resolved is None else None,
        )  # fmt: skip
        empty = report.flag("patch_is_None")
        known_as = "error" if resolved is None else "completed"
        _finish(attempt, "empty_patch" if empty else known_as, report.ref)
    count = sum(each.flag("resolved") is True for each in reports.values())
    run.claim("resolved", count, figures.PASSED, f"{len(reports)} report.json")
    run.claim("instances", len(reports), figures.ATTEMPTS, f"{len(reports)} report.json")
    return run
