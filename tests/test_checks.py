"""A value that a field can't take is refused by value, rule and place."""

from __future__ import annotations

import dataclasses
import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from ledger.avro import encode_fact, wire_types
from ledger.facts import Excerpt, Fact, Member
from ledger.facts.lists import Stage
from ledger.wire.checks import InvalidFact
from tests.builders import a_fact, an_id


class NoOffset(tzinfo):
    """A time zone that doesn't know its offset."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None


WRONG: list[tuple[str, str, Any, str]] = [
    # float into int, and the other mix-ups of Python's numbers
    ("turn_completed", "turn_no", 1.5, "turn_completed.turn_no must be int, got 1.5 (float)"),
    ("turn_completed", "turn_no", 1.0, "turn_completed.turn_no must be int, got 1.0 (float)"),
    ("turn_completed", "turn_no", True, "turn_completed.turn_no must be int, got True (bool)"),
    ("turn_completed", "turn_no", "3", "turn_completed.turn_no must be int, got '3' (str)"),
    ("turn_completed", "turn_no", None, "turn_completed.turn_no must be int, got None (NoneType)"),
    ("turn_completed", "client_s", "1.5", "client_s must be float or int, got '1.5' (str)"),
    ("turn_completed", "client_s", True, "client_s must be float or int, got True (bool)"),
    ("turn_completed", "client_s", 10**400, "client_s must fit in a double, got 1000"),
    ("turn_completed", "turn_no", 10**5000, "turn_no must fit in 64 bits, got what has no repr"),
    ("turn_completed", "turn_no", 2**63, "must fit in 64 bits, got 9223372036854775808"),
    ("turn_completed", "slot", -(2**63) - 1, "must fit in 64 bits, got -9223372036854775809"),
    ("weights_applied", "success", 1, "weights_applied.success must be bool, got 1 (int)"),
    ("weights_applied", "success", "no", "weights_applied.success must be bool, got 'no' (str)"),
    # text
    ("turn_completed", "engine", b"host", "turn_completed.engine must be str, got b'host' (bytes)"),
    ("turn_completed", "engine", 7, "turn_completed.engine must be str, got 7 (int)"),
    (
        "turn_completed",
        "engine",
        "a\ud800",
        "turn_completed.engine must be text that UTF-8 can carry, got 'a\\ud800':"
        " surrogates not allowed at character 1",
    ),
    ("reward_assigned", "components", {"\udfff": 1.0}, "components key must be text that UTF-8"),
    # times
    (
        "turn_completed",
        "occurred_at",
        datetime(2026, 1, 2, 3, 4, 5),
        "turn_completed.occurred_at must have a time zone, got the naive 2026-01-02T03:04:05",
    ),
    (
        "turn_completed",
        "occurred_at",
        datetime(2026, 1, 2, tzinfo=NoOffset()),
        "must have a time zone, got the naive 2026-01-02T00:00:00",
    ),
    ("turn_completed", "occurred_at", date(2026, 1, 2), "must be datetime, got datetime.date(2026"),
    ("turn_completed", "occurred_at", 1.7e9, "must be datetime, got 1700000000.0 (float)"),
    ("turn_completed", "occurred_at", 10**18, "must lie in the years 1 to 9999 UTC, got 1000000"),
    (
        "turn_completed",
        "occurred_at",
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
        "must lie in the years 1 to 9999 UTC, got datetime.datetime(9999, 12, 31, 23, 59, 59",
    ),
    # closed lists
    (
        "sandbox_failed",
        "stage",
        "lunch",
        "sandbox_failed.stage must be one of queue, sandbox_start, setup, model, tool, verify,"
        " got 'lunch'",
    ),
    ("sandbox_failed", "stage", "MODEL", "stage must be one of queue, sandbox_start"),
    ("sandbox_failed", "stage", ["model"], "must be one of queue, sandbox_start, setup, model"),
    ("sandbox_failed", "stage", None, "tool, verify, got None"),
    (
        "group_decided",
        "decision",
        Stage.MODEL,
        "one of batch, evaluated, dropped, got <Stage.MODEL",
    ),
    # ids
    ("turn_completed", "run_id", "run-7", "turn_completed.run_id must be a lower-case UUID, got"),
    ("turn_completed", "group_id", an_id("group").upper(), "must be a lower-case UUID, got 'ECA1"),
    (
        "turn_completed",
        "group_id",
        an_id("group") + "\n",
        "group_id must be a lower-case UUID, got",
    ),
    ("turn_completed", "group_id", 7, "turn_completed.group_id must be str, got 7 (int)"),
    (
        "batch_assembled",
        "group_ids",
        ["a"],
        "batch_assembled.group_ids[0] must be a lower-case UUID",
    ),
    # lists, maps and records
    ("batch_assembled", "trace_ids", "abc", "trace_ids must be list or tuple, got 'abc' (str)"),
    ("batch_assembled", "trace_ids", ["a", 1], "batch_assembled.trace_ids[1] must be str, got 1"),
    ("reward_assigned", "components", [("a", 1.0)], "components must be dict, got [('a', 1.0)]"),
    ("reward_assigned", "components", {1: 1.0}, "components key must be str, got 1 (int)"),
    ("reward_assigned", "components", {"a": "b"}, "components['a'] must be float or int, got 'b'"),
    (
        "turn_completed",
        "version_spans",
        [{"start": 0}],
        "version_spans[0] must be VersionSpan, got",
    ),
    ("turn_failed", "error", 7, "turn_failed.error must be Excerpt, got 7 (int)"),
    (
        "turn_failed",
        "error",
        Excerpt("5", "", "", ""),
        "turn_failed.error.size must be int, got '5'",
    ),
    ("turn_completed", "engine", "x" * 100 + "\ud800", "(108 characters): surrogates not"),
]


@pytest.mark.parametrize(
    ("name", "field", "value", "message"), WRONG, ids=[f"{row[0]}.{row[1]}" for row in WRONG]
)
def test_a_wrong_value_is_refused_by_value_rule_and_place(
    name: str, field: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidFact, match=re.escape(message)) as caught:
        encode_fact(a_fact(name, **{field: value}))
    assert f"{name}.{field}" in str(caught.value)


def test_a_wrong_value_inside_a_member_is_refused_by_its_place() -> None:
    member = Member(0, "nobody", None, None, False, None, False, None, False)
    with pytest.raises(InvalidFact) as caught:
        encode_fact(a_fact("group_decided", members=[member]))
    place = "group_decided.members[0].trajectory_id"
    assert str(caught.value) == f"{place} must be a lower-case UUID, got 'nobody'"


def test_a_missing_field_is_refused_by_name() -> None:
    fields = fields_as_given(a_fact("producer_alive"))
    del fields["last_seq"]
    with pytest.raises(InvalidFact, match=r"^producer_alive.last_seq is required, got none$"):
        wire_types()["producer_alive"].check.datum(fields)


def test_an_unknown_field_is_refused_with_the_fields_there_are() -> None:
    fields = fields_as_given(a_fact("producer_alive")) | {"last_sequence": 3}
    message = r"^producer_alive has no field last_sequence \(fields: event_id, run_id, occurred_at,"
    with pytest.raises(InvalidFact, match=message):
        wire_types()["producer_alive"].check.datum(fields)


def fields_as_given(fact: Fact) -> dict[str, Any]:
    return {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
