"""The wire: facts as bytes and back, and a clear error for all that is no fact."""

from __future__ import annotations

import dataclasses
import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from fastavro.schema import to_parsing_canonical_form
from hypothesis import given, settings

from ledger.avro import (
    HEADER_BYTES,
    MAX_FACT_BYTES,
    DecodeError,
    FactTooLarge,
    UnknownSchema,
    check_size,
    decode,
    encode,
    encode_fact,
    header_of,
    wire_types,
)
from ledger.facts import FACTS, Excerpt, Fact, ProducerAlive, TurnCompleted
from ledger.rendering.render import ROOT
from tests.builders import ANY_SPEED, a_fact, a_turn, any_fact, plain
from tests.released import HERE

ALIVE = ProducerAlive(
    event_id="019b7ca9-8c88-7ea5-88eb-c87be6dfb48c",
    run_id="d33b9331-64e3-570d-8b70-eb9858ac6508",
    occurred_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    producer="agent",
    incarnation="fdb19868-b091-5f71-b0d7-da162a1ad291",
    producer_seq=7,
    accepted=-2,
    last_seq=300,
    interval_s=10.0,
)
ALIVE_BYTES = [
    ("c301", "the marker"),
    ("00364364d968e5c8", "CRC-64-AVRO of the schema, lowest byte first"),
    ("48", "event_id: 36 characters"),
    ("30313962376361392d386338382d376561352d383865622d633837626536646662343863", ""),
    ("48", "run_id"),
    ("64333362393333312d363465332d353730642d386237302d656239383538616336353038", ""),
    ("02", "occurred_at: not null"),
    ("8ccde7e4ded7a306", "1767323045000006 microseconds"),
    ("0a6167656e74", "producer: 5 characters"),
    ("48", "incarnation"),
    ("66646231393836382d623039312d356637312d623064372d646131363261316164323931", ""),
    ("0e", "producer_seq: 7"),
    ("00", "time_quality: exact"),
    ("00", "source_ref: null"),
    ("03", "accepted: -2"),
    ("d804", "last_seq: 300"),
    ("0000000000002440", "interval_s: 10.0"),
]


@settings(ANY_SPEED, max_examples=400)
@given(any_fact())
def test_any_fact_comes_back_as_it_was(fact: Fact) -> None:
    assert repr(plain(decode(encode_fact(fact)))) == repr(plain(fact))


@pytest.mark.parametrize("only_required", [False, True])
@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_comes_back_as_an_equal_object(name: str, only_required: bool) -> None:
    fact = a_fact(name, only_required=only_required)
    assert decode(encode_fact(fact)) == fact


def test_the_bytes_of_a_fact_are_these() -> None:
    value = encode_fact(ALIVE)
    assert value.hex() == "".join(text for text, _ in ALIVE_BYTES)
    assert decode(value) == ALIVE


def test_a_fact_in_another_time_zone_is_the_same_moment() -> None:
    tokyo = timezone(timedelta(hours=9))
    local = datetime(2026, 1, 2, 12, 4, 5, 6, tzinfo=tokyo)
    assert encode_fact(dataclasses.replace(ALIVE, occurred_at=local)) == encode_fact(ALIVE)


def test_ids_may_be_uuid_objects() -> None:
    run_id: Any = uuid.UUID(ALIVE.run_id)
    assert encode_fact(dataclasses.replace(ALIVE, run_id=run_id)) == encode_fact(ALIVE)


def test_a_member_of_a_group_may_name_its_trajectory_by_a_uuid_object() -> None:
    group = a_fact("group_decided")
    member = group.members[0]
    ids = uuid.UUID(member.trajectory_id)
    same = dataclasses.replace(group, members=[dataclasses.replace(member, trajectory_id=ids)])
    expected = dataclasses.replace(group, members=[member])
    assert decode(encode_fact(same)) == expected


def test_an_int_is_taken_for_a_float() -> None:
    fact = decode(encode_fact(a_turn(client_s=2)))
    assert isinstance(fact, TurnCompleted)
    assert repr(fact.client_s) == "2.0"


# What can't be decoded


def test_an_unknown_fingerprint_is_an_unknown_schema() -> None:
    value = b"\xc3\x01" + bytes.fromhex("00112233445566ff") + b"body"
    with pytest.raises(
        UnknownSchema, match="fingerprint 00112233445566ff belongs to no known fact"
    ):
        decode(value)


def test_the_confluent_framing_is_named_where_no_registry_is_asked() -> None:
    with pytest.raises(UnknownSchema, match="Confluent framing with schema 7, which needs"):
        decode(b"\x00\x00\x00\x00\x07body!")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"", r"got nothing \(0 bytes\)"),
        (b"\xc3", r"got c3 \(1 bytes\)"),
        (b"\xc3\x01\x02\x03", r"got c3010203 \(4 bytes\)"),
        (b'{"event": "turn"}', r"got 7b226576656e74223a20 \(17 bytes\)"),
    ],
)
def test_bytes_without_the_marker_are_no_fact(value: bytes, shown: str) -> None:
    with pytest.raises(DecodeError, match=f"must begin with c301 and an 8-byte .*{shown}"):
        decode(value)


