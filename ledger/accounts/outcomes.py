"""Outcomes of an evaluation's tasks: read from the book, and what they bring to a figure.

selected = Selection(run_id, policy_version=5, rule_set=1)
tasks = read_outcomes(connection, selected)
intervals([share_of(task) for task in tasks])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from uuid import UUID

import duckdb

from ledger.accounts.intervals import TaskShare

TASKS = "task_outcomes"
"""The view that they are read from."""
UNNAMED_MOST = 100_000
"""Of tasks that a run declared only by their number, more than these are one mistake."""


@dataclass(frozen=True, slots=True)
class Selection:
    """One row of `pass_at_1`: a run may have several."""

    run_id: UUID
    policy_version: int | None
    """Null is the version of a run that has none."""
    rule_set: int | None
    """Null while no rule set has judged the run."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """One task's slots by their outcome: a row of view `task_outcomes`."""

    task_id: str
    stratum: str | None
    """Null: in none."""
    weight: float | None
    """Of its stratum; null: not declared."""
    slots: int | None
    """Slots in scope; null where neither opened nor declared."""
    valid: int
    """Slots with a valid attempt."""
    passed: int
    """Of these, slots whose first valid attempt passed."""


def read_outcomes(connection: duckdb.DuckDBPyConnection, selected: Selection) -> list[TaskOutcome]:
    """Tasks in scope, by name."""
    found = connection.execute(
        "SELECT task_id, stratum, stratum_weight, slots, valid, passed"
        f" FROM {TASKS}"
        " WHERE run_id = ? AND policy_version IS NOT DISTINCT FROM ?"
        " AND rule_set IS NOT DISTINCT FROM ? ORDER BY task_id",
        [selected.run_id, selected.policy_version, selected.rule_set],
    ).fetchall()
    return [TaskOutcome(*row) for row in found]


def share_of(task: TaskOutcome) -> TaskShare:
    """What a task brings to pass@1."""
    if task.slots is None:
        return TaskShare(task.stratum, _rate(task), 0.0, 1.0)
    low = task.passed / task.slots if task.slots else 0.0
    missing = task.slots - task.valid
    high = (task.passed + missing) / task.slots if task.slots else 1.0
    return TaskShare(task.stratum, _rate(task), low, high)


def share_at_k(task: TaskOutcome, k: int) -> TaskShare:
    """What a task brings to pass@k."""
    value = pass_at_k(task.valid, task.passed, k) if task.valid >= k else None
    if task.slots is None or task.slots < k:
        return TaskShare(task.stratum, value, 0.0, 1.0)
    low = pass_at_k(task.slots, task.passed, k)
    high = pass_at_k(task.slots, task.passed + task.slots - task.valid, k)
    return TaskShare(task.stratum, value, low, high)


def unnamed_shares(count: int) -> list[TaskShare]:
    """What tasks bring that a run declared only by their number: nothing is known of them."""
    return [TaskShare(None, None, 0.0, 1.0)] * min(count, UNNAMED_MOST)


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), the unbiased chance that one of k attempts passes where c of n
    did (Chen et al. 2021)."""
    return 1 - comb(n - c, k) / comb(n, k)


def weights_of(tasks: Sequence[TaskOutcome]) -> Mapping[str | None, float] | None:
    """The strata's weights; null unless every task is in a stratum of one declared weight."""
    weights: dict[str | None, float] = {}
    for task in tasks:
        if task.stratum is None or task.weight is None or task.weight < 0:
            return None
        if weights.setdefault(task.stratum, task.weight) != task.weight:
            return None
    return weights if sum(weights.values()) > 0 else None


def _rate(task: TaskOutcome) -> float | None:
    return task.passed / task.valid if task.valid else None
