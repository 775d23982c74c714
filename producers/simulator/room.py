"""Who starts when: trajectories wait for the concurrency, then for a sandbox slot.

Invariant: first come, first served; a place is taken from its holder's end on, never earlier.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Admission(NamedTuple):
    """When an attempt got its places, seconds of the run."""

    started_s: float
    """It counts as in flight from here."""
    slot_s: float
    """It has a sandbox slot from here; never before `started_s`."""


class Room:
    """Places in flight and sandbox slots, each by when it falls free."""

    def __init__(self) -> None:
        self._places: list[float] = []
        self._slots: list[float] = []

    def grow(self, at_s: float, concurrency: int, slots: int) -> None:
        """From now on there are so many places and slots, at least as many as before."""
        for heap, size in ((self._places, concurrency), (self._slots, slots)):
            for _ in range(size - len(heap)):
                heapq.heappush(heap, at_s)

    @property
    def next_s(self) -> float:
        """When the next attempt could start."""
        return self._places[0]

    def admit(self, asked_s: float) -> Admission:
        """Places for the next attempt, which must then `leave`."""
        started_s = max(asked_s, heapq.heappop(self._places))
        return Admission(started_s, max(started_s, heapq.heappop(self._slots)))

    def leave(self, at_s: float) -> None:
        """An attempt ended."""
        heapq.heappush(self._places, at_s)
        heapq.heappush(self._slots, at_s)
