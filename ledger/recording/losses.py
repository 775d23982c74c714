"""What a recorder had to give up, counted until a `producer_lost` fact says it."""

from __future__ import annotations

import threading
from typing import Any

from ledger.facts.lists import LossReason


class Losses:
    """Counts by reason and kind of fact, each with what was wrong with the first. Thread-safe."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may record in the middle of a call of its own thread.
        self._lock = threading.RLock()
        self._untold: dict[tuple[LossReason, str | None], dict[str, Any]] = {}
        self.total = 0
        """Facts given up so far."""
        self.untaken = 0
        """Of these, facts that never got on the queue."""

    def add(self, reason: LossReason, fact: str, detail: str) -> None:
        """One fact is lost. `detail` says value, rule and place."""
        with self._lock:
            self.total += 1
            self.untaken += reason is LossReason.QUEUE_FULL
            first = {"reason": reason, "count": 0, "first_fact": fact, "detail": detail}
            self._untold.setdefault((reason, fact), first)["count"] += 1

    def add_damaged(self, count: int, detail: str) -> None:
        """Facts were in a spool file that can't be read any more."""
        if count > 0:
            with self._lock:
                self.total += count
                reason = LossReason.SPOOL_DAMAGED
                first = {"reason": reason, "count": 0, "first_fact": None, "detail": detail}
                self._untold.setdefault((reason, None), first)["count"] += count

    def add_untold(self, count: int) -> None:
        """Facts are lost at a time, or in a way, that no `producer_lost` can say."""
        with self._lock:
            self.total += count

    def take(self) -> list[dict[str, Any]]:
        """Fields of the `producer_lost` facts that are due; they count as told."""
        if not self._untold:
            return []
        with self._lock:
            untold, self._untold = self._untold, {}
            return list(untold.values())
