"""What the assembler asks of those who run groups: other attempts in the place of lost ones.

Read from the log like everything else, from where it ended when the rollout began. A request is
answered once; a group that was decided is asked for nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self, cast

from ledger.avro import DecodeError, decode, writer_schema_of
from ledger.facts import GroupDecided, RefillRequested
from ledger.log import EventLog, RecordBatch

POLL_S = 0.5


class Refills:
    """The requests and decisions of a run, as they come in."""

    def __init__(self, log: EventLog, run_id: str) -> None:
        """What was in the log before is of no group that is opened from now on."""
        self._reader = log.reader(log.end_positions("events"))
        self._run_id = run_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._reader.close)

    async def facts(self) -> AsyncIterator[RefillRequested | GroupDecided]:
        """For ever, in the log's order for each group. Raises LogError."""
        while True:
            polled = asyncio.ensure_future(asyncio.to_thread(self._reader.poll, POLL_S))
            try:
                batches = await asyncio.shield(polled)
            except asyncio.CancelledError:
                await asyncio.wait({polled})  # a reader is used by one thread at a time
                raise
            for batch in batches:
                for fact in _wanted(batch):
                    if fact.run_id == self._run_id:
                        yield fact


def _wanted(batch: RecordBatch) -> list[RefillRequested | GroupDecided]:
    """Of all facts, those two kinds; the others are not even decoded."""
    found: list[RefillRequested | GroupDecided] = []
    for value in batch.values:
        try:
            if writer_schema_of(value).wire.cls in (RefillRequested, GroupDecided):
                found.append(cast(Any, decode(value)))
        except DecodeError:
            continue  # the projector counts it
    return found
