"""Record batches of topic `events` -> one Arrow table per kind of fact, and what is no fact.

Pure: nothing here knows the book. The fast path decodes a whole column at a time; where it fails,
the records of that kind are decoded one by one, and each bad one is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from consumers.places import Place, Places, by_header, places_of
from ledger.avro import (
    HEADER_BYTES,
    MAX_FACT_BYTES,
    DecodeError,
    UnknownSchema,
    WireType,
    decode_datum,
    writer_schemas,
)
from ledger.log import RecordBatch
from ledger.wire.checks import InvalidFact
from ledger.wire.columns import ColumnarFailure, arrow_schema, decode_bodies
from ledger.wire.objects import build

_UTC = pa.timestamp("us", tz="UTC")
_PLACE = ("log_partition", "log_offset", "log_time")


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is no fact the book can take."""

    place: Place
    reason: str
    """undecodable, unknown_schema, misplaced, conflict"""
    detail: str
    """Value, rule and place."""
    event_id: str | None = None
    incarnation: str | None = None
    producer_seq: int | None = None


@dataclass(frozen=True, slots=True)
class DecodedFacts:
    """Facts of one kind: (n,) columns and the (n,) records that they come from."""

    wire: WireType
    table: pa.Table
    """log_partition, log_offset, log_time, then the fact's columns."""
    places: Places

    def take(self, rows: Sequence[int]) -> DecodedFacts:
        """Some of them."""
        picked = pa.array(rows, pa.int64())
        return DecodedFacts(self.wire, self.table.take(picked), self.places.take(rows))


@dataclass(slots=True)
class Decoded:
    """What became of some record batches."""

    facts: list[DecodedFacts] = field(default_factory=list[DecodedFacts])
    rejects: list[Reject] = field(default_factory=list[Reject])


def decode_batches(batches: Iterable[RecordBatch]) -> Decoded:
    """Decode every record of `batches`, in order within each kind of fact."""
    decoded = Decoded()
    known = writer_schemas()
    for header, places in by_header(places_of(batches), HEADER_BYTES).items():
        writer = known.get(header)
        if writer is None or writer.released or not _fast(writer.wire, places, decoded):
            _one_by_one(places, decoded)
    return decoded


def _fast(wire: WireType, places: Places, decoded: Decoded) -> bool:
    if wire.topic != "events" or max(map(len, places.values)) > MAX_FACT_BYTES:
        return False
    try:
        columns = decode_bodies(wire, [value[HEADER_BYTES:] for value in places.values])
    except ColumnarFailure:
        return False
    decoded.facts.append(DecodedFacts(wire, _with_places(columns, places), places))
    return True


def _one_by_one(places: Places, decoded: Decoded) -> None:
    """Facts of one header, whichever of them can be decoded."""
    data: list[dict[str, Any]] = []
    kept: list[int] = []
    wire: WireType | None = None
    for row, value in enumerate(places.values):
        try:
            wire, datum = decode_datum(value)
        except UnknownSchema as error:
            decoded.rejects.append(Reject(places.at(row), "unknown_schema", str(error)))
        except DecodeError as error:
            decoded.rejects.append(Reject(places.at(row), "undecodable", str(error)))
        else:
            if wire.topic == "events":
                data.append(datum)
                kept.append(row)
            else:
                detail = f"{wire.name} belongs in topic {wire.topic}, found in events"
                decoded.rejects.append(Reject(places.at(row), "misplaced", detail))
    if wire is not None and kept:
        columns = pa.RecordBatch.from_pylist(data, schema=arrow_schema(wire.cls))
        of_kept = places.take(kept)
        decoded.facts.append(DecodedFacts(wire, _with_places(columns, of_kept), of_kept))


def weed_out(decoded: Decoded) -> Decoded:
    """Move to the rejects what could be decoded, but breaks a rule that Avro doesn't know, such
    as an id that is no UUID. One by one: for when a database has refused them all."""
    weeded = Decoded(rejects=list(decoded.rejects))
    for facts in decoded.facts:
        kept: list[int] = []
        for row, value in enumerate(facts.places.values):
            wire, datum = decode_datum(value)
            fact = build(wire.cls, datum)
            try:
                wire.check.datum({name: getattr(fact, name) for name in datum})
            except InvalidFact as error:
                weeded.rejects.append(Reject(facts.places.at(row), "undecodable", str(error)))
            else:
                kept.append(row)
        if kept:
            weeded.facts.append(facts.take(kept))
    return weeded


def _with_places(columns: pa.RecordBatch, places: Places) -> pa.Table:
    arrays: list[Any] = [
        pa.array(places.partitions, pa.int32()),
        pa.array(places.offsets, pa.int64()),
        pa.array(places.log_times_us, _UTC),
    ]
    for column in columns.columns:
        naive = pa.types.is_timestamp(column.type)  # Avro has no zone; ours is UTC by contract
        arrays.append(column.cast(_UTC) if naive else column)
    names = [*_PLACE, *columns.schema.names]
    return pa.Table.from_arrays(arrays, names=names)
