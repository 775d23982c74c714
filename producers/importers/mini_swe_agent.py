"""mini-swe-agent: a run's folder of `<instance>/<instance>.traj.json`, its exit_statuses*.yaml and
the SWE-bench harness's report of it.

Each folder is a run of its own; `--set merge=true` makes runs of one policy (agent and model
configured alike) one evaluation with several attempts at a task. Reports come with `--report`, or
are found by their name, `<model>.<folder>.json`, below the imported folder.

Its retries overwrite one another: what only the exit statuses still tell of becomes an attempt of
its own, which the next one replaces. Read from mini-swe-agent 2.4.6 and 183 real files.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.facts.lists import RunKind, Stage, StopReason
from producers.importers import Options
from producers.importers.exit_statuses import ENDED, ExitStatuses, Listed, read_exit_statuses
from producers.importers.harness_reports import (
    HarnessReport,
    looks_like_report,
    read_report,
    read_tests,
)
from producers.importers.mini_swe_claims import claim, declare
from producers.importers.mini_swe_messages import Trajectory, add_attempt
from producers.importers.run import Attempt, ForeignRun, Group
from producers.importers.source import BadImport, Json, SourceFile, digest_of
from producers.importers.times import UNKNOWN

FORM = "mini-swe-agent"
SUFFIX = ".traj.json"
SANDBOX_ERRORS = ("TimeoutExpired", "CalledProcessError")
"""What ends an attempt that leaves no trajectory: its container's pull or start."""


@dataclass(slots=True)
class _Folder:
    """One start folder of the program."""

    path: Path
    name: str
    trajectories: list[Trajectory]
    statuses: ExitStatuses
    predictions: Json | None
    report: HarnessReport | None = None
    unjoined: list[str] = field(default_factory=list[str])


def read(path: Path, options: Options) -> list[ForeignRun]:
    """A run for each folder, or for each policy. Raises BadImport."""
    merge = options.taken("merge").get("merge", "false").lower()
    if merge not in ("true", "false"):
        raise BadImport(f"--set merge must be true or false, got {merge!r}")
    root = path if path.is_dir() else path.parent
    folders = _folders(path, root)
    _join_reports(folders, root, options.reports)
    together: dict[str, list[_Folder]] = {}
    for folder in folders:
        key = _policy(folder) if merge == "true" else folder.name
        together.setdefault(key, []).append(folder)
    return [_run(each) for each in together.values()]


def _folders(path: Path, root: Path) -> list[_Folder]:
    files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
    homes: dict[Path, list[Path]] = {}
    for file in files:
        own = file.parent.name == file.name.removesuffix(SUFFIX)
        homes.setdefault(file.parent.parent if own else file.parent, []).append(file)
    if path.is_dir():  # of a run whose attempts all died early there are only the statuses
        for file in path.rglob("exit_statuses_*.yaml"):
            homes.setdefault(file.parent, [])
    if not homes:
        raise BadImport(f"{path.name} must have <instance>{SUFFIX} below it, got none")
    found: list[_Folder] = []
    for home, inside in sorted(homes.items()):
        trajectories = [Trajectory.read(file, root) for file in inside]
        predictions = home / "preds.json"
        found.append(
            _Folder(
                home,
                home.name,
                trajectories,
                read_exit_statuses(home, root),
                SourceFile.read(predictions, root).json() if predictions.exists() else None,
            )
        )
    return found


def _join_reports(folders: list[_Folder], root: Path, given: tuple[Path, ...]) -> None:
    """Give each folder its report: by name, or the one report of the one folder."""
    reports = [each for each in given if each.is_file()]
    logs = [each for each in given if each.is_dir()]
    for folder in folders:
        named = [each for each in reports if each.stem.endswith(f".{folder.name}")]
        if not named:
            named = [
                each
                for each in sorted(root.rglob("*.json"))
                if each.name.endswith(f".{folder.name}.json")
                and looks_like_report(SourceFile.read(each, root).json())
            ]
        if not named and len(folders) == len(reports) == 1:
            named = reports
        if len(named) > 1:
            names = ", ".join(each.name for each in named)
            raise BadImport(f"{folder.name} must have one harness report, got {names}")
        if named:
            folder.report = read_report(named[0], named[0].parent)
            for each in logs:
                folder.report.tests |= read_tests(each, each)
    used = {folder.report.row.source.name for folder in folders if folder.report}
    if unused := [each.name for each in reports if each.name not in used]:
        raise BadImport(
            f"--report {unused[0]} must be named <model>.<folder>.json after one of the folders"
            f" {', '.join(folder.name for folder in folders)}"
        )


def _policy(folder: _Folder) -> str:
    """What makes two folders attempts of one policy: how agent and model are configured."""
    return _digest(sorted({_digest(each.policy) for each in folder.trajectories}))


