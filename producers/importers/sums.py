"""Sums of figures that some files leave out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload


@overload
def sum_of_all(values: Iterable[int | None]) -> int | None: ...
@overload
def sum_of_all(values: Iterable[float | None]) -> float | None: ...
def sum_of_all(values: Iterable[float | None]) -> float | None:
    """Their sum; null where one of them is."""
    told = list(values)
    known = [each for each in told if each is not None]
    return sum(known) if len(known) == len(told) else None


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """The sum of those that aren't null; null where all of them are."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None
