"""Valid facts for tests, and hypothesis strategies for every fact there can be.

a_fact("reward_assigned", value=None)        every field filled in, these as given
a_fact("reward_assigned", only_required=True)  null or default wherever that is allowed
a_turn(3, completion_tokens=117)             the fourth turn of the trajectory
a_draft("turn_completed", turn_no=3)         the same as a caller of the recorder gives it
any_fact()                                   a strategy; values at the edges of their types
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
import uuid
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ledger.avro import wire_types
from ledger.facts import FACTS, Excerpt, Fact, TurnCompleted, VersionSpan
from ledger.facts.base import Uuid
from ledger.tokens import TurnTokens
from ledger.wire.checks import CALENDAR_US, to_micros
from ledger.wire.encoder import Draft
from ledger.wire.schema import is_enum, is_record, optional

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
"""When everything happens, unless a test says otherwise."""


def an_id(what: str, number: int = 0) -> str:
    """The same UUID (version 5) for the same arguments: `an_id("group", 1)`."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"rollbook-tests/{what}/{number}"))


_NUMBERS = ("producer_seq", "turn_no", "tool_call_no")
_SHARED = {
    "run_id": an_id("run"),
    "group_id": an_id("group"),
    "slot": 0,
    "trajectory_id": an_id("trajectory"),
    "task_id": "task",
    "producer": "agent",
    "incarnation": an_id("incarnation"),
    "occurred_at": AT,
}
ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For hypothesis: a busy machine is no failure."""
_OWN_FIELDS = ("event_id", "producer", "incarnation", "producer_seq")


def a_v7_id(what: str, number: int = 0) -> str:
    """The same UUID of version 7, as a recorder gives them, for the same arguments."""
    low = int.from_bytes(hashlib.sha256(f"{what}/{number}".encode()).digest()[:10], "big")
    low = low & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return str(uuid.UUID(int=to_micros(AT) // 1000 << 80 | low))


def a_fact(name: str, /, *, seed: int = 0, only_required: bool = False, **fields: Any) -> Any:
    """A valid fact. All of them are of one run, group, trajectory and incarnation, where `seed`
    is the number and makes the id."""
    return a_record(FACTS[name], seed, only_required, fields)


def a_record(
    cls: type, seed: int = 0, only_required: bool = False, fields: dict[str, Any] | None = None
) -> Any:
    """A valid fact, payload or record inside facts."""
    given = fields or {}
    shared = _SHARED if issubclass(cls, (Fact, TurnTokens)) else {}
    values: dict[str, Any] = {}
    for field, hint in _fields(cls):
        optional_field = field.default is not dataclasses.MISSING or (
            field.default_factory is not dataclasses.MISSING
        )
        if field.name == "event_id":
            values["event_id"] = a_v7_id(cls.__name__, seed)
        elif field.name in _NUMBERS:
            values[field.name] = seed
        elif field.name in shared:
            values[field.name] = shared[field.name]
        elif not (only_required and optional_field):
            nothing = only_required and optional(hint)[1]
            values[field.name] = None if nothing else a_value(hint, field.name, seed)
    return cls(**(values | given))


def a_value(hint: Any, name: str, seed: int = 0) -> Any:
    """A value of a field's type, told from others by the field's name."""
    inner, _ = optional(hint)
    arguments = typing.get_args(inner)
    if inner == Uuid:
        return an_id(name, seed)
    if is_enum(inner):
        return next(iter(inner))
    if inner is Excerpt:
        return Excerpt.of(f"{name} {seed}: any text, also 💥 and ä")
    if is_record(inner):
        return a_record(inner, seed)
    if typing.get_origin(inner) is list:
        return [a_value(arguments[0], name, seed), a_value(arguments[0], name, seed + 1)]
    if typing.get_origin(inner) is dict:
        return {"events/0": a_value(arguments[1], name), "b": a_value(arguments[1], name, 1)}
    scalars: dict[object, Any] = {
        str: "{}" if name == "configuration" else f"{name} {seed}",
        int: len(name) + seed,
        float: len(name) / 4 + seed,
        bool: seed % 2 == 0,
        bytes: f"{name} {seed}".encode(),
        datetime: AT + timedelta(seconds=len(name) + seed),
    }
    return scalars[inner]


def a_turn(turn_no: int = 0, **fields: Any) -> TurnCompleted:
    """A turn as an agent loop records it."""
    usual = {
        "engine": "http://engine-0:30000",
        "prompt_tokens": 1_000 + 400 * turn_no,
        "cached_tokens": 1_000 * min(turn_no, 1),
        "completion_tokens": 117,
        "client_s": 1.75,
        "finish_reason": "stop",
        "version_spans": [VersionSpan(4, 0, 117)],
    }
    return a_fact("turn_completed", seed=turn_no, only_required=True, **(usual | fields))


def fields_of(fact: Fact) -> dict[str, Any]:
    """What a caller gives the recorder for a fact: all but what the recorder fills in."""
    names = [field.name for field in dataclasses.fields(fact) if field.name not in _OWN_FIELDS]
    return {name: getattr(fact, name) for name in names}


def a_draft(name: str, *, seed: int = 0, **fields: Any) -> Draft:
    """A fact with the required fields and those given, on its way to the encoder."""
    fact = a_fact(name, seed=seed, only_required=True)
    return Draft(name, fields_of(fact) | fields, to_micros(AT))


def plain(value: Any) -> Any:
    """Facts, rows and decoded data in one form, to compare: times as ISO text in UTC, bytes as
    hex. `repr(plain(x))` tells 1 from 1.0 and True, -0.0 from 0.0, and finds nan equal to nan."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=UTC)
        return zoned.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, uuid.UUID):
        return str(value)
    return value.hex() if isinstance(value, bytes) else value


