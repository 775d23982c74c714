"""The log's clock, and the cut: all that a decision depended on beside its members' facts.

Invariant: time passes by the log's own clock. The wall's is used only once everything in the log
has been read for a whole lease without a break: an outage must not abandon what producers have
spooled meanwhile. The wall's is the monotonic one, counted from where the log's clock stood, so
that no two clocks are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from consumers.assembling.settings import AssemblerSettings
from ledger.facts import Cut
from ledger.log import TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Now:
    """A moment by the log's clock."""

    us: int
    """Microseconds since the epoch, UTC."""
    settled: bool
    """Whether time alone may end something: the log has been read to its end for a lease."""

    @property
    def time(self) -> datetime:
        """As a datetime, UTC."""
        return moment(self.us)


class LogClock:
    """Never steps back."""

    def __init__(self) -> None:
        self.us = 0
        """The latest time read, microseconds since the epoch."""
        self._caught_up_at: float | None = None
        self._base_us = 0

    def read(self, us: int) -> None:
        """A record of this time was read."""
        self.us = max(self.us, us)

    def caught_up(self, monotonic_s: float) -> None:
        """At this moment everything in the log had been read."""
        if self._caught_up_at is None:
            self._caught_up_at, self._base_us = monotonic_s, self.us

    def broken(self) -> None:
        """The log was away, or is more than a poll ahead: the lease counts anew."""
        self._caught_up_at = None

    def now(self, monotonic_s: float, lease_s: float) -> Now:
        """The time to decide by."""
        if self._caught_up_at is None:
            return Now(self.us, settled=False)
        waited_s = monotonic_s - self._caught_up_at
        if waited_s < lease_s:
            return Now(self.us, settled=False)
        self.read(self._base_us + int(waited_s * 1_000_000))
        return Now(self.us, settled=True)


def moment(us: int) -> datetime:
    """Microseconds since the epoch as a datetime, UTC."""
    return _EPOCH + timedelta(microseconds=us)


def cut_of(
    positions: Mapping[TopicPartition, int],
    now: Now,
    policy_version: int | None,
    settings: AssemblerSettings,
) -> Cut:
    """The cut of what is decided now, after everything before `positions` was read."""
    return Cut(
        positions={str(place): offset for place, offset in sorted(positions.items())},
        log_time=now.time,
        policy_version=policy_version,
        configuration=settings.canonical,
        configuration_sha256=settings.sha256,
    )
