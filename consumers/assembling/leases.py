"""Which producers still live, by the log's clock, and whose attempts they hold.

A producer's pulse comes every 10 s; one whose last record lies a lease back is dead, or cut off for
so long that its groups are not waited for any more. What it had spooled comes late.
"""

from __future__ import annotations

from consumers.assembling.cut import Now


class Leases:
    """Incarnations by the time of their last record."""

    def __init__(self) -> None:
        self.last_seen_us: dict[str, int] = {}
        """Incarnation -> log time of its last record, microseconds since the epoch."""
        self._closed: set[str] = set()
        self._groups: dict[str, set[str]] = {}
        self._holders: dict[str, list[str]] = {}
        self._told: set[str] = set()

    def seen(self, incarnation: str, log_time_us: int, group_id: str | None = None) -> None:
        """A record of it was read, maybe about a group that is open."""
        if log_time_us > self.last_seen_us.get(incarnation, -1):
            self.last_seen_us[incarnation] = log_time_us
        if group_id is not None:
            held = self._groups.setdefault(incarnation, set())
            if group_id not in held:
                held.add(group_id)
                self._holders.setdefault(group_id, []).append(incarnation)

    def closed(self, incarnation: str) -> None:
        """It ended in good order; nothing of it is to come."""
        self._closed.add(incarnation)

    def release(self, group_id: str) -> None:
        """A group is closed: nobody holds it any more, those who only judged it included."""
        for incarnation in self._holders.pop(group_id, ()):
            held = self._groups[incarnation]
            held.discard(group_id)
            if not held:
                del self._groups[incarnation]

    def silent(self, now: Now, lease_s: float) -> frozenset[str]:
        """Those that hold groups and are dead. Nobody, as long as time ends nothing."""
        if not now.settled:
            return frozenset()
        since_us = now.us - int(lease_s * 1e6)
        return frozenset(
            incarnation
            for incarnation in self._groups
            if incarnation in self._closed or self.last_seen_us.get(incarnation, 0) <= since_us
        )

    def newly_bereft(self, silent: frozenset[str]) -> set[str]:
        """Groups of those that fell silent since the last call."""
        found = {
            group_id
            for incarnation in silent - self._told
            for group_id in self._groups.get(incarnation, ())
        }
        self._told = set(silent)
        return found
