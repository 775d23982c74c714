"""Two evaluations beside one another: figures, their paired difference, and scopes that differ.

    compare_pass_at_1(a, b)         lines: part, name, A, B, B minus A, its interval

Invariant: scopes that differ are named, and tasks that are in one of them alone are in no
difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import duckdb

from ledger.accounts.compare import Row
from ledger.accounts.intervals import Interval
from ledger.accounts.outcomes import Selection, TaskOutcome, read_outcomes
from ledger.accounts.paired import Difference, difference
from ledger.accounts.sides import SCOPE, Asked, rows_of, the_one

FIGURES = (
    "pass_at_1_macro",
    "pass_at_1_pooled",
    "pass_at_1_weighted",
    "published",
    "macro_if_missing_failed",
    "macro_if_missing_passed",
    "coverage",
)
COUNTS = ("passed", "valid", "slots", "tasks", "tasks_valid")


class Part(StrEnum):
    """What a line is about."""

    FIGURE = "figure"
    COUNT = "count"
    PAIRED = "paired"
    TASKS = "tasks"
    SCOPE = "scope"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing of both sides."""

    part: Part
    name: str
    a: Any = None
    """A's value; null: unknown."""
    b: Any = None
    """B's value; null: unknown."""
    difference: float | None = None
    """B minus A."""
    low: float | None = None
    """Low end of the difference's interval; null: it has none."""
    high: float | None = None
    """High end."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One side: a row of `pass_at_1` and its tasks."""

    name: str
    """As it was asked for."""
    row: Row
    """With the run's scope."""
    tasks: Sequence[TaskOutcome]
    """By name."""


def read_evaluation(
    connection: duckdb.DuckDBPyConnection, asked: Asked, rule_set: int | None
) -> Evaluation:
    """One evaluation. Raises BookError where none, or more than one, is meant."""
    found = rows_of(connection, "pass_at_1", asked.run_id, "policy_version, rule_set")
    if asked.number is not None:
        found = [row for row in found if row["policy_version"] == asked.number]
    if rule_set is not None:
        found = [row for row in found if row["rule_set"] == rule_set]
    row = the_one(asked, found, ("policy_version", "rule_set"))
    selected = Selection(asked.run_id, row["policy_version"], row["rule_set"])
    return Evaluation(asked.text, row, read_outcomes(connection, selected))


def compare_pass_at_1(a: Evaluation, b: Evaluation) -> list[Line]:
    """B beside A."""
    found = difference(a.tasks, b.tasks)
    return [
        *_beside(Part.FIGURE, FIGURES, a.row, b.row),
        *_beside(Part.COUNT, COUNTS, a.row, b.row),
        *_paired(found),
        *_at_k(a, b),
        *_tasks(found),
        *_verdict(a.row, b.row, found),
    ]


def _beside(part: Part, names: Sequence[str], a: Row, b: Row) -> Iterator[Line]:
    for name in names:
        if a[name] is not None or b[name] is not None:
            both = a[name] is not None and b[name] is not None
            yield Line(part, name, a[name], b[name], b[name] - a[name] if both else None)


def _paired(found: Difference) -> Iterator[Line]:
    name = f"pass@1 on {len(found.tasks)} common tasks"
    for interval in (found.intervals.bootstrap, found.intervals.clustered):
        if interval is not None:
            yield _with(name, found, interval, interval.method)
    if found.intervals.with_missing is not None and found.bounds is not None:
        low, high = found.bounds
        note = "what is missing filled against B, then for B; no sampling"
        yield Line(Part.PAIRED, "bounds over tasks of both scopes", low=low, high=high, note=note)
        note = f"the same, with sampling ({found.intervals.with_missing.method})"
        interval = found.intervals.with_missing
        yield Line(Part.PAIRED, "bounds over tasks of both scopes", low=interval.low,
                   high=interval.high, note=note)  # fmt: skip


def _with(name: str, found: Difference, interval: Interval, note: str) -> Line:
    ends = {"low": interval.low, "high": interval.high}
    return Line(Part.PAIRED, name, found.of_a, found.of_b, found.value, **ends, note=note)


def _at_k(a: Evaluation, b: Evaluation) -> Iterator[Line]:
    """pass@k for each power of two that both sides have attempts for, on common tasks."""
    most = min(max((task.valid for task in side.tasks), default=0) for side in (a, b))
    k = 2
    while k <= most:
        found = difference(a.tasks, b.tasks, k=k, resamples=0)
        interval = found.intervals.clustered
        if interval is not None:
            name = f"pass@{k} on {len(found.tasks)} common tasks"
            yield _with(name, found, interval, interval.method)
        k *= 2


def _tasks(found: Difference) -> Iterator[Line]:
    named = {
        "lost: without a valid attempt on a side": found.lost,
        "in A's scope alone": found.only_a,
        "in B's scope alone": found.only_b,
    }
    for name, tasks in named.items():
        if tasks:
            yield Line(Part.TASKS, name, note=f"{len(tasks)}: {', '.join(tasks)}")


def _verdict(a: Row, b: Row, found: Difference) -> Iterator[Line]:
    names = [name for name in SCOPE if name in a and a[name] != b[name]]
    if a["rule_set"] != b["rule_set"]:
        names.append("rule_set")
    if a["verifiers"] != b["verifiers"]:
        names.append("verifiers")
    for name in names:
        yield Line(Part.SCOPE, name, a[name], b[name])
    differ = found.only_a or found.only_b
    if names or differ:
        yield Line(
            Part.VERDICT, "scopes differ", note=", ".join([*names, *["tasks"] * bool(differ)])
        )
    else:
        yield Line(Part.VERDICT, "same scope")
    yield Line(Part.VERDICT, "interval", note=found.note)
