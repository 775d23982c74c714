"""Facts over HTTP, for producers without a Kafka client.

    POST /v1/facts      up to 1,000 facts; all are recorded, or none

A fact is checked before any is recorded. It must come with an id that its producer derived from
what it tells of, and with its time, so that the same request may be sent again: the book then
counts each fact once.
"""

from __future__ import annotations

import asyncio
import threading
import typing
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from api.server.problems import Fault, Problem, problems
from ledger.facts import FACTS
from ledger.recorder import Recorder
from ledger.recording.calls import OWN_FACTS
from ledger.wire.checks import InvalidFact
from ledger.wire.encoder import Draft, FactEncoder, now_us
from ledger.wire.schema import hints, is_record, optional

MOST = 1_000
MOST_BYTES = 8 * 1024 * 1024
FLUSH_S = 20.0
AT_ONCE = 16
"""Requests that record at the same time: more could fill the recorder's queue."""
PRODUCER = "http"
_ZERO = "00000000-0000-0000-0000-000000000000"


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
        " producer_seq are the server's own. Long text may be given whole."
    )


class FactsIn(BaseModel):
    """Facts to record."""

    model_config = ConfigDict(extra="forbid")

    facts: Annotated[list[FactIn], Field(min_length=1, max_length=MOST)]


class FactsRecorded(BaseModel):
    """What is durable now."""

    recorded: int = Field(description="Facts that are in the log, or spooled while it is away.")
    spooled: bool = Field(description="Whether some wait in the spool for the log to come back.")


class Posting:
    """The recorder of facts that come over HTTP: made for the first of them, since its pulses would
    else move a book that nothing happens in."""

    def __init__(self, url: str, options: dict[str, str], spool: Path | None) -> None:
        self._url = url
        self._options = options
        self._spool = spool
        self._recorder: Recorder | None = None
        self._making = threading.Lock()

    def recorder(self) -> Recorder:
        """May wait for the log. Every fact names its run; the recorder's own pulses name none."""
        with self._making:
            if self._recorder is None:
                self._recorder = Recorder(
                    self._url,
                    producer=PRODUCER,
                    run_id=_ZERO,
                    options=self._options,
                    spool_dir=self._spool,
                )
            return self._recorder

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()


def router(posting: Posting) -> APIRouter:
    """The endpoint above."""
    routes = APIRouter(prefix="/v1", tags=["facts"])
    room = asyncio.Semaphore(AT_ONCE)

    @routes.post("/facts", status_code=201, responses=problems(413, 422, 503))
    async def facts(body: FactsIn) -> FactsRecorded:
        """Record facts; durable when it returns. Sending the same ones again changes nothing."""
        drafts = await asyncio.to_thread(checked, body.facts)
        recorder = await asyncio.to_thread(posting.recorder)
        async with room:
            lost = recorder.lost
            for draft in drafts:
                getattr(recorder, draft.name)(**draft.fields)
            durable = await recorder.aflush(FLUSH_S)
        if not durable or recorder.lost > lost:
            raise Problem(
                503,
                "not_durable",
                rule=f"facts must be durable within {FLUSH_S:g} s; send the same ones again",
                place="log",
            )
        return FactsRecorded(recorded=len(drafts), spooled=recorder.spooled is not None)

    return routes


def checked(facts: list[FactIn]) -> list[Draft]:
    """The drafts of facts that can all be recorded. Raises Problem with every fault."""
    checker = FactEncoder("check", _ZERO)
    drafts: list[Draft] = []
    faults: list[Fault] = []
    for number, each in enumerate(facts):
        place = f"body facts.{number}"
        try:
            draft = Draft(each.fact, _fields(each), now_us())
            for refused in checker.encode([draft]).refused:
                raise refused.error
        except InvalidFact as error:
            faults.append(Fault(place=place, rule=str(error), value=each.fact[:80]))
        else:
            drafts.append(draft)
    if faults:
        raise Problem.of(422, "invalid_fact", faults)
    return drafts


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
    known = hints(cls)
    return {
        name: _typed(known[name], value, f"{given.fact}.{name}") if name in known else value
        for name, value in fields.items()
    }


def _typed(hint: Any, value: Any, place: str) -> Any:
    """A value of JSON as the field's own type, where that is clear; the rest is for the checks."""
    inner, _ = optional(hint)
    if inner is datetime and isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise InvalidFact(f"{place} must be a time in ISO 8601, got {value[:80]!r}") from None
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin is list and isinstance(value, list):
        return [_typed(arguments[0], each, f"{place}[{i}]") for i, each in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {name: _typed(arguments[1], each, f"{place}.{name}") for name, each in value.items()}
    if is_record(inner) and isinstance(value, dict):
        return _record(inner, value, place)
    return value


def _record(cls: type, given: dict[str, Any], place: str) -> Any:
    known = hints(cls)
    if unknown := given.keys() - known.keys():
        raise InvalidFact(f"{place} has no field {min(unknown)!r} (fields: {', '.join(known)})")
    fields = {name: _typed(known[name], value, f"{place}.{name}") for name, value in given.items()}
    try:
        return cls(**fields)
    except TypeError as error:
        raise InvalidFact(f"{place}: {error}") from None
