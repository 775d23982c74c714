"""`leaderboards.json` of SWE-bench: what was published of each entry, against its own instances.

Invariant: a published percentage is never corrected. Where the list of instances says another one,
both are shown, and the difference is a finding: some published figures are wrong.
"""

from __future__ import annotations

from ledger.facts.lists import RunKind, StopReason
from producers.importers import configuration_of, figures
from producers.importers.run import ForeignRun
from producers.importers.source import BadImport, Json
from producers.importers.times import UNKNOWN

_PERCENT = figures.of_outcomes("100.0 * count(*) FILTER (passed) / count(*)")


def looks_like_leaderboard(row: Json) -> bool:
    """Whether a file is the leaderboard's."""
    return row.has_array("leaderboards")


def read_leaderboard(row: Json) -> list[ForeignRun]:
    """A run for each entry that lists its instances. Raises BadImport where none does."""
    runs: list[ForeignRun] = []
    bare: list[str] = []
    for board in row.items("leaderboards"):
        for entry in board.items("results"):
            name = entry.text("name") or entry.text("folder") or entry.pointer
            if entry.has("per_instance_details"):
                runs.append(_run(board, entry, name))
            else:
                bare.append(name)
    if not runs:
        raise BadImport(f"{row.place} must have per_instance_details of an entry, got none")
    if bare:
        runs[0].note(
            f"{len(bare)} entries list no instances, so they are no runs: {', '.join(bare)}"
        )
    return runs


def _run(board: Json, entry: Json, name: str) -> ForeignRun:
    place = [board.text("name") or board.pointer, entry.text("folder") or name]
    run = ForeignRun("swe-bench", place, kind=RunKind.EVAL, name=name, ref=entry.ref)
    details = {key: each for key, each in entry.object().items() if key != "per_instance_details"}
    run.declare(
        dataset="SWE-bench", split=board.text("name"), configuration=configuration_of(details)
    )
    cost, calls, resolved = 0.0, 0, 0
    for instance_id, row in sorted(entry.members("per_instance_details").items()):
        run.task(instance_id, row.ref)
        attempt = run.group(instance_id).attempt([instance_id])
        attempt.start(UNKNOWN, row.ref)
        passed = row.flag("resolved")
        if passed is not None:
            attempt.reward(UNKNOWN, row.ref, value=float(passed), verifier="swebench")
        attempt.finish(
            UNKNOWN,
            row.ref,
            stop_reason=StopReason.SUBMITTED,
            turns_known=False,
            foreign_calls=row.integer("api_calls"),
            foreign_cost_usd=row.number("cost"),
        )
        cost += row.number("cost") or 0.0
        calls += row.integer("api_calls") or 0
        resolved += passed is True
    count = len(run.attempts)
    published = entry.number("resolved")
    run.claim("resolved, percent", published, _PERCENT, entry.at("resolved").place,
              places=_places(published))  # fmt: skip
    run.claim("cost in USD", entry.number("cost"), figures.COST_USD, entry.at("cost").place,
              places=_places(entry.number("cost")))  # fmt: skip
    where = f"per_instance_details of {count} instances"
    run.claim("resolved instances", resolved, figures.PASSED, where)
    run.claim("api_calls", calls, figures.of_attempts("coalesce(sum(foreign_calls), 0)::BIGINT"),
              where)  # fmt: skip
    run.claim("cost of instances in USD", cost, figures.of_attempts("coalesce(sum(cost_usd), 0)"),
              where)  # fmt: skip
    return run


def _places(published: float | None) -> int | None:
    """Decimals of a published figure, as it is written."""
    return None if published is None else len(f"{published!r}".partition(".")[2])
