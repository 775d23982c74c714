"""Times of foreign clocks.

Invariants:

1. A time that names no zone is never taken for UTC: with a zone given by the user it is that
   zone's, without one it stays unknown, and is counted.
2. Seconds are computed between two times of one kind only: both with a zone, or both without.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from ledger.facts.lists import TimeQuality
from producers.importers.source import Json


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened, as far as that is known."""

    at: datetime | None
    """UTC; null: unknown."""
    quality: TimeQuality
    """How far `at` can be trusted; none where it is null."""
    local: datetime | None = None
    """By a clock whose zone nobody told; null: not such a time."""

    def derived(self) -> Moment:
        """The same time, of something that was not itself read from a clock then."""
        return self if self.at is None else Moment(self.at, TimeQuality.DERIVED)

    def phase_only(self) -> Moment:
        """The same time, of something that only lies in the phase which ends or begins then."""
        return self if self.at is None else Moment(self.at, TimeQuality.PHASE_ONLY)


UNKNOWN = Moment(None, TimeQuality.NONE)


class Clock:
    """Reads times, and counts those that name no zone."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self.unplaced = 0
        """Times without a zone that were left out."""

    def read(self, row: Json, name: str) -> Moment:
        """An ISO 8601 member; unknown where it is missing. Raises BadImport."""
        text = row.text(name)
        if text is None:
            return UNKNOWN
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise row.at(name).wrong("a time in ISO 8601") from None
        if time.tzinfo is None:
            if self._zone is None:
                self.unplaced += 1
                return Moment(None, TimeQuality.NONE, local=time)
            time = time.replace(tzinfo=self._zone)
        try:
            return Moment(time.astimezone(UTC), TimeQuality.EXACT)
        except OverflowError:
            raise row.at(name).wrong("a time in the years 1 to 9999 UTC") from None

    def notes(self) -> list[str]:
        """What to tell the user."""
        if not self.unplaced:
            return []
        return [
            f"{self.unplaced} times name no zone, so their facts have none:"
            " give the zone of that machine with --timezone"
        ]


def epoch(row: Json, name: str) -> Moment:
    """A member in seconds since the epoch; unknown where it is missing. Raises BadImport."""
    seconds = row.number(name)
    if seconds is None:
        return UNKNOWN
    try:
        return Moment(datetime.fromtimestamp(seconds, UTC), TimeQuality.EXACT)
    except (ValueError, OverflowError, OSError):
        raise row.at(name).wrong("seconds since the epoch") from None


def seconds(start: Moment, end: Moment) -> float | None:
    """Seconds from `start` to `end`; null where either is unknown or the two can't be compared."""
    if start.at is not None and end.at is not None:
        return (end.at - start.at).total_seconds()
    if start.local is not None and end.local is not None:
        return (end.local - start.local).total_seconds()
    return None


def earliest(moments: list[Moment]) -> Moment:
    """The first of the known ones, as something derived from them."""
    known = [each.at for each in moments if each.at is not None]
    return Moment(min(known), TimeQuality.DERIVED) if known else UNKNOWN
