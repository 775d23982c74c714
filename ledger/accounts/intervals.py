"""How far a mean over tasks could be off. Tasks are the unit: attempts at one task go together.

    shares = [TaskShare("easy", 0.25, 0.25, 0.25), TaskShare("hard", None, 0.0, 1.0)]
    intervals(shares).bootstrap                     Interval(low=..., high=..., method="bootstrap")

Invariants:

1. The same tasks in the same order give the same intervals.
2. No interval has zero width: where every task says the same, 3/T bounds the share of tasks that
   would say something else (at 95%: (1 - 3/T)^T is about 0.05).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance

LEVEL = 0.95
"""Of all intervals."""

RESAMPLES = 10_000

SEED = 1
"""Of the resamples: an interval is part of an answer, and must come out again."""

_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
_NO_WIDTH = 1e-9

Strata = Mapping[str | None, Sequence[float | None]]
"""Stratum -> values of its tasks; null: a task without one."""


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What one task brings to a mean."""

    stratum: str | None
    """The part of the dataset that it is drawn from; null: in none."""
    value: float | None
    """Its value; null where it has no valid attempt, so that it isn't in the mean."""
    low: float
    """Its value if everything that is missing had failed."""
    high: float
    """Its value if everything that is missing had passed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a mean may lie, at 95%."""

    low: float
    high: float
    method: str
    """bootstrap, clustered or 3/T."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of one mean."""

    bootstrap: Interval | None
    """By drawing tasks within their strata again, with their attempts and their missing ones; null
    where no task has a value."""
    clustered: Interval | None
    """By the variance between tasks, strata apart; null as above."""
    with_missing: Interval | None
    """From the low end with all that is missing failed to the high end with it passed; null without
    a task."""


def intervals(
    tasks: Sequence[TaskShare],
    *,
    weights: Mapping[str | None, float] | None = None,
    limits: tuple[float, float] = (0.0, 1.0),
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Intervals:
    """Intervals of the mean over tasks; with `weights` of the mean over strata, by these.

    `limits` are the least and the largest value that a task can have. See Miller, "Adding Error
    Bars to Evals" (2024) for the clustered one, Efron's percentile method for the bootstrap."""

    def drawn(column: str) -> Interval | None:
        strata = _by_stratum(tasks, column)
        return _bootstrap(strata, weights, limits, resamples, random.Random(seed))

    value = drawn("value")
    # Where nothing is missing all three are one, and drawing is what takes time.
    whole = all(task.low == task.value == task.high for task in tasks)
    low, high = (value, value) if whole else (drawn("low"), drawn("high"))
    return Intervals(
        bootstrap=value,
        clustered=_clustered(_by_stratum(tasks, "value"), weights, limits),
        with_missing=Interval(low.low, high.high, low.method) if low and high else None,
    )


def _by_stratum(tasks: Sequence[TaskShare], column: str) -> dict[str | None, list[float | None]]:
    strata: dict[str | None, list[float | None]] = {}
    for task in tasks:
        strata.setdefault(task.stratum, []).append(getattr(task, column))
    return strata


def _bootstrap(
    strata: Strata,
    weights: Mapping[str | None, float] | None,
    limits: tuple[float, float],
    resamples: int,
    chance: random.Random,
) -> Interval | None:
    # A task as a complex number, its value and 1, or 0 and 0: one sum gives numerator and
    # denominator, and complex numbers are added at the speed of C.
    pools = [
        [complex(0, 0) if value is None else complex(value, 1) for value in values]
        for values in strata.values()
    ]
    of_strata = None if weights is None else [weights[name] for name in strata]
    found: list[float] = []
    for _ in range(resamples):
        sums = [sum(chance.choices(pool, k=len(pool))) for pool in pools]
        mean = _mean(sums, of_strata)
        if mean is not None:
            found.append(mean)
    if not found:
        return None
    found.sort()
    cut = int((1 - LEVEL) / 2 * len(found))
    low, high = found[cut], found[-1 - cut]
    if high - low < _NO_WIDTH:
        return _by_three_over_tasks(strata, weights, limits)
    return Interval(low, high, "bootstrap")


def _mean(sums: Sequence[complex], weights: Sequence[float] | None) -> float | None:
    """The mean over tasks, or over strata by weight; null where one of them has no value."""
    if weights is None:
        total = sum(sums)
        return total.real / total.imag if total.imag else None
    if not all(each.imag for each in sums):
        return None
    parts = [weight * each.real / each.imag for weight, each in zip(weights, sums, strict=True)]
    return sum(parts) / sum(weights)


def _clustered(
    strata: Strata, weights: Mapping[str | None, float] | None, limits: tuple[float, float]
) -> Interval | None:
    present = _present(strata)
    if not present or (weights is not None and len(present) < len(strata)):
        return None
    if weights is None and any(len(values) < 2 for values in present.values()):
        # One task says nothing of the spread inside its stratum: the spread over all tasks, which
        # is larger, stands in.
        together = [value for values in present.values() for value in values]
        present = dict[str | None, list[float]]({None: together})
    if any(len(values) < 2 for values in present.values()):
        return _by_three_over_tasks(strata, weights, limits)
    shares = _shares(present, weights)
    mean = sum(share * _average(present[name]) for name, share in shares.items())
    spread = sum(
        share**2 * variance(present[name]) / len(present[name]) for name, share in shares.items()
    )
    half = _Z * math.sqrt(spread)
    if 2 * half < _NO_WIDTH:
        return _by_three_over_tasks(strata, weights, limits)
    return Interval(max(mean - half, limits[0]), min(mean + half, limits[1]), "clustered")


def _by_three_over_tasks(
    strata: Strata, weights: Mapping[str | None, float] | None, limits: tuple[float, float]
) -> Interval:
    """Around tasks that all say the same, each stratum for itself."""
    present = _present(strata)
    low = high = 0.0
    for name, share in _shares(present, weights).items():
        mean = _average(present[name])
        other = min(3 / len(present[name]), 1.0)
        low += share * (mean - other * (mean - limits[0]))
        high += share * (mean + other * (limits[1] - mean))
    return Interval(low, high, "3/T")


def _present(strata: Strata) -> dict[str | None, list[float]]:
    """Strata with their values, those without one left out."""
    found = {name: [each for each in values if each is not None] for name, values in strata.items()}
    return {name: values for name, values in found.items() if values}


def _shares(
    present: Mapping[str | None, Sequence[float]], weights: Mapping[str | None, float] | None
) -> dict[str | None, float]:
    """What each stratum weighs in the mean."""
    sizes = {name: len(values) if weights is None else weights[name]
             for name, values in present.items()}  # fmt: skip
    total = sum(sizes.values())
    return {name: size / total for name, size in sizes.items()}


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
