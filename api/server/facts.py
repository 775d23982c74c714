"""Facts over HTTP, for producers without a Kafka client.

    POST /v1/facts      up to 1,000 facts; all are recorded, or none

A fact is checked before any is recorded (`posted.py`). It must come with an id that its producer
derived from what it tells of, and with its time, so that the same request may be sent again: the
book then counts each fact once. Where the book has another fact under that id, none is recorded
(`conflicts.py`); what comes too close behind another for the book to know, its audit names.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.server.conflicts import refuse_conflicts
from api.server.posted import NOBODY, FactsIn, checked
from api.server.problems import Problem, problems
from api.server.reading import Readings
from ledger.recorder import Recorder

MOST_BYTES = 8 * 1024 * 1024
FLUSH_S = 20.0
AT_ONCE = 16
"""Requests that record at the same time: more could fill the recorder's queue."""
PRODUCER = "http"


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
                    run_id=NOBODY,
                    options=self._options,
                    spool_dir=self._spool,
                )
            return self._recorder

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()


def router(posting: Posting, readings: Readings) -> APIRouter:
    """The endpoint above."""
    routes = APIRouter(prefix="/v1", tags=["facts"])
    room = asyncio.Semaphore(AT_ONCE)

    @routes.post("/facts", status_code=201, responses=problems(409, 413, 422, 503))
    async def facts(body: FactsIn) -> FactsRecorded:
        """Record facts; durable when it returns. Sending the same ones again changes nothing."""
        found = await asyncio.to_thread(checked, body.facts)
        await asyncio.to_thread(refuse_conflicts, readings, found)
        recorder = await asyncio.to_thread(posting.recorder)
        async with room:
            lost = recorder.lost
            for draft, _ in found:
                getattr(recorder, draft.name)(**draft.fields)
            durable = await recorder.aflush(FLUSH_S)
        if not durable or recorder.lost > lost:
            raise Problem(
                503,
                "not_durable",
                rule=f"facts must be durable within {FLUSH_S:g} s; send the same ones again",
                place="log",
            )
        return FactsRecorded(recorded=len(found), spooled=recorder.spooled is not None)

    return routes
