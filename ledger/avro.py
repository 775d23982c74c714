"""The wire: a fact as bytes, and back.

A fact is written in Avro's single-object encoding: the marker C3 01, the schema's CRC-64-AVRO
fingerprint (8 bytes, little-endian), the body. A reader finds the writer's schema by the
fingerprint among the current ones and every one ever released (`schemas/released/`), and resolves
it to the current class. What is not exactly one known record is an error, never a guess.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import cast

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ledger.batches import BatchChunk, TrainingBatch
from ledger.facts import FACTS, Fact
from ledger.log import Topic
from ledger.tokens import TurnTokens
from ledger.wire.checks import Datum, InvalidFact, RecordCheck
from ledger.wire.objects import build
from ledger.wire.schema import NAMESPACE, Schema, avro_schema

# fastavro's stubs leave type arguments out.
_write = cast(Callable[..., None], fastavro.schemaless_writer)  # pyright: ignore[reportUnknownMemberType]
_read = cast(Callable[..., object], fastavro.schemaless_reader)  # pyright: ignore[reportUnknownMemberType]

MARKER = b"\xc3\x01"
HEADER_BYTES = 10
MAX_FACT_BYTES = 256 * 1024
"""A fact is at most this large, header included. Long text is kept as an Excerpt."""


class DecodeError(ValueError):
    """Bytes that aren't one record of a known schema; the message says value, rule and place."""


class UnknownSchema(DecodeError):
    """The fingerprint belongs to no schema that this version knows."""


class FactTooLarge(InvalidFact):
    """A fact is over MAX_FACT_BYTES."""


@dataclass(frozen=True, slots=True)
class WireType:
    """How one class travels."""

    name: str
    """`turn_completed`."""
    cls: type
    """The dataclass."""
    topic: Topic
    """Where it goes."""
    schema: Schema
    """Parsed by fastavro."""
    header: bytes
    """(10,) marker and fingerprint."""
    check: RecordCheck
    """Turns a caller's fields into a datum."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema that bytes may have been written with."""

    wire: WireType
    """The class that it is read as."""
    schema: Schema
    """Parsed by fastavro."""
    released: str | None
    """File in `schemas/released/`; null: the current one."""


def header_of(schema: Schema) -> bytes:
    """The 10 bytes before a body written with `schema`."""
    # fastavro prints the fingerprint as it lies in memory: the little-endian bytes of the wire.
    return MARKER + bytes.fromhex(_fingerprint(to_parsing_canonical_form(schema)))


@cache
def _fingerprint(canonical: str) -> str:
    """Computed in Python, a millisecond each; most released schemas are current ones too."""
    return fingerprint(canonical, "CRC-64-AVRO")


def wire_type(cls: type, name: str, topic: Topic) -> WireType:
    """The wire type of a dataclass that travels under `name`."""
    schema = cast(Schema, fastavro.parse_schema(avro_schema(cls)))
    return WireType(name, cls, topic, schema, header_of(schema), RecordCheck(cls, name))


@cache
def wire_types() -> dict[str, WireType]:
    """The wire type of every fact and payload, by its name."""
    facts = {name: wire_type(cls, name, "events") for name, cls in FACTS.items()}
    return facts | {
        "turn_tokens": wire_type(TurnTokens, "turn_tokens", "tokens"),
        "batch_chunk": wire_type(BatchChunk, "batch_chunk", "batches"),
        "training_batch": wire_type(TrainingBatch, "training_batch", "batches"),
    }


@cache
def writer_schemas() -> dict[bytes, WriterSchema]:
    """Every schema that a fact or payload may have been written with, by header."""
    known: dict[bytes, WriterSchema] = {}
    by_record = {f"{NAMESPACE}.{wire.cls.__name__}": wire for wire in wire_types().values()}
    for file in sorted(resources.files("schemas").joinpath("released").iterdir(), key=str):
        if file.name.endswith(".avsc"):
            raw = cast(Schema, json.loads(file.read_text()))
            schema = cast(Schema, fastavro.parse_schema(raw))
            wire = by_record[schema["name"]]
            known[header_of(schema)] = WriterSchema(wire, schema, file.name)
    for wire in wire_types().values():
        known[wire.header] = WriterSchema(wire, wire.schema, None)
    return known


