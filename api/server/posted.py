"""Facts as JSON -> drafts that can be recorded, or every fault of them.

A producer can correct what is refused here and send it again, so more is refused than a Recorder
does, whose callers can't: numbers and times that could only spoil the accounts.
"""

from __future__ import annotations

import math
import typing
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from api.server.problems import Fault, Problem
from ledger.facts import FACTS
from ledger.log import Record
from ledger.recording.calls import OWN_FACTS
from ledger.wire.checks import InvalidFact, show, to_micros
from ledger.wire.encoder import Draft, FactEncoder, now_us
from ledger.wire.schema import any_number_fields, hints, is_record, optional

MOST = 1_000
NOBODY = "00000000-0000-0000-0000-000000000000"
EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
AHEAD = timedelta(days=1)
"""An event lies no further ahead than clocks differ."""
PLANNED_AHEAD = timedelta(days=366)
"""Any other time may be a deadline, or an end that is planned."""


class FactIn(BaseModel):
    """One fact: its kind, and its fields as docs/FACTS.md has them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "fact": "turn_completed",
                "fields": {
                    "event_id": "5b2f8f0e-53c5-5c0a-9a8e-0d7f6a1b2c3d",
                    "run_id": "0c0a9f4e-7f60-4a7e-8a57-3c1d2f9a4b11",
                    "occurred_at": "2026-01-31T12:00:00Z",
                    "group_id": "1d2e3f40-5162-4374-8596-a7b8c9daebfc",
                    "slot": 0,
                    "trajectory_id": "2e3f4051-6273-4485-96a7-b8c9daebfc0d",
                    "turn_no": 0,
                    "completion_tokens": 117,
                    "client_s": 1.9,
                },
            }
        },
    )

    fact: str = Field(description="Kind of fact.", examples=["turn_completed"])
    fields: dict[str, JsonValue] = Field(
        description="Its fields. event_id (a UUID of version 5), run_id and occurred_at (ISO 8601"
        " with its zone; not with time_quality none) must be there; producer, incarnation and"
        " producer_seq are the server's own. Long text may be given whole. A number must be at"
        " least 0 where docs/FACTS.md doesn't say any, a time from 1990 on and not ahead."
    )


class FactsIn(BaseModel):
    """Facts to record."""

    model_config = ConfigDict(extra="forbid")

    facts: Annotated[list[FactIn], Field(min_length=1, max_length=MOST)]


class Checked(typing.NamedTuple):
    """A fact that can be recorded."""

    draft: Draft
    record: Record
    """What it would be in the log, by another producer."""

    @property
    def event_id(self) -> str:
        return str(self.draft.fields["event_id"])


def checked(facts: list[FactIn]) -> list[Checked]:
    """Facts that can all be recorded. Raises Problem with every fault."""
    checker = FactEncoder("check", NOBODY)
    found: list[Checked] = []
    faults: list[Fault] = []
    for number, each in enumerate(facts):
        try:
            draft = Draft(each.fact, _fields(each), now_us())
            encoded = checker.encode([draft])
            for refused in encoded.refused:
                raise refused.error
        except InvalidFact as error:
            faults.append(Fault(place=place_of(number), rule=str(error), value=each.fact[:80]))
        else:
            found += [Checked(draft, record) for record in encoded.events]
    if faults:
        raise Problem.of(422, "invalid_fact", faults)
    return found


def place_of(number: int) -> str:
    """Where a fact stands in its request."""
    return f"body facts.{number}"


def _fields(given: FactIn) -> dict[str, Any]:
    """Fields as a recorder takes them: JSON has no times and no excerpts."""
    cls = FACTS.get(given.fact)
    if cls is None or given.fact in OWN_FACTS:
        raise InvalidFact(f"there is no fact named {given.fact[:80]!r} for a producer to record")
    fields: dict[str, Any] = dict(given.fields)
    untimed = fields.get("time_quality") == "none"
    needed = ("event_id", "run_id") if untimed else ("event_id", "run_id", "occurred_at")
    for name in needed:
        if fields.get(name) is None:
            raise InvalidFact(f"{given.fact}.{name} must be given, so that it may be sent again")
    if "tokens" in fields:
        raise InvalidFact(f"{given.fact}.tokens can't be sent over HTTP, only through a Recorder")
    return _typed_fields(cls, fields, given.fact)


def _typed_fields(cls: type, fields: dict[str, Any], place: str) -> dict[str, Any]:
    """Fields of one class, each as its own type; those that it doesn't have as they are."""
    known, any_number = hints(cls), any_number_fields(cls)
    return {
        name: _typed(known[name], value, f"{place}.{name}", name in any_number)
        if name in known
        else value
        for name, value in fields.items()
    }


def _typed(hint: Any, value: Any, place: str, any_number: bool) -> Any:
    """A value of JSON as the field's own type, where that is clear; the rest is for the checks."""
    inner, _ = optional(hint)
    if inner is datetime:
        return _time(value, place)
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin is list and isinstance(value, list):
        return [
            _typed(arguments[0], each, f"{place}[{i}]", any_number) for i, each in enumerate(value)
        ]
    if origin is dict and isinstance(value, dict):
        return {
            name: _typed(arguments[1], each, f"{place}.{name}", any_number)
            for name, each in value.items()
        }
    if is_record(inner) and isinstance(value, dict):
        return _record(inner, value, place)
    counts = inner in (int, float) and type(value) in (int, float) and not any_number
    if counts and not 0 <= value < math.inf:  # nor nan
        raise InvalidFact(f"{place} must be at least 0 and finite, got {show(value)}")
    return value


def _time(value: Any, place: str) -> Any:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidFact(f"{place} must be a time in ISO 8601, got {value[:80]!r}") from None
    if isinstance(value, datetime) and value.utcoffset() is not None:
        micros = to_micros(value)
    elif type(value) is int:
        micros = value
    else:
        return value
    ahead = AHEAD if place.endswith(".occurred_at") else PLANNED_AHEAD
    latest = datetime.now(UTC) + ahead
    if not to_micros(EARLIEST) <= micros <= to_micros(latest):
        raise InvalidFact(
            f"{place} must lie between {EARLIEST.year} and {latest:%Y-%m-%dT%H:%M:%SZ}, got {value}"
        )
    return value


def _record(cls: type, given: dict[str, Any], place: str) -> Any:
    known = hints(cls)
    if unknown := given.keys() - known.keys():
        raise InvalidFact(f"{place} has no field {min(unknown)!r} (fields: {', '.join(known)})")
    try:
        return cls(**_typed_fields(cls, given, place))
    except TypeError as error:
        raise InvalidFact(f"{place}: {error}") from None
