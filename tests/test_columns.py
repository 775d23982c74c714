"""The fast path gives what the reference gives, or gives up; it never takes what is no fact."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.avro import (
    HEADER_BYTES,
    DecodeError,
    WireType,
    decode_body,
    decode_datum,
    encode_fact,
    wire_types,
)
from ledger.facts import FACTS, Fact
from ledger.wire.columns import ColumnarFailure, arrow_schema, decode_bodies, encode_rows
from tests.builders import ANY_SPEED, a_fact, a_turn, plain, records

Facts = tuple[WireType, list[Fact]]


def facts_of_one_kind(max_size: int) -> st.SearchStrategy[Facts]:
    """One to `max_size` facts, all of one kind."""
    return st.one_of(
        [
            st.tuples(
                st.just(wire_types()[name]), st.lists(records(cls), min_size=1, max_size=max_size)
            )
            for name, cls in FACTS.items()
        ]
    )


@settings(ANY_SPEED, max_examples=250)
@given(facts_of_one_kind(3))
def test_any_facts_are_the_same_bytes_on_both_paths(given: Facts) -> None:
    wire, facts = given
    assert encode_rows(wire, [fields(fact) for fact in facts]) == [encode_fact(f) for f in facts]


@settings(ANY_SPEED, max_examples=250)
@given(facts_of_one_kind(3))
def test_any_facts_are_the_same_values_on_both_paths(given: Facts) -> None:
    wire, facts = given
    values = [encode_fact(fact) for fact in facts]
    rows = rows_of(decode_bodies(wire, [value[HEADER_BYTES:] for value in values]))
    assert repr(rows) == repr([plain(decode_datum(value)[1]) for value in values])


@pytest.mark.parametrize("only_required", [False, True])
@pytest.mark.parametrize("name", sorted(FACTS))
def test_many_facts_of_a_kind_are_the_same_on_both_paths(name: str, only_required: bool) -> None:
    wire = wire_types()[name]
    facts = [a_fact(name, seed=seed, only_required=only_required) for seed in range(20)]
    values = encode_rows(wire, [fields(fact) for fact in facts])
    assert values == [encode_fact(fact) for fact in facts]
    decoded = decode_bodies(wire, [value[HEADER_BYTES:] for value in values])
    assert decoded.schema == arrow_schema(wire.cls)
    assert rows_of(decoded) == [plain(fact) for fact in facts]


def test_fields_that_a_caller_leaves_out_get_their_defaults() -> None:
    turn = a_turn(segment=0, version_spans=[])
    defaults = {"segment", "version_spans", "time_quality", "tokens_sha256", "source_ref"}
    short = {name: value for name, value in fields(turn).items() if name not in defaults}
    rows = [short, fields(turn)]
    assert encode_rows(wire_types()["turn_completed"], rows) == [encode_fact(turn)] * 2


# What the fast path must give up on


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"turn_no": 1.5}, "turn_completed.turn_no must be int, got 1.5"),
        ({"turn_no": 2**63}, "too large"),
        ({"turn_no": None}, "turn_completed.turn_no must be int, got None"),
        ({"engine": "a\ud800"}, "surrogates not allowed"),
        ({"run_id": "run-7"}, "turn_completed.run_id must be a lower-case UUID"),
        ({"occurred_at": 10**18}, "turn_completed.occurred_at must lie in the years 1 to 9999"),
        ({"client_s": 10**400}, "turn_completed.client_s must fit in a double"),
        ({"turn_number": 1}, "a row has an unknown field"),
    ],
)
def test_one_invalid_row_is_given_up_with_all_others(changed: dict[str, Any], reason: str) -> None:
    rows = [fields(a_turn(0)), fields(a_turn(1)) | changed, fields(a_turn(2))]
    with pytest.raises(ColumnarFailure, match=reason):
        encode_rows(wire_types()["turn_completed"], rows)


def test_a_row_that_lacks_a_field_is_given_up() -> None:
    row = fields(a_turn(0))
    del row["turn_no"]
    with pytest.raises(ColumnarFailure, match="turn_no"):
        encode_rows(wire_types()["turn_completed"], [row])


@pytest.mark.parametrize("name", ["turn_completed", "group_decided", "step_completed"])
def test_a_truncated_record_is_given_up_at_every_length(name: str) -> None:
    body = body_of(a_fact(name))
    for length in range(len(body)):
        with pytest.raises(ColumnarFailure):
            decode_bodies(wire_types()[name], [body, body[:length]])


@pytest.mark.parametrize("name", sorted(FACTS))
@pytest.mark.parametrize("rest", [b"\x00", b"\xff", b"\x80" * 9, b"a whole other record"])
def test_trailing_bytes_are_given_up(name: str, rest: bytes) -> None:
    body = body_of(a_fact(name))
    with pytest.raises(ColumnarFailure):
        decode_bodies(wire_types()[name], [body, body + rest])


def test_two_records_in_one_value_are_given_up() -> None:
    body = body_of(a_turn(0))
    with pytest.raises(ColumnarFailure, match="a record doesn't end where its schema ends"):
        decode_bodies(wire_types()["turn_completed"], [body + body])


@pytest.mark.parametrize("text", [b"ag\xffnt", b"a\xed\xa0\x80t", b"ag\xc0\x80t"])
def test_text_that_is_no_utf8_is_given_up(text: bytes) -> None:
    body = body_of(a_turn(0, producer="agent"))
    with pytest.raises(ColumnarFailure, match="Invalid UTF8 sequence"):
        decode_bodies(wire_types()["turn_completed"], [body.replace(b"agent", text)])


def test_text_inside_a_record_that_is_no_utf8_is_given_up() -> None:
    body = body_of(a_fact("step_completed", metrics={"entropy": 0.5}))
    with pytest.raises(ColumnarFailure, match="Invalid UTF8 sequence"):
        decode_bodies(wire_types()["step_completed"], [body.replace(b"entropy", b"entr\xffpy")])


@pytest.mark.parametrize("name", ["batch_assembled", "group_decided"])
def test_a_time_inside_a_record_that_no_calendar_has_is_given_up(name: str) -> None:
    cut = dataclasses.replace(a_fact(name).cut, log_time=datetime(2030, 1, 1, tzinfo=UTC))
    body = body_of(a_fact(name, cut=cut))
    damaged = body.replace(long(1_893_456_000_000_000), long(10**18))
    assert damaged != body
    assert reference(wire_types()[name], damaged) is None
    with pytest.raises(ColumnarFailure, match="a time of cut lies outside of the years 1 to 9999"):
        decode_bodies(wire_types()[name], [body, damaged])


def test_a_map_with_one_key_twice_is_given_up() -> None:
    wire = wire_types()["step_completed"]
    body = body_of(a_fact("step_completed", metrics={"loss_a": 0.5, "loss_b": 0.25}))
    twice = body.replace(b"loss_b", b"loss_a")
    with pytest.raises(ColumnarFailure, match="a key of metrics occurs twice"):
        decode_bodies(wire, [body, twice])
    assert reference(wire, twice)["metrics"] == {"loss_a": 0.25}  # fastavro keeps the last one


@pytest.mark.parametrize("name", sorted(FACTS))
def test_noughts_and_ones_are_given_up(name: str) -> None:
    for garbage in (b"", b"\x00" * 500, b"\x01" * 500, b"\x02" * 500, b"\xff" * 500):
        check_verdict(wire_types()[name], garbage)


@settings(ANY_SPEED, max_examples=400)
@given(facts_of_one_kind(1), st.data())
def test_damaged_records_are_read_as_the_reference_reads_them_or_given_up(
    given: Facts, data: st.DataObject
) -> None:
    wire, (fact,) = given
    body = body_of(fact)
    start = data.draw(st.integers(0, len(body)), "start")
    end = data.draw(st.integers(start, min(len(body), start + 12)), "end")
    damage = data.draw(st.binary(max_size=12), "damage")
    check_verdict(wire, body[:start] + damage + body[end:])


@settings(ANY_SPEED, max_examples=250)
@given(
    st.sampled_from(sorted(FACTS)),
    st.lists(
        st.sampled_from([b"\0", b"\1", b"\2", b"\4", b"\x48", b"\xff", b"a" * 36]), max_size=80
    ),
)
def test_garbage_is_read_as_the_reference_reads_it_or_given_up(
    name: str, pieces: list[bytes]
) -> None:
    check_verdict(wire_types()[name], b"".join(pieces))


def check_verdict(wire: WireType, body: bytes) -> None:
    """What the fast path takes, the reference takes too and reads to the same values."""
    try:
        rows = rows_of(decode_bodies(wire, [body]))
    except ColumnarFailure:
        return
    assert repr(rows) == repr([reference(wire, body)])


def reference(wire: WireType, body: bytes) -> Any:
    """A row by fastavro; None when it refuses."""
    try:
        return plain(decode_body(body, wire.schema, wire))
    except DecodeError:
        return None


def rows_of(batch: pa.RecordBatch) -> list[Any]:
    """Rows of columns; their times are naive UTC."""
    return [plain(row) for row in batch.to_pylist(maps_as_pydicts="strict")]


def fields(fact: Fact) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in fact.__dataclass_fields__}


def body_of(fact: Fact) -> bytes:
    return encode_fact(fact)[HEADER_BYTES:]


def long(value: int) -> bytes:
    """An Avro long: zigzag, then seven bits to the byte, lowest first."""
    zigzag, groups = value << 1 ^ value >> 63, bytearray()
    while zigzag > 0x7F:
        groups.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*groups, zigzag])
