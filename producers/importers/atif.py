"""ATIF trajectories by themselves: a file, or a folder of them.

ATIF tells no status and no reward, and no task: each trajectory is an attempt at a task of its own,
taken to have ended by itself, without a reward.
"""

from __future__ import annotations

import re
from pathlib import Path

from ledger.facts.lists import RunKind, StopReason
from producers.importers import Options, configuration_of, figures
from producers.importers.atif_file import PREFIX, AtifFile, Totals, add_steps, scaffold_of
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import BadImport, SourceFile
from producers.importers.times import UNKNOWN, Clock, Moment

FORM = "atif"
_PART = re.compile(r"\.(cont-\d+|summarization-\d+-\w+)\.json$")
"""Names of what a trajectory refers to, and isn't one by itself."""


def read(path: Path, options: Options) -> list[ForeignRun]:
    """One run of all trajectories at `path`. Raises BadImport."""
    options.taken()
    root = path if path.is_dir() else path.parent
    trajectories = _trajectories(path, root)
    if not trajectories:
        raise BadImport(f"{path.name} must have a trajectory in ATIF below it, got none")
    clock = Clock(options.timezone)
    run = ForeignRun(
        FORM,
        sorted(each.row.source.sha256 for each in trajectories),
        kind=RunKind.EVAL,
        name=path.stem,
        ref=trajectories[0].row.ref,
    )
    for each in trajectories:
        _add(run, each, clock, options)
    run.note("ATIF tells no status: every trajectory is taken to have ended by itself")
    for note in clock.notes():
        run.note(note)
    first = trajectories[0].row.member("agent")
    agents = sorted({scaffold_of(each.row.member("agent")) for each in trajectories})
    run.declare(
        scaffold=", ".join(agents),
        model=first.text("model_name"),
        configuration=configuration_of([each.row.at("agent").value for each in trajectories]),
    )
    return [run]


def _trajectories(path: Path, root: Path) -> list[AtifFile]:
    if not path.is_dir():
        return [AtifFile.read(path, root)]
    found: list[AtifFile] = []
    for file in sorted(path.rglob("*.json")):
        if _PART.search(file.name):
            continue
        row = SourceFile.read(file, root).json()
        version = row.value.get("schema_version") if isinstance(row.value, dict) else None
        if isinstance(version, str) and version.startswith(PREFIX):
            found.append(AtifFile.of(row, file.parent, root))
    return found


def _add(run: ForeignRun, trajectory: AtifFile, clock: Clock, options: Options) -> None:
    row = trajectory.row
    task_id = row.source.name.removesuffix(".json")
    attempt = run.group(task_id).attempt([row.source.sha256, row.source.name])
    again = Clock(options.timezone)  # the steps are read once more below, and counted there
    moments = [again.read(each, "timestamp") for each in trajectory.steps]
    known = [each for each in moments if each.at is not None]
    attempt.start(known[0].derived() if known else UNKNOWN, row.ref)
    add_steps(attempt, trajectory, clock)
    finish(attempt, trajectory, known[-1].derived() if known else UNKNOWN)
    claim_totals(run, attempt, trajectory)


def finish(attempt: Attempt, trajectory: AtifFile, at: Moment) -> None:
    """The end of a trajectory that nothing else tells of."""
    told = trajectory.final
    attempt.finish(
        at,
        trajectory.row.ref,
        stop_reason=StopReason.SUBMITTED,
        turns_known=bool(trajectory.turns),
        foreign_prompt_tokens=told.prompt_tokens,
        foreign_cached_tokens=told.cached_tokens,
        foreign_completion_tokens=told.completion_tokens,
        foreign_cost_usd=told.cost_usd,
    )


def claim_totals(run: ForeignRun, attempt: Attempt, trajectory: AtifFile) -> None:
    """final_metrics against the turns' sum; and what was read, as a count of steps."""
    because = None
    if not trajectory.is_a_whole:
        because = f"without files that it names: {', '.join(sorted(set(trajectory.missing)))}"
        run.note(f"{trajectory.row.place} is {because}")
    where = f"trajectory_id = {figures.quoted(attempt.trajectory_id)}"
    told = trajectory.final
    for name in Totals.__slots__:
        query = figures.of_facts("turns", f"sum({name})", where)
        value = getattr(told, name)
        if value is None or (value == 0 and not any(e.member("metrics").has(name)
                                                    for e in trajectory.turns)):  # fmt: skip
            continue
        run.claim(f"{name} of {trajectory.row.source.name}", value, query,
                  f"{trajectory.row.source.name}#/final_metrics", because=because)  # fmt: skip
    counts = {"steps with metrics": (len(trajectory.turns), "turns"),
              "tool calls": (trajectory.tool_calls, "tool_calls")}  # fmt: skip
    for what, (count, column) in counts.items():
        query = figures.of_attempts(f"sum({column})::BIGINT", where)
        run.claim(f"{what} of {trajectory.row.source.name}", count, query, trajectory.row.place)
