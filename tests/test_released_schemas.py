"""What was ever written can be read: released bytes, and facts of schemas that lack a field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from consumers.decode import decode_batches
from ledger.avro import (
    HEADER_BYTES,
    WriterSchema,
    decode,
    decode_datum,
    encode,
    encode_fact,
    wire_type,
    wire_types,
    writer_schemas,
)
from ledger.facts import TurnCompleted
from ledger.log import RecordBatch
from ledger.wire.schema import hints
from tests.builders import a_turn, plain
from tests.released import HERE, released_names, writer_of


@pytest.mark.parametrize("name", released_names())
def test_released_bytes_are_read_to_the_values_that_were_written(name: str) -> None:
    assert (HERE / f"{name}.bin").exists(), "run `python -m tests.released`"
    value = (HERE / f"{name}.bin").read_bytes()
    expected = json.loads((HERE / f"{name}.json").read_text())
    wire, datum = decode_datum(value)
    got = plain(decode(value))
    assert wire is writer_of(name).wire
    assert {field: got[field] for field in expected} == expected
    added = {field: got[field] for field in got.keys() - expected.keys()}
    fields = {field.name: field for field in dataclasses.fields(wire.cls)}
    assert added == {field: plain(default_of(fields[field])) for field in added}
    assert plain(datum) == got


@pytest.fixture
def older_turn(monkeypatch: pytest.MonkeyPatch) -> Callable[[TurnCompleted], bytes]:
    """Encodes a turn as a version did that had no segment, segment_reason or version_spans."""
    without = {"segment", "segment_reason", "version_spans"}
    fields = [
        (field.name, hints(TurnCompleted)[field.name], copy_of(field))
        for field in dataclasses.fields(TurnCompleted)
        if field.name not in without
    ]
    older = wire_type(
        dataclasses.make_dataclass("TurnCompleted", fields, kw_only=True),
        "turn_completed",
        "events",
    )
    current = wire_types()["turn_completed"]
    known = WriterSchema(current, older.schema, "turn_completed.0.avsc")
    monkeypatch.setitem(writer_schemas(), older.header, known)

    def encode_older(turn: TurnCompleted) -> bytes:
        given = {
            name: value for name, value in fields_as_given(turn).items() if name not in without
        }
        return encode(older, older.check.datum(given))

    return encode_older


def test_a_fact_of_an_older_schema_gets_the_defaults_of_the_fields_it_lacks(
    older_turn: Callable[[TurnCompleted], bytes],
) -> None:
    value = older_turn(a_turn(3, engine="e", segment=5, segment_reason="edited"))
    assert value[:HEADER_BYTES] != wire_types()["turn_completed"].header
    assert decode(value) == a_turn(3, engine="e", segment=0, version_spans=[])


def test_facts_of_an_older_schema_stand_beside_current_ones(
    older_turn: Callable[[TurnCompleted], bytes],
) -> None:
    values = [
        encode_fact(a_turn(0, segment=1)),
        older_turn(a_turn(1, segment=1)),
        older_turn(a_turn(2, segment=1)),
    ]
    batch = RecordBatch("events", 0, [0, 1, 2], [9, 9, 9], ["k", "k", "k"], values, 3)
    decoded = decode_batches([batch])
    assert decoded.rejects == []
    rows = [row for facts in decoded.facts for row in facts.table.to_pylist()]
    got = sorted((row["log_offset"], row["turn_no"], row["segment"]) for row in rows)
    assert got == [(0, 0, 1), (1, 1, 0), (2, 2, 0)]


def fields_as_given(fact: TurnCompleted) -> dict[str, Any]:
    return {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}


def copy_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    if field.default is not dataclasses.MISSING:
        return dataclasses.field(default=field.default)
    return dataclasses.field()


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