def _digest(value: Any) -> str:
    return digest_of(json.dumps(value, sort_keys=True))


def _run(folders: list[_Folder]) -> ForeignRun:
    sources = sorted(each.row.source.sha256 for folder in folders for each in folder.trajectories)
    named = [file.rpartition("/")[2] for folder in folders for file in folder.statuses.files]
    refs = [each.row.ref for folder in folders for each in folder.trajectories]
    refs += [each.ref for folder in folders for some in folder.statuses.listed.values()
             for each in some]  # fmt: skip
    run = ForeignRun(
        FORM,
        sources or named,
        kind=RunKind.EVAL,
        name="+".join(folder.name for folder in folders),
        ref=refs[0] if refs else named[0],
    )
    seen = Counter[str]()
    for folder in folders:
        _add_folder(run, folder, seen)
    trajectories = [each for folder in folders for each in folder.trajectories]
    reports = [each.report for each in folders if each.report] if len(folders) == 1 else []
    declare(run, trajectories)
    claim(run, trajectories, [each.statuses for each in folders], reports)
    return run


def _add_folder(run: ForeignRun, folder: _Folder, seen: Counter[str]) -> None:
    """The attempts of a folder. `seen` counts contents: an attempt is known by its own, and by how
    many there were before that are the same."""
    listed = dict(folder.statuses.listed)
    for each in folder.trajectories:
        run.task(each.instance_id, each.row.ref, statement=each.statement)
        group = run.group(each.instance_id)
        attempts = listed.pop(each.instance_id, [])
        if attempts and attempts[-1].status != each.exit_status:
            run.note(
                f"{each.row.place} ended as {each.exit_status}, and the last exit_statuses of"
                f" {folder.name} has {attempts[-1].status}"
            )
        if not attempts and folder.statuses.files:
            folder.unjoined.append(each.instance_id)
        before = _earlier(group, folder, attempts[:-1], each.image)
        digest = each.row.source.sha256
        attempt = group.attempt([digest, seen[digest]], replaces=before)
        seen[digest] += 1
        add_attempt(attempt, each)
        if folder.report is not None and not folder.report.assign(attempt, each.instance_id):
            run.note(f"{folder.report.row.place} says nothing of {each.instance_id}")
        each.finish(attempt, ENDED.get(each.exit_status or "", StopReason.ERROR))
    _without_trajectory(run, folder, listed)
    _note_unjoined(run, folder, listed)


def _earlier(
    group: Group, folder: _Folder, listed: list[Listed], image: str | None
) -> Attempt | None:
    """Attempts that left no trajectory, in one slot; the last of them."""
    last: Attempt | None = None
    for number, each in enumerate(listed):
        last = group.attempt([each.file, group.task_id, number, each.status], replaces=last)
        last.start(UNKNOWN, each.ref)
        broken = each.status in SANDBOX_ERRORS
        if broken:
            last.fact(
                "sandbox_failed",
                UNKNOWN,
                each.ref,
                try_no=0,
                template=image,
                stage=Stage.SANDBOX_START,
                error_type=each.status,
            )
        stop_reason = ENDED.get(each.status, StopReason.ERROR)
        last.finish(
            UNKNOWN,
            each.ref,
            stop_reason=stop_reason,
            stage=Stage.SANDBOX_START if broken else None,
            turns_known=False,
            error_type=each.status if stop_reason is StopReason.ERROR else None,
            foreign_status=each.status,
        )
    return last


def _without_trajectory(run: ForeignRun, folder: _Folder, listed: dict[str, list[Listed]]) -> None:
    """Instances that died before a trajectory could be written are attempts; one that submitted
    has one, so its id is misspelled here or there."""
    for instance_id, attempts in list(listed.items()):
        if attempts[-1].status not in ENDED:
            run.task(instance_id, attempts[0].ref)
            _earlier(run.group(instance_id), folder, attempts, None)
            del listed[instance_id]


def _note_unjoined(run: ForeignRun, folder: _Folder, listed: dict[str, list[Listed]]) -> None:
    ours = {each.instance_id for each in folder.trajectories}
    others = {"exit_statuses": set(listed)}
    if folder.predictions is not None:
        others["preds.json"] = set(folder.predictions.object()) - ours
    if folder.report is not None:
        others["the harness report"] = folder.report.submitted - ours
    for what, ids in others.items():
        if ids:
            run.note(
                f"{len(ids)} ids of {what} in {folder.name} name no trajectory:"
                f" {', '.join(sorted(ids))}"
            )
    if folder.unjoined:
        run.note(
            f"{len(folder.unjoined)} trajectories in {folder.name} are in no exit_statuses:"
            f" {', '.join(folder.unjoined)}"
        )
