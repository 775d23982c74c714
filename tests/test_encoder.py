"""A producer's facts get their numbers without a hole, whichever of them are refused."""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import Any

import pytest

from ledger.avro import FactTooLarge, decode
from ledger.facts import TimeQuality
from ledger.log import Record, check_sizes
from ledger.tokens import Tokens, TokensDamaged, TurnTokens, digest, pack, unpack
from ledger.wire.checks import InvalidFact
from ledger.wire.encoder import Draft, Encoded, FactEncoder
from tests.builders import AT, a_draft, a_v7_id, an_id

RUN, GROUP, TRAJECTORY = an_id("run"), an_id("group"), an_id("trajectory")
INCARNATION = an_id("incarnation")
TOKENS = Tokens([151644, 0, 2**31 - 1], [0, 0, 1], [0.0, 0.0, -0.1])
FEW, MANY = 3, 40
"""Drafts for the one-by-one and for the columnar path."""


def an_encoder() -> FactEncoder:
    return FactEncoder("agent", RUN, INCARNATION)


def turns(count: int, **fields: Any) -> list[Draft]:
    return [a_draft("turn_completed", seed=number, **fields) for number in range(count)]


def facts(encoded: Encoded) -> list[Any]:
    return [decode(record.value) for record in encoded.events]


def numbers(encoded: Encoded) -> list[int]:
    return [fact.producer_seq for fact in facts(encoded)]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_facts_are_numbered_from_0_in_the_order_of_their_drafts(count: int) -> None:
    encoder = an_encoder()
    encoded = encoder.encode(turns(count))
    assert numbers(encoded) == list(range(count))
    assert [fact.turn_no for fact in facts(encoded)] == list(range(count))
    assert numbers(encoder.encode(turns(2))) == [count, count + 1]
    assert encoder.next_seq == count + 2


@pytest.mark.parametrize("count", [FEW, MANY])
def test_refused_drafts_leave_no_hole_in_the_numbers(count: int) -> None:
    drafts = turns(count)
    drafts[0] = a_draft("turn_completed", turn_no="first")
    drafts.insert(2, Draft("turn_complete", {}, 0))
    drafts.append(a_draft("run_declared", configuration="x" * 300_000))
    encoder = an_encoder()
    encoded = encoder.encode(drafts)
    assert numbers(encoded) == list(range(count - 1))
    assert [fact.turn_no for fact in facts(encoded)] == list(range(1, count))
    assert encoder.next_seq == count - 1
    refused = {str(each.error): each.draft for each in encoded.refused}
    assert refused == {
        "there is no fact named 'turn_complete'": drafts[2],
        "turn_completed.turn_no must be int, got 'first' (str)": drafts[0],
        "run_declared must be at most 262144 bytes encoded, got 300175": drafts[-1],
    }
    assert [type(each.error) for each in encoded.refused] == [
        InvalidFact,
        InvalidFact,
        FactTooLarge,
    ]


def test_both_paths_give_the_same_facts() -> None:
    names = ["turn_completed", "turn_failed", "reward_assigned", "group_decided", "pool_sampled"]
    drafts = [
        a_draft(names[number % 5], seed=number, event_id=an_id("e", number)) for number in range(90)
    ]
    rare = a_draft("tool_call_completed", event_id=an_id("rare"))
    drafts.insert(45, rare)
    together, one_by_one = an_encoder(), an_encoder()
    columnar = together.encode(drafts)
    singly = [one_by_one.encode([draft]).events[0] for draft in drafts]
    assert columnar.events == singly
    assert numbers(columnar) == list(range(91))


@pytest.mark.parametrize("count", [1, MANY])
def test_a_required_field_that_may_be_null_must_be_given(count: int) -> None:
    step = a_draft("step_completed", event_id=an_id("step"))
    fields = {name: value for name, value in step.fields.items() if name != "batch_id"}
    encoded = an_encoder().encode([Draft(step.name, fields, step.recorded_us)] * count)
    assert encoded.events == []
    assert {str(each.error) for each in encoded.refused} == {
        "step_completed.batch_id is required, got none"
    }


def test_an_invalid_draft_among_many_changes_nothing_for_the_others() -> None:
    drafts = turns(MANY, event_id=an_id("event"))
    valid = an_encoder().encode(drafts)
    bad = a_draft("turn_completed", slot=None)
    assert an_encoder().encode([*drafts, bad]).events == valid.events


def test_the_envelope_is_filled_in() -> None:
    (fact,) = facts(an_encoder().encode([Draft("trainer_started", {}, 1_767_323_045_000_006)]))
    assert fact == dataclasses.replace(
        fact,
        run_id=RUN,
        occurred_at=AT,
        producer="agent",
        incarnation=INCARNATION,
        producer_seq=0,
        time_quality=TimeQuality.EXACT,
        source_ref=None,
    )
    assert uuid.UUID(fact.event_id).version == 7


