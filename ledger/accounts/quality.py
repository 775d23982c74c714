"""Intervals beside the rows of `pass_at_1` and `pass_at_k`.

The draws behind an interval depend on the tasks' outcomes alone, and are kept by them: asking again
costs nothing until an outcome changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ledger.accounts.compare import Row
from ledger.accounts.intervals import RESAMPLES, Interval, Intervals, TaskShare, intervals
from ledger.accounts.outcomes import (
    TaskOutcome,
    share_at_k,
    share_of,
    unnamed_shares,
    weights_of,
)


def pass_at_1_intervals(tasks: Sequence[TaskOutcome], row: Row) -> dict[str, object]:
    """Columns to stand beside a row of `pass_at_1`, of its tasks: of its macro and of its weighted
    figure."""
    shares = tuple(share_of(task) for task in tasks) + _unnamed(row)
    found = _kept(shares, None, RESAMPLES)
    weights = weights_of(tasks)
    of_strata = None
    if row["pass_at_1_weighted"] is not None and weights is not None:
        of_strata = _kept(shares, tuple(weights.items()), RESAMPLES).bootstrap
    return (
        _ends("bootstrap", found.bootstrap)
        | _ends("clustered", found.clustered)
        | _ends("with_missing", found.with_missing)
        | _ends("weighted_bootstrap", of_strata)
    )


def pass_at_k_intervals(tasks: Sequence[TaskOutcome], row: Row) -> dict[str, object]:
    """Columns to stand beside a row of `pass_at_k`, of its tasks: a row for each k is too many to
    draw for."""
    shares = tuple(share_at_k(task, row["k"]) for task in tasks)
    return _ends("clustered", _kept(shares, None, 0).clustered)


def _unnamed(row: Row) -> tuple[TaskShare, ...]:
    return tuple(unnamed_shares(row["unnamed_tasks"]))


@lru_cache(maxsize=256)
def _kept(
    shares: tuple[TaskShare, ...],
    weights: tuple[tuple[str | None, float], ...] | None,
    resamples: int,
) -> Intervals:
    return intervals(
        shares, weights=None if weights is None else dict(weights), resamples=resamples
    )


def _ends(name: str, interval: Interval | None) -> dict[str, object]:
    return {
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_method": interval.method if interval else None,
    }
