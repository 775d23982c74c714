"""Batches in the log: written by the assembler in one transaction, taken by the trainer in order.

    for taken in read_batches(log, run_id, positions):      # up to the log's end
        train(taken.batch)
        checkpoint(taken.positions)                         # where to read on

Invariants:

1. `positions` moves only past whole batches, so a trainer that keeps them in its checkpoint takes
   every batch once.
2. A batch whose records don't fit together is an error that names its place, never a part of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self, cast

from ledger.avro import DecodeError, decode, encode, wire_types
from ledger.batches import BatchChunk, BatchDamaged, TrainingBatch, join_body, split_body
from ledger.log import EventLog, Positions, Record, RecordBatch, TopicPartition


class Taken(NamedTuple):
    """A batch, and where to read on behind it."""

    batch: TrainingBatch
    positions: Positions


def records_of(batch: TrainingBatch) -> list[Record]:
    """The records of a batch, in order, for topic `batches`. Raises InvalidFact."""
    whole, part = wire_types()["training_batch"], wire_types()["batch_chunk"]
    body = encode(whole, whole.check.datum(_fields(batch)))
    chunks = split_body(batch.run_id, batch.batch_id, body)
    return [
        Record(batch.run_id, encode(part, part.check.datum(_fields(chunk)))) for chunk in chunks
    ]


class BatchReader:
    """Takes the batches of one run, in order. Used by one thread at a time."""

    def __init__(
        self, log: EventLog, run_id: str, positions: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Reads from `positions`, or from the first batch that the log has."""
        self._run_id = run_id
        self._positions = log.start_positions("batches") | dict(positions or {})
        self._reader = log.reader(self._positions)
        self._parts: list[BatchChunk] = []
        self._ids: set[str] = set()

    @property
    def reached(self) -> Positions:
        """What has been read of the log, also behind the last whole batch."""
        return self._reader.positions

    def poll(self, timeout_s: float) -> list[Taken]:
        """Further batches; [] when none came in `timeout_s`. The same batch again is passed over.

        Raises BatchDamaged, PositionOutOfRange, LogUnavailable."""
        return [taken for batch in self._reader.poll(timeout_s, 64) for taken in self._take(batch)]

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _take(self, records: RecordBatch) -> Iterator[Taken]:
        place = TopicPartition(records.topic, records.partition)
        for offset, key, value in zip(records.offsets, records.keys, records.values, strict=True):
            if key != self._run_id:
                continue
            batch = self._whole(value, f"{place} offset {offset}")
            if batch is None:
                continue
            self._positions = self._positions | {place: offset + 1}
            if batch.batch_id not in self._ids:
                self._ids.add(batch.batch_id)
                yield Taken(batch, self._positions)

    def _whole(self, value: bytes, where: str) -> TrainingBatch | None:
        """The batch that this record completes, if it does."""
        try:
            chunk = decode(value)
            if not isinstance(chunk, BatchChunk):
                raise BatchDamaged(f"a record of a batch must be a batch_chunk ({where})")
            if chunk.chunk == 0:
                self._parts = []
            self._parts.append(chunk)
            if chunk.chunk < chunk.chunks - 1:
                return None
            return cast(TrainingBatch, decode(join_body(self._parts)))
        except (BatchDamaged, DecodeError) as error:
            raise BatchDamaged(f"{error} ({where})") from error


def read_batches(
    log: EventLog, run_id: str, positions: Mapping[TopicPartition, int] | None = None
) -> Iterator[Taken]:
    """The batches of a run from `positions` to where the log ends now."""
    end = log.end_positions("batches")
    with BatchReader(log, run_id, positions) as reader:
        while any(reader.reached[place] < end[place] for place in end):
            yield from reader.poll(1.0)


def _fields(record: TrainingBatch | BatchChunk) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