@pytest.mark.parametrize("name", ["turn_completed", "group_decided", "step_completed"])
def test_a_truncated_fact_is_refused_at_every_length(name: str) -> None:
    value = encode_fact(a_fact(name))
    for length in range(HEADER_BYTES):
        with pytest.raises(DecodeError, match="must begin with c301"):
            decode(value[:length])
    for length in range(HEADER_BYTES, len(value)):
        with pytest.raises(DecodeError, match=f"{name} is truncated or damaged"):
            decode(value[:length])


@pytest.mark.parametrize("name", sorted(wire_types()))
def test_one_byte_too_many_is_refused(name: str) -> None:
    value = (HERE / f"{name}.1.avsc.bin").read_bytes()
    with pytest.raises(DecodeError, match=f"{name} must end with its last field, got 1 trailing"):
        decode(value + b"\x00")


def test_a_damaged_text_is_refused() -> None:
    value = encode_fact(ALIVE).replace(b"agent", b"ag\xffnt")
    with pytest.raises(DecodeError, match="producer_alive is truncated or damaged: 'utf-8'"):
        decode(value)


def test_a_time_that_no_calendar_has_is_refused() -> None:
    wire = wire_types()["producer_alive"]
    value = encode(wire, fields_as_datum(ALIVE, occurred_at=10**18))
    with pytest.raises(DecodeError, match="producer_alive is truncated or damaged: date value out"):
        decode(value)


def test_a_fact_larger_than_the_limit_is_refused_when_read() -> None:
    wire = wire_types()["run_declared"]
    large = a_fact("run_declared", configuration="x" * MAX_FACT_BYTES)
    value = encode(wire, fields_as_datum(large))
    with pytest.raises(
        DecodeError, match=f"must be at most 262144 bytes encoded, got {len(value)}"
    ):
        decode(value)


def test_a_fact_over_256_kib_is_refused() -> None:
    room = MAX_FACT_BYTES - len(encode_fact(a_fact("run_declared", configuration="x" * 200_000)))
    fits = encode_fact(a_fact("run_declared", configuration="x" * (200_000 + room)))
    assert len(fits) == 262_144
    with pytest.raises(FactTooLarge) as caught:
        encode_fact(a_fact("run_declared", configuration="x" * (200_001 + room)))
    assert str(caught.value) == "run_declared must be at most 262144 bytes encoded, got 262145"


def test_a_payload_of_tokens_may_be_larger_than_a_fact() -> None:
    assert check_size(wire_types()["turn_tokens"], b"x" * 300_000) == b"x" * 300_000


# Long text


def test_an_exception_of_954061_characters_is_kept_as_size_digest_head_and_tail() -> None:
    text = "".join(f"line {i}\n" for i in range(100_000))[:954_061]
    text += "E" * (954_061 - len(text))
    fact = decode(encode_fact(a_fact("turn_failed", error=text)))
    assert not isinstance(fact, Excerpt)
    error: Excerpt = fact.error  # type: ignore[union-attr]
    assert error.size == 954_061
    assert error.sha256 == "dd632ffd383fce6665edbec771d70d084d8e6d35110098d980150106c357d134"
    assert error.head == text[:2_000]
    assert error.tail == text[-2_000:]
    assert not error.whole


@pytest.mark.parametrize("size", [0, 1, 4_000])
def test_a_text_that_fits_is_kept_whole(size: int) -> None:
    kept = Excerpt.of("é" * size)
    assert (kept.size, kept.head, kept.tail, kept.whole) == (size, "é" * size, "", True)


def test_a_text_one_character_longer_loses_it_in_the_middle() -> None:
    kept = Excerpt.of("a" * 2_000 + "b" + "c" * 2_000)
    assert (kept.size, kept.head, kept.tail) == (4_001, "a" * 2_000, "c" * 2_000)


def test_a_lone_surrogate_in_a_long_text_is_kept_as_its_escape() -> None:
    kept = Excerpt.of("a\udc80b")
    assert (kept.size, kept.head) == (3, "a\\udc80b")
    fact: Any = decode(encode_fact(a_fact("turn_failed", error="a\udc80b")))
    assert fact.error == kept


# Fingerprints


def test_the_documentation_in_a_schema_does_not_change_its_fingerprint() -> None:
    for name, wire in wire_types().items():
        path = ROOT / "schemas" / f"{name}.avsc"
        assert header_of(json.loads(path.read_text())) == wire.header


def test_the_fingerprint_is_the_one_that_avro_specifies() -> None:
    wire = wire_types()["producer_alive"]
    assert rabin(b'"int"') == 0x7275D51A3F395C8F  # a test vector of Avro's own
    fingerprint = rabin(to_parsing_canonical_form(wire.schema).encode())
    assert wire.header == b"\xc3\x01" + fingerprint.to_bytes(8, "little")


def test_no_two_schemas_have_one_fingerprint() -> None:
    headers = [wire.header for wire in wire_types().values()]
    assert len(set(headers)) == len(headers) == len(FACTS) + 3


def fields_as_datum(fact: Fact, **changed: Any) -> dict[str, Any]:
    """The datum of a fact with fields that no check has seen."""
    wire = next(wire for wire in wire_types().values() if wire.cls is type(fact))
    return (
        wire.check.datum(
            {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
        )
        | changed
    )


def rabin(data: bytes) -> int:
    """CRC-64-AVRO, bit by bit, as in the specification."""
    empty = fingerprint = 0xC15D213AA4D7A795
    for byte in data:
        fingerprint ^= byte
        for _ in range(8):
            fingerprint = fingerprint >> 1 ^ (empty if fingerprint & 1 else 0)
    return fingerprint
