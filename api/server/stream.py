"""New facts as they reach the book, as server-sent events.

    GET /v1/stream      event: fact; id: the position behind it; data: the fact as JSON

A client that comes back with Last-Event-ID (browsers do by themselves) goes on right behind the
last fact it got: what was appended meanwhile is in the book, so nothing is missed or sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse

from api.json_values import to_json
from api.server.owner import Owner
from api.server.places import asked, show
from api.server.problems import Problem, problems
from api.server.reading import Reading, Row
from ledger.facts import FACTS
from ledger.log import LogError, Positions, TopicPartition

LOOK_S = 0.2
"""How often the book is looked at for a client that has all."""
IDLE_S = 15.0
"""A comment keeps a quiet connection open through proxies."""
AT_ONCE = 1_000
"""Facts of one look."""


def router(owner: Owner, stop: asyncio.Event) -> APIRouter:
    """The endpoint above. Streams end when `stop` is set."""
    routes = APIRouter(prefix="/v1", tags=["facts"])
    open_streams = 0

    @routes.get(
        "/stream",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **problems(409, 422, 429, 503),
        },
    )
    async def stream(
        run_id: Annotated[UUID | None, Query(description="Of this run only.")] = None,
        fact: Annotated[str | None, Query(description="Of this kind only.")] = None,
        since: Annotated[str | None, Query(description="Position or time to begin at.")] = None,
        last_event_id: Annotated[str | None, Header(description="Goes before `since`.")] = None,
    ) -> Response:
        """New facts, from now on or from a position."""
        nonlocal open_streams
        if fact is not None and fact not in FACTS:
            raise Problem(
                422,
                "invalid",
                rule="must be a kind of fact, as in docs/FACTS.md",
                place="query fact",
                value=fact,
            )
        begin = await asyncio.to_thread(_begin, owner, since, last_event_id)
        if open_streams >= owner.settings.streams:
            raise Problem(
                429,
                "too_many_streams",
                rule=f"at most {owner.settings.streams} streams are open ([serve] streams)",
                place="GET /v1/stream",
                headers={"Retry-After": "10"},
            )
        open_streams += 1

        async def events() -> AsyncIterator[bytes]:
            nonlocal open_streams
            try:
                async for event in _events(owner, stop, begin, run_id, fact):
                    yield event
            finally:
                open_streams -= 1

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    return routes


def _begin(owner: Owner, since: str | None, last_event_id: str | None) -> Positions:
    place = "query since" if last_event_id is None else "header Last-Event-ID"
    text = since if last_event_id is None else last_event_id
    now = owner.readings.newest()
    try:
        if text is None:
            return owner.log.start_positions("events") | now
        return asked(text, place, owner.log, now)
    except LogError as error:
        raise Problem(503, "log_away", rule=str(error), place=place) from None


async def _events(
    owner: Owner, stop: asyncio.Event, begin: Positions, run_id: UUID | None, fact: str | None
) -> AsyncIterator[bytes]:
    at, quiet_s = begin, 0.0
    yield b"retry: 1000\n\n"
    while not stop.is_set():
        if owner.standing.positions == at:
            quiet_s += LOOK_S
            if quiet_s >= IDLE_S:
                quiet_s = 0.0
                yield b": nothing new\n\n"
            await asyncio.sleep(LOOK_S)
            continue
        quiet_s = 0.0
        events, at = await asyncio.to_thread(_look, owner, at, run_id, fact)
        for event in events:
            yield event


def _look(
    owner: Owner, at: Positions, run_id: UUID | None, fact: str | None
) -> tuple[list[bytes], Positions]:
    """The next events behind `at`, and the position behind them."""
    with owner.readings.open() as reading:
        found = list(_new(reading, at, run_id, fact))
        events: list[bytes] = []
        for row, data in found:
            at = at | {TopicPartition("events", row["log_partition"]): row["log_offset"] + 1}
            told = b"event: fact\nid: " + show(at).encode() + b"\ndata: " + to_json(data) + b"\n\n"
            events.append(told)
        return events, (at if len(found) == AT_ONCE else at | reading.positions)


def _new(
    reading: Reading, at: Positions, run_id: UUID | None, fact: str | None
) -> Iterator[tuple[Row, Row]]:
    """Up to `AT_ONCE` facts behind `at`, partition by partition: the place and the whole fact."""
    places = " OR ".join(
        f"(log_partition = {place.partition} AND log_offset >= {at.get(place, 0)})"
        for place in reading.positions
    )
    if not places:
        return
    where, values = f"({places})", list[Any]()
    for column, value in (("run_id", run_id), ("fact", fact)):
        if value is not None:
            where += f" AND {column} = ?"
            values.append(value)
    rows = reading.rows(
        f"SELECT fact, log_partition, log_offset FROM facts WHERE {where}"
        f" ORDER BY log_partition, log_offset LIMIT {AT_ONCE}",
        values,
    )
    whole: dict[tuple[int, int], Row] = {}
    for kind in {row["fact"] for row in rows}:
        of_kind = [row for row in rows if row["fact"] == kind]
        for partition in {row["log_partition"] for row in of_kind}:
            offsets = [row["log_offset"] for row in of_kind if row["log_partition"] == partition]
            for each in reading.rows(
                f'FROM "{kind}" WHERE log_partition = ? AND log_offset BETWEEN ? AND ?',
                [partition, min(offsets), max(offsets)],
            ):
                whole[partition, each["log_offset"]] = {"fact": kind, **each}
    for row in rows:
        yield row, whole[row["log_partition"], row["log_offset"]]
