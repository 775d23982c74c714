"""Where a log's records lie in its copy, and what facts say of positions, moved along.

A decision is made again at its cut, and a restart reads on at positions that were recorded: both
are offsets of the log that they were recorded in.

Invariant: a position means the same records in the copy, but for those that it lacks.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from functools import cache
from typing import cast

from ledger.avro import decode_datum, encode, wire_types, writer_schema_of
from ledger.log import TopicPartition
from ledger.wire.checks import Datum

_FIELDS = frozenset({"low_water", "batch_positions"})
"""Fields of facts that hold positions; those of a cut lie in it."""


@dataclasses.dataclass(slots=True)
class _Stretches:
    """Unbroken stretches of the records that are kept, in order: column by column."""

    first: list[int] = dataclasses.field(default_factory=list[int])
    """Offset of the first record in the source."""
    end: list[int] = dataclasses.field(default_factory=list[int])
    """Behind the last one."""
    moved: list[int] = dataclasses.field(default_factory=list[int])
    """Offset of the first record in the copy."""


class Relocation:
    """Offsets of a source's records -> offsets of an empty log that they are copied to."""

    def __init__(self) -> None:
        self._places: dict[str, _Stretches] = {}

    def keep(self, place: TopicPartition, offset: int) -> None:
        """The copy gets this record. To be called in the order of offsets."""
        found = self._places.setdefault(str(place), _Stretches())
        if found.end and found.end[-1] == offset:
            found.end[-1] = offset + 1
            return
        kept = found.moved[-1] + found.end[-1] - found.first[-1] if found.end else 0
        found.first.append(offset)
        found.end.append(offset + 1)
        found.moved.append(kept)

    def moved(self, place: str, offset: int) -> int:
        """How many records before `offset` the copy has: the same position there."""
        found = self._places.get(place, _Stretches())
        at = bisect_right(found.first, offset) - 1
        if at < 0:
            return 0
        return found.moved[at] + min(offset, found.end[at]) - found.first[at]

    def moved_in(self, record: bytes) -> bytes:
        """`record` with the copy's positions in place of the source's; the same object where it
        tells none, or they are no others. Raises DecodeError."""
        if writer_schema_of(record).wire.name not in _told_of():
            return record
        wire, datum = decode_datum(record)
        changed = [self._move(datum, name) for name in _FIELDS & datum.keys()]
        if (cut := datum.get("cut")) is not None:
            changed.append(self._move(cast(Datum, cut), "positions"))
        return encode(wire, datum) if any(changed) else record

    def _move(self, datum: Datum, name: str) -> bool:
        told = cast(dict[str, int], datum[name])
        datum[name] = {place: self.moved(place, offset) for place, offset in told.items()}
        return datum[name] != told


@cache
def _told_of() -> frozenset[str]:
    """Facts that tell positions."""
    return frozenset(
        name
        for name, wire in wire_types().items()
        if {"cut", *_FIELDS} & {field.name for field in dataclasses.fields(wire.cls)}
    )
