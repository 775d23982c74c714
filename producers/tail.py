"""A run's facts of some kinds, as they come into the log, for those that write there, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, Self, TypeVar, cast

from ledger.avro import DecodeError, decode, writer_schema_of
from ledger.facts import Fact
from ledger.log import EventLog, Positions, RecordBatch

F = TypeVar("F", bound=Fact)
POLL_S = 0.5


class Tail(Generic[F]):
    """Reads on from a place, on one event loop; the log itself is read in a thread."""

    def __init__(
        self, log: EventLog, run_id: str, kinds: tuple[type[F], ...], start: Positions
    ) -> None:
        """`start`: of the topic events."""
        self._reader = log.reader(start)
        self._run_id = run_id
        self._kinds = kinds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._reader.close)

    async def facts(self) -> AsyncIterator[F]:
        """For ever, in the log's order for each group. Raises LogError."""
        while True:
            polled = asyncio.ensure_future(asyncio.to_thread(self._reader.poll, POLL_S))
            try:
                batches = await asyncio.shield(polled)
            except asyncio.CancelledError:
                await asyncio.wait({polled})  # a reader is used by one thread at a time
                raise
            for batch in batches:
                for fact in facts_in(batch, self._kinds):
                    if fact.run_id == self._run_id:
                        yield fact


def facts_in(batch: RecordBatch, kinds: tuple[type[F], ...]) -> list[F]:
    """Facts of these kinds; others are not even decoded."""
    found: list[F] = []
    for value in batch.values:
        try:
            if writer_schema_of(value).wire.cls in kinds:
                found.append(cast(Any, decode(value)))
        except DecodeError:
            continue  # the projector counts it
    return found