_TEXTS = st.one_of(
    st.sampled_from(["", "\0", "a\0b", "👩‍🚀💥", "\u202eabc", "\ufffd\uffff", "x" * 5_000]),
    st.text(max_size=12),
)
_INTS = st.one_of(st.sampled_from([0, -1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
_ZONES = st.one_of(
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"]).map(ZoneInfo),
    st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda m: timezone(timedelta(minutes=m))),
)
_TIMES = st.datetimes(timezones=_ZONES).filter(lambda time: to_micros(time) in CALENDAR_US)
_UUIDS = st.integers(0, 2**128 - 1).map(lambda number: str(uuid.UUID(int=number)))
_SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: _TEXTS,
    int: _INTS,
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=12),
    datetime: _TIMES,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Every value of a field's type."""
    inner, nullable = optional(hint)
    if nullable:
        return st.none() | values(inner)
    arguments = typing.get_args(inner)
    if inner == Uuid:
        return _UUIDS
    if is_enum(inner):
        return st.sampled_from(inner)
    if inner is Excerpt:
        return _TEXTS.map(Excerpt.of)
    if is_record(inner):
        return records(inner)
    if typing.get_origin(inner) is list:
        return st.lists(values(arguments[0]), max_size=3)
    if typing.get_origin(inner) is dict:
        return st.dictionaries(_TEXTS, values(arguments[1]), max_size=3)
    return _SCALARS[inner]


@cache
def records(cls: type) -> st.SearchStrategy[Any]:
    """Every instance of a fact class, payload or record inside facts."""
    return st.builds(cls, **{field.name: values(hint) for field, hint in _fields(cls)})


def any_fact() -> st.SearchStrategy[Any]:
    """Every fact, and every payload of tokens."""
    return st.one_of([records(wire.cls) for wire in wire_types().values()])


def _fields(cls: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    resolved = typing.get_type_hints(cls, include_extras=True)
    return [(field, resolved[field.name]) for field in dataclasses.fields(cls)]