def encode(wire: WireType, datum: Datum) -> bytes:
    """A checked datum as bytes. Raises InvalidFact, FactTooLarge."""
    out = io.BytesIO()
    out.write(wire.header)
    try:
        _write(out, wire.schema, datum, strict=True)
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        wire.check.explain(datum)
        raise InvalidFact(f"{wire.name} can't be encoded: {error}") from error
    return out.getvalue()


def encode_fact(fact: Fact) -> bytes:
    """A fact as bytes. Raises InvalidFact (field and rule), FactTooLarge."""
    wire = next(wire for wire in wire_types().values() if wire.cls is type(fact))
    fields = {name: getattr(fact, name) for name in fact.__dataclass_fields__}
    return check_size(wire, encode(wire, wire.check.datum(fields)))


def too_large(wire: WireType, value: bytes) -> bool:
    """Whether `value` is larger than a fact may be. Payloads have only the log's own limit."""
    return len(value) > MAX_FACT_BYTES and wire.topic == "events"


def check_size(wire: WireType, value: bytes) -> bytes:
    """`value`, if it isn't too large for a fact."""
    if too_large(wire, value):
        raise FactTooLarge(
            f"{wire.name} must be at most {MAX_FACT_BYTES} bytes encoded, got {len(value)}"
        )
    return value


def writer_schema_of(value: bytes) -> WriterSchema:
    """The schema that a fact's bytes were written with. Raises DecodeError, UnknownSchema."""
    known = writer_schemas().get(value[:HEADER_BYTES])
    if known is not None:
        return known
    if value[:1] == b"\0" and len(value) >= 5:
        number = int.from_bytes(value[1:5], "big")
        raise UnknownSchema(
            f"this looks like the Confluent framing with schema {number}, which needs a log URL"
            " with a schema_registry that knows it as one of Rollbook's"
        )
    if len(value) < HEADER_BYTES or value[:2] != MARKER:
        raise DecodeError(
            f"a fact must begin with {MARKER.hex()} and an 8-byte fingerprint,"
            f" got {value[:HEADER_BYTES].hex() or 'nothing'} ({len(value)} bytes)"
        )
    raise UnknownSchema(
        f"schema fingerprint {value[2:HEADER_BYTES].hex()} belongs to no known fact"
        " (was it written by a newer version?)"
    )


def decode_datum(value: bytes) -> tuple[WireType, Datum]:
    """Bytes -> the fact's wire type and its fields as plain values.

    Raises UnknownSchema, DecodeError (no marker, truncated, trailing bytes, too large, not of the
    schema)."""
    writer = writer_schema_of(value)
    wire = writer.wire
    if too_large(wire, value):
        raise DecodeError(
            f"{wire.name} must be at most {MAX_FACT_BYTES} bytes encoded, got {len(value)}"
        )
    return wire, decode_body(value[HEADER_BYTES:], writer.schema, wire)


def decode_body(body: bytes, writer: Schema, wire: WireType) -> Datum:
    """A body without its header, read as the current class."""
    source = io.BytesIO(body)
    try:
        datum = cast(Datum, _read(source, writer, wire.schema))
    except Exception as error:  # the reader raises whatever the garbage leads it to
        reason = str(error) or type(error).__name__
        raise DecodeError(f"{wire.name} is truncated or damaged: {reason}") from error
    if rest := len(body) - source.tell():
        raise DecodeError(f"{wire.name} must end with its last field, got {rest} trailing bytes")
    return datum


def decode(value: bytes) -> Fact | TurnTokens | BatchChunk | TrainingBatch:
    """Bytes -> the fact or payload. Raises UnknownSchema, DecodeError."""
    wire, datum = decode_datum(value)
    return cast(Fact | TurnTokens | BatchChunk | TrainingBatch, build(wire.cls, datum))