def test_every_fact_has_an_id_of_its_own() -> None:
    ids = [fact.event_id for fact in facts(an_encoder().encode(turns(MANY)))]
    assert len(set(ids)) == MANY
    assert ids == sorted(ids)


def test_a_fact_of_another_run_keeps_its_run() -> None:
    encoded = an_encoder().encode([Draft("trainer_started", {"run_id": an_id("run", 2)}, 0)])
    assert facts(encoded)[0].run_id == an_id("run", 2)
    assert encoded.events[0].key == an_id("run", 2)


@pytest.mark.parametrize("quality", [TimeQuality.NONE, "none"])
def test_a_fact_without_a_known_time_has_none(quality: str) -> None:
    draft = Draft("trainer_started", {"time_quality": quality}, 1_767_323_045_000_006)
    (fact,) = facts(an_encoder().encode([draft]))
    assert (fact.time_quality, fact.occurred_at) == (TimeQuality.NONE, None)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_key_is_the_group_or_else_the_run(count: int) -> None:
    drafts = [*turns(count), Draft("trainer_started", {}, 0)]
    keys = [record.key for record in an_encoder().encode(drafts).events]
    assert keys == [GROUP] * count + [RUN]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_ids_may_be_uuid_objects(count: int) -> None:
    ids = {"run_id": RUN, "group_id": GROUP, "trajectory_id": TRAJECTORY, "event_id": an_id("e")}
    as_text = an_encoder().encode(turns(count, **ids, tokens=TOKENS))
    as_objects = {name: uuid.UUID(text) for name, text in ids.items()}
    encoded = an_encoder().encode(turns(count, **as_objects, tokens=TOKENS))
    assert encoded == as_text
    assert encoded.refused == []
    assert encoded.events[0].key == encoded.tokens[0].key == GROUP


# What callers may not say


@pytest.mark.parametrize(
    ("field", "value"), [("producer", "judge"), ("incarnation", INCARNATION), ("producer_seq", 7)]
)
def test_the_recorders_own_fields_are_refused(field: str, value: Any) -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", **{field: value})])
    assert encoded.events == []
    assert str(encoded.refused[0].error) == (
        f"turn_completed.{field} is the recorder's own and can't be given, got {value!r}"
    )


def test_an_id_derived_from_a_source_may_be_given() -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", event_id=an_id("line", 7))])
    assert facts(encoded)[0].event_id == an_id("line", 7)


@pytest.mark.parametrize(
    "event_id",
    [
        a_v7_id("turn"),
        uuid.UUID(a_v7_id("turn")),
        "1a0f5b7f-7642-48fb-91f8-45045762eef3",
        "line-7",
        None,
    ],
)
def test_an_id_that_is_not_derived_is_refused(event_id: Any) -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", event_id=event_id)])
    assert encoded.events == []
    assert str(encoded.refused[0].error) == (
        "turn_completed.event_id must be derived, a UUID of version 5, or be left out,"
        f" got {event_id!r}"
    )


def test_a_payload_is_no_fact() -> None:
    encoded = an_encoder().encode([Draft("turn_tokens", {}, 0)])
    assert str(encoded.refused[0].error) == "there is no fact named 'turn_tokens'"


# Tokens


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_payload_of_a_turn_becomes_a_record_that_the_turn_names(count: int) -> None:
    drafts = [*turns(count), a_draft("turn_completed", seed=count, segment=2, tokens=TOKENS)]
    encoded = an_encoder().encode(drafts)
    (record,) = encoded.tokens
    payload = decode(record.value)
    assert record.key == GROUP
    assert payload == TurnTokens(
        run_id=RUN,
        group_id=GROUP,
        trajectory_id=TRAJECTORY,
        turn_no=count,
        segment=2,
        sha256="d9d9b5a359a57e5e25d0f42fdc4ab6db4cfcaa815b9ba6209d7aa2a11e4d3a8b",
        token_ids=bytes.fromhex("5c500200 00000000 ffffff7f"),
        loss_mask=bytes.fromhex("000001"),
        logprobs=bytes.fromhex("00000000 00000000 cdccccbd"),
    )
    assert facts(encoded)[-1].tokens_sha256 == payload.sha256


def test_unpacking_gives_the_tokens_back_with_logprobs_as_float32() -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", tokens=TOKENS)])
    payload = decode(encoded.tokens[0].value)
    assert isinstance(payload, TurnTokens)
    assert unpack(payload) == Tokens(
        [151644, 0, 2147483647], [0, 0, 1], [0.0, 0.0, -0.10000000149011612]
    )
    assert digest(pack(unpack(payload))) == payload.sha256


