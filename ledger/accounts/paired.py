"""The difference of two evaluations, task by task: B minus A.

    difference(outcomes_of_a, outcomes_of_b)

Invariant: no task leaves silently. One that has no valid attempt on a side is `lost` and in the
bounds; one that is in one scope only is named apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.accounts.intervals import RESAMPLES, SEED, Intervals, TaskShare, intervals
from ledger.accounts.outcomes import TaskOutcome, share_at_k, share_of

LEFT_OUT = (
    "the interval is about drawing tasks and attempts again; it leaves out the variance between"
    " training seeds, of which these runs show one each"
)
UNPAIRED = (
    "no paired interval: no task has a valid attempt on both sides, and aggregates alone don't say"
    " how tasks went together"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A."""

    value: float | None
    """Mean over tasks that have enough valid attempts on both sides; null when none has."""
    of_a: float | None
    """A's mean over the same tasks."""
    of_b: float | None
    """B's mean over the same tasks."""
    intervals: Intervals
    """Of the value; with_missing fills what is missing against and for B."""
    bounds: tuple[float, float] | None
    """The mean over all tasks of both scopes with what is missing filled adversarially: failed in B
    and passed in A, then the other way round; null without such a task."""
    tasks: tuple[str, ...]
    """Tasks that are in the value."""
    lost: tuple[str, ...]
    """Tasks of both scopes that aren't, for want of valid attempts on a side."""
    only_a: tuple[str, ...]
    """Tasks of A's scope alone: in nothing here."""
    only_b: tuple[str, ...]
    """Tasks of B's scope alone: in nothing here."""
    note: str
    """What the interval doesn't say, or why there is none."""


def difference(
    a: Sequence[TaskOutcome],
    b: Sequence[TaskOutcome],
    *,
    k: int = 1,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Difference:
    """The difference in pass@k, by task. Strata are those of A."""
    in_a = {task.task_id: task for task in a}
    in_b = {task.task_id: task for task in b}
    both = sorted(in_a.keys() & in_b.keys())
    sides = {name: (_share(in_a[name], k), _share(in_b[name], k)) for name in both}
    shares = {name: _minus(of_b, of_a) for name, (of_a, of_b) in sides.items()}
    counted = [name for name in both if shares[name].value is not None]
    listed = list(shares.values())
    return Difference(
        value=_mean([share.value for share in listed]),
        of_a=_mean([sides[name][0].value for name in counted]),
        of_b=_mean([sides[name][1].value for name in counted]),
        intervals=intervals(listed, limits=(-1.0, 1.0), resamples=resamples, seed=seed),
        bounds=_bounds(listed),
        tasks=tuple(counted),
        lost=tuple(name for name in both if shares[name].value is None),
        only_a=tuple(sorted(in_a.keys() - in_b.keys())),
        only_b=tuple(sorted(in_b.keys() - in_a.keys())),
        note=LEFT_OUT if counted else UNPAIRED,
    )


def _share(task: TaskOutcome, k: int) -> TaskShare:
    return share_of(task) if k == 1 else share_at_k(task, k)


def _minus(b: TaskShare, a: TaskShare) -> TaskShare:
    value = None if a.value is None or b.value is None else b.value - a.value
    return TaskShare(a.stratum, value, b.low - a.high, b.high - a.low)


def _bounds(shares: Sequence[TaskShare]) -> tuple[float, float] | None:
    if not shares:
        return None
    count = len(shares)
    return sum(share.low for share in shares) / count, sum(share.high for share in shares) / count


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
