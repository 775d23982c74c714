"""Alerts: measures of the book that are over their threshold, what stands still first.

    alerts_of(measures(connection, at), thresholds)

Each measure is one query in `ledger/alerts/`, named as the threshold that it is held against; its
rows are (run_id, subject, value, out_of).

Invariants:

1. An alert names the view that shows it, the value and the threshold.
2. Advice on tuning is given only while nothing is on fire: what stands still, or is wrong, or is
   lost, makes every share suspect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from uuid import UUID

import duckdb

from ledger.book_sql import sql_file

Thresholds = Mapping[str, float | None]
"""Alert -> its threshold, which a value must not be above; null: not watched. `least_attempts` is
how many attempts or groups a share must be of, `lag_bound` a bound on lag in the batches' stead."""


class Level(IntEnum):
    """What is first mended first."""

    LIVENESS = 0
    """Something stands still: what the book says is old."""
    INTEGRITY = 1
    """A promise is broken: what was trained on is wrong."""
    LOSS = 2
    """Attempts are lost."""
    TUNING = 3
    """The run is sound, and could be better."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched."""

    name: str
    """Of the alert, its threshold and its query."""
    level: Level
    view: str
    """Where to look further."""
    advice: str


@dataclass(frozen=True, slots=True)
class Measure:
    """One value that is watched."""

    watch: Watch
    run_id: UUID | None
    """Null: no run in particular."""
    subject: str
    value: float
    out_of: int | None = None
    """What a share is of; null where that doesn't matter."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A measure over its threshold."""

    level: str
    alert: str
    run_id: UUID | None
    subject: str
    value: float
    threshold: float
    out_of: int | None
    view: str
    """The view that shows it."""
    advice: str
    """What to do; empty for tuning while something is on fire."""


PROJECTOR_BEHIND = Watch(
    "projector_behind_records",
    Level.LIVENESS,
    "positions",
    "start the projector (rollbook project --follow, rollbook serve), or see what it waits for",
)
"""Measured against the log, so by whoever has it open."""

WATCHES = (
    Watch("producer_silent", Level.LIVENESS, "producers",
          "see whether that process lives; its attempts are abandoned when its lease runs out"),
    Watch("contamination", Level.INTEGRITY, "contamination",
          "stop training: the assembler let attempts vote that it knew to be lost"),
    Watch("lag_over_bound", Level.INTEGRITY, "policy_lag",
          "stop training: tokens over the bound were trained on"),
    Watch("infrastructure_share", Level.LOSS, "failures",
          "look at stage and class: failures of one stage at a time have one cause"),
    Watch("exclusion_share", Level.LOSS, "exclusions_by_version",
          "read some of them: a version that is excluded more often may have learned to be"),
    Watch("late_contamination_share", Level.LOSS, "contamination",
          "raise evidence_wait_s, so that decisions wait for what peers say"),
    Watch("tail_share", Level.TUNING, "rollout_tail_totals",
          "see stragglers: over-sample, cap what they spend their time on, or let steps overlap"),
    Watch("truncated_share", Level.TUNING, "stop_reasons",
          "raise the cap that most of them ran into, or mask what is overlong"),
    Watch("zero_variance_share", Level.TUNING, "group_decisions",
          "choose tasks that the policy solves sometimes: always and never teach nothing"),
)  # fmt: skip
"""In the order of their alerts, level by level."""


def measures(
    connection: duckdb.DuckDBPyConnection, at: datetime, thresholds: Thresholds
) -> list[Measure]:
    """Everything that is watched, as of the book's positions; silence as of `at`."""
    given = {"at": at, "lag_bound": thresholds.get("lag_bound")}
    found: list[Measure] = []
    for watch in WATCHES:
        if thresholds.get(watch.name) is None:
            continue
        query = sql_file(f"alerts/{watch.name}.sql")
        needed = {name: value for name, value in given.items() if f"${name}" in query}
        for run_id, subject, value, out_of in connection.execute(query, needed).fetchall():
            if value is not None:
                found.append(Measure(watch, run_id, str(subject), float(value), out_of))
    return found


def alerts_of(found: Sequence[Measure], thresholds: Thresholds) -> list[Alert]:
    """Measures over their threshold, by level, in the order of WATCHES, the worst first."""
    over = [each for each in found if _is_over(each, thresholds)]
    on_fire = any(each.watch.level < Level.TUNING for each in over)
    places = {watch.name: place for place, watch in enumerate((PROJECTOR_BEHIND, *WATCHES))}
    over.sort(key=lambda each: (each.watch.level, places[each.watch.name], -each.value))
    return [
        Alert(
            level=each.watch.level.name.lower(),
            alert=each.watch.name,
            run_id=each.run_id,
            subject=each.subject,
            value=each.value,
            threshold=_threshold(each, thresholds),
            out_of=each.out_of,
            view=each.watch.view,
            advice="" if on_fire and each.watch.level is Level.TUNING else each.watch.advice,
        )
        for each in over
    ]


def _is_over(measure: Measure, thresholds: Thresholds) -> bool:
    if thresholds.get(measure.watch.name) is None:
        return False
    least = thresholds.get("least_attempts") or 0
    of_enough = (
        measure.out_of is None or measure.watch.level is Level.INTEGRITY or measure.out_of >= least
    )
    return of_enough and measure.value > _threshold(measure, thresholds)


def _threshold(measure: Measure, thresholds: Thresholds) -> float:
    threshold = thresholds[measure.watch.name]
    assert threshold is not None, "what is not watched is not measured"
    return threshold
