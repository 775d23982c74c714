"""A log whose values may be, or are to be, in the Confluent framing.

Inside Rollbook every value is in the single-object encoding. This is the edge: what is read is
framed anew, and what is appended too where `write` says so. A value that the registry doesn't know
is passed on as it is, and whoever decodes it says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from ledger.avro import DecodeError
from ledger.log import (
    EventLog,
    FencedWriter,
    LogUnavailable,
    Positions,
    Reader,
    Record,
    RecordBatch,
    Topic,
    TopicPartition,
)
from ledger.log_over import LogOver, ReaderOver
from ledger.wire.confluent import (
    MAGIC,
    RegistryError,
    SchemaRegistry,
    from_single_object,
    to_single_object,
)


class FramedLog(LogOver):
    """An EventLog over another one. Closing it closes that."""

    def __init__(self, log: EventLog, registry: SchemaRegistry, *, write: bool) -> None:
        super().__init__(log)
        self._registry = registry
        self._write = write

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        """See EventLog.append. A registry that can't be reached is LogUnavailable."""
        self._log.append(topic, self._framed(records), timeout_s)

    def append_each(
        self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0
    ) -> None:
        """See EventLog.append_each. A registry that can't be reached is LogUnavailable."""
        self._log.append_each(self._each_framed(records), timeout_s)

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> FencedWriter:
        return FramedWriter(self._log.fenced_writer(name, timeout_s), self._each_framed)

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return FramedReader(self._log.reader(positions), self._registry)

    def _each_framed(
        self, records: Mapping[Topic, Sequence[Record]]
    ) -> dict[Topic, Sequence[Record]]:
        return {topic: self._framed(of_topic) for topic, of_topic in records.items()}

    def _framed(self, records: Sequence[Record]) -> Sequence[Record]:
        if not self._write:
            return records
        try:
            return [
                Record(each.key, from_single_object(each.value, self._registry)) for each in records
            ]
        except RegistryError as error:
            raise LogUnavailable(str(error)) from error


class FramedWriter:
    """A FencedWriter that frames what it appends."""

    def __init__(
        self,
        writer: FencedWriter,
        framed: Callable[[Mapping[Topic, Sequence[Record]]], Mapping[Topic, Sequence[Record]]],
    ) -> None:
        self._writer = writer
        self._framed = framed

    def append(self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0) -> None:
        self._writer.append(self._framed(records), timeout_s)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FramedReader(ReaderOver):
    """A Reader that gives every value in the single-object encoding."""

    def __init__(self, reader: Reader, registry: SchemaRegistry) -> None:
        super().__init__(reader)
        self._registry = registry
        self._held: list[RecordBatch] = []
        self._positions = reader.positions

    @property
    def positions(self) -> Positions:
        return dict(self._positions)

    def poll(self, timeout_s: float, max_records: int = 10_000) -> list[RecordBatch]:
        # Held until the registry answered for all of them, else a failure would skip records.
        self._held = self._held or self._reader.poll(timeout_s, max_records)
        framed = [self._single_object(batch) for batch in self._held]
        self._held = []
        self._positions = self._reader.positions
        return framed

    def _single_object(self, batch: RecordBatch) -> RecordBatch:
        values = list(batch.values)
        for row, value in enumerate(values):
            if value[:1] == MAGIC:
                try:
                    values[row] = to_single_object(value, self._registry)
                except DecodeError:
                    continue
                except RegistryError as error:
                    raise LogUnavailable(str(error)) from error
        return dataclasses.replace(batch, values=values)
