"""Posted facts beside those that the book has under their ids.

The judgement is the projector's own (`consumers/dedupe.py`), made before anything is appended. It
knows what the book has read: two requests that come at the same time are the audit's.
"""

from __future__ import annotations

from collections.abc import Sequence

from api.server.places import show
from api.server.posted import Checked, place_of
from api.server.problems import Fault, Problem
from api.server.reading import Reading, Readings
from consumers.decode import decode_batches
from consumers.dedupe import HighestIds, judge
from ledger.log import RecordBatch


def refuse_conflicts(readings: Readings, found: Sequence[Checked]) -> None:
    """Raise Problem with every fact whose id the book, or the request before it, has for another
    one."""
    with readings.open() as reading:
        numbers = sorted(_of_two_kinds(found) | _conflicts(reading, found))
        rule = (
            "an id must stand for one fact; the book, as of"
            f" {show(reading.positions) or 'its start'}, or this request has another one under it"
        )
    if numbers:
        faults = [
            Fault(place=place_of(number), rule=rule, value=found[number].event_id)
            for number in numbers
        ]
        raise Problem.of(409, "conflict", faults)


def _conflicts(reading: Reading, found: Sequence[Checked]) -> set[int]:
    highest = HighestIds(reading.cursor)
    return {
        reject.place.offset
        for facts in decode_batches([_as_read(found)]).facts
        for reject in judge(reading.cursor, highest, facts).conflicts
    }


def _of_two_kinds(found: Sequence[Checked]) -> set[int]:
    """The judgement is by kind, and knows other kinds' ids only once they are in the book."""
    kinds: dict[str, str] = {}
    return {
        number
        for number, each in enumerate(found)
        if kinds.setdefault(each.event_id, each.draft.name) != each.draft.name
    }


def _as_read(found: Sequence[Checked]) -> RecordBatch:
    """Facts as if they had been read from a log, each at its place in the request."""
    keys, values = zip(*(each.record for each in found), strict=True)
    n = len(found)
    return RecordBatch("events", 0, list(range(n)), [0] * n, list(keys), list(values), n)
