"""When to look again at which group, by the log's clock.

Invariant: a group that is due comes out at least once; that it comes out twice does no harm.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from consumers.assembling.cut import Now

Due = tuple[int, str]
"""Time by the log's clock in microseconds, and the group to look at then."""


class Timers:
    """Two heaps, since deadlines count only while time may end something (`Now.settled`)."""

    def __init__(self) -> None:
        self._looks: list[Due] = []
        self._deadlines: list[Due] = []

    def look(self, again_at_us: int, group_id: str) -> None:
        """Look at a group at a time, settled or not."""
        heapq.heappush(self._looks, (again_at_us, group_id))

    def deadline(self, at_us: int, group_id: str) -> None:
        """Look at a group at a time, once time may end something."""
        heapq.heappush(self._deadlines, (at_us, group_id))

    def due(self, now: Now) -> list[str]:
        """Groups whose time has come, taken off."""
        found: list[str] = []
        for heap in (self._looks, self._deadlines) if now.settled else (self._looks,):
            while heap and heap[0][0] <= now.us:
                found.append(heapq.heappop(heap)[1])
        return found

    def due_again(self, group_ids: Iterable[str]) -> None:
        """Groups that were due weren't looked at: it stays time. On both heaps, since which of
        them each came from isn't known."""
        for group_id in group_ids:
            self.look(0, group_id)
            self.deadline(0, group_id)