def test_a_turn_without_tokens_names_no_payload() -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", tokens=None)])
    assert encoded.tokens == []
    assert facts(encoded)[0].tokens_sha256 is None


def test_an_empty_payload_is_a_payload() -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", tokens=Tokens([], [], []))])
    payload = decode(encoded.tokens[0].value)
    assert isinstance(payload, TurnTokens)
    assert unpack(payload) == Tokens([], [], [])


def test_the_payload_of_a_refused_turn_is_not_sent() -> None:
    drafts = [
        a_draft("turn_completed", tokens=TOKENS, engine=7),
        a_draft("turn_completed", tokens=TOKENS, producer="judge"),
    ]
    encoded = an_encoder().encode(drafts)
    assert (encoded.tokens, encoded.events, len(encoded.refused)) == ([], [], 2)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (Tokens([1, 2], [1], [0.0]), "columns of one length, got 2 ids, 1 loss_mask, 1 logprobs"),
        (Tokens([2**31], [1], [0.0]), "must be int32, uint8 and float32 columns"),
        (Tokens([1.5], [1], [0.0]), "must be int32, uint8 and float32 columns"),  # type: ignore[list-item]
        (Tokens([1], [256], [0.0]), "must be int32, uint8 and float32 columns"),
        (Tokens([1], [1], ["no"]), "must be int32, uint8 and float32 columns"),  # type: ignore[list-item]
        ([1, 2, 3], "turn_completed.tokens must be Tokens, got list"),
    ],
)
def test_tokens_that_can_not_be_packed_are_refused(tokens: Any, message: str) -> None:
    encoded = an_encoder().encode([a_draft("turn_completed", tokens=tokens)])
    assert (encoded.tokens, encoded.events) == ([], [])
    assert message in str(encoded.refused[0].error)


def test_tokens_over_the_logs_limit_travel_in_parts() -> None:
    ids = list(range(900_000))
    large = Tokens(ids, [1] * len(ids), [-0.5] * len(ids))
    encoded = an_encoder().encode([a_draft("turn_completed", tokens=large)])
    check_sizes("tokens", encoded.tokens)
    parts = [decode(record.value) for record in encoded.tokens]
    assert all(isinstance(part, TurnTokens) for part in parts)
    places = [(part.chunk, part.chunks, len(part.loss_mask)) for part in parts]
    assert places == [(0, 3, 400_000), (1, 3, 400_000), (2, 3, 100_000)]
    assert {part.sha256 for part in parts} == {facts(encoded)[0].tokens_sha256}
    assert unpack(*reversed(parts)) == large
    with pytest.raises(TokensDamaged, match=r"must have chunks 0 to 2, got \[0, 2\]"):
        unpack(parts[0], parts[2])
    with pytest.raises(TokensDamaged, match="must have digest"):
        unpack(parts[0], parts[1], dataclasses.replace(parts[2], logprobs=b"\0" * 400_000))


def test_more_tokens_than_64_records_hold_are_refused() -> None:
    huge = Tokens(range(25_600_001), [], [])
    encoded = an_encoder().encode([a_draft("turn_completed", tokens=huge)])
    assert (encoded.tokens, encoded.events) == ([], [])
    assert "must be at most 25600000, got 25600001" in str(encoded.refused[0].error)


def test_tokens_belong_to_turns_only() -> None:
    encoded = an_encoder().encode([a_draft("turn_failed", tokens=TOKENS)])
    assert encoded.tokens == []
    assert str(encoded.refused[0].error).startswith("turn_failed has no field tokens (fields:")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"token_ids": b"\0" * 12}, "payload of trajectory {t} turn 0 must have digest {d}, got"),
        ({"sha256": "0" * 64}, "turn 0 must have digest 000"),
        ({"loss_mask": b"\0"}, "must have columns of one length, got [12, 1, 12] bytes"),
        ({"token_ids": b"\0" * 11}, "must have columns of one length, got [11, 3, 12] bytes"),
        ({"logprobs": b""}, "must have columns of one length, got [12, 3, 0] bytes"),
    ],
)
def test_a_damaged_payload_is_refused(damage: dict[str, Any], message: str) -> None:
    record: Record = an_encoder().encode([a_draft("turn_completed", tokens=TOKENS)]).tokens[0]
    payload = decode(record.value)
    assert isinstance(payload, TurnTokens)
    expected = re.escape(message.format(t=TRAJECTORY, d=payload.sha256))
    with pytest.raises(TokensDamaged, match=expected):
        unpack(dataclasses.replace(payload, **damage))
