"""Copying a log, with or without a run. Nothing is edited in place: to erase a run, copy without
it, use the copy, and remove the log.

    events ─ which positions do facts tell? ─▶ bounds
    each topic ─ streams ─▶ erase ─▶ one order that keeps the bounds ─▶ move positions ─▶ copy

Invariants:

1. The erased run's id is nowhere in the copy, and whatever the copy lacks or has otherwise is told.
   `copy-log` records, as the run that the id's alias names, which numbers of which producers it
   left out; a fact of another run that names this one was renamed.
2. A copy differs in offsets, so positions that facts tell are those of the copy
   (`consumers/copied_positions.py`). Times are the source's where the copy can keep them (SQLite).
   Ids, numbers and all else stay, byte by byte.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate

from consumers.copied_positions import TELLING, CopiedPositions
from consumers.copy_order import Arrived, CopyOrder
from consumers.erasure import Erasing, Erasure
from ledger.avro import DecodeError, decode_datum, writer_schema_of
from ledger.log import (
    TOPICS,
    DatedLog,
    EventLog,
    LogError,
    Positions,
    Record,
    RecordBatch,
    Topic,
    TopicPartition,
)

CHUNK_RECORDS = 2_000
CHUNK_BYTES = 16 * 1024 * 1024
"""The copy is written in pieces of about this size."""
VISIBLE_S = 10.0
"""What was appended is visible to readers within this."""


@dataclass(slots=True)
class Copied:
    """What a copy did."""

    records: int = 0
    """Records that the copy has of the source."""
    erased: int = 0
    """Records of the run, left out."""
    renamed: int = 0
    """Records of other runs that named the run; they name its alias now. Copied too."""
    moved: int = 0
    """Records that tell other positions than in the source, where offsets were others."""
    alias: str | None = None
    """UUID in place of the erased run's; null: no run was to be erased."""
    unreadable: list[str] = field(default_factory=list[str])
    """Places of records left out because nobody can say whether they are of the run."""
    unmoved: list[str] = field(default_factory=list[str])
    """Ids of facts that tell positions which the copy has none for; copied as they are."""


def copy_log(source: EventLog, target: EventLog, without_run: uuid.UUID | None = None) -> Copied:
    """Copy every record of every topic to an empty log up to the source's end.

    Without a run, all its facts and payloads are left out; `facts_erased` says which numbers of
    which producers are no holes, and other runs' records name an alias in its place. Raises
    LogError when `target` isn't empty, or somebody else appends to it meanwhile."""
    _check_empty(target)
    erasing = None if without_run is None else Erasing(Erasure(without_run))
    copying = _Copying(source, target, erasing)
    copying.look_ahead()
    for topic in ("tokens", "batches", "events"):  # payloads before the facts that name them
        copying.copy(topic)
    copied = copying.copied
    if erasing is not None:
        copied.erased, copied.renamed = erasing.erased, erasing.renamed
        copied.alias, copied.unreadable = erasing.alias, erasing.unreadable
        if erasing.erased or erasing.renamed:
            target.append("events", erasing.facts())
    return copied


def _check_empty(target: EventLog) -> None:
    for topic in TOPICS:
        for place, end in target.end_positions(topic).items():
            if end != 0:
                raise LogError(f"a log is copied to an empty one, and {place} ends at {end}")


Take = Callable[[TopicPartition, RecordBatch], Sequence[Arrived]]
"""What is copied of some records."""


class _PartitionStream:
    """The records of one partition up to an end. See copy_order.Stream."""

    def __init__(
        self, log: EventLog, place: TopicPartition, offsets: range, take: Take, stack: ExitStack
    ) -> None:
        self.position = offsets.start
        self._place, self._end, self._take = place, offsets.stop, take
        self._reader = stack.enter_context(log.reader({place: offsets.start}))

    @property
    def ended(self) -> bool:
        return self.position >= self._end

    def read(self) -> Sequence[Arrived]:
        found: list[Arrived] = []
        for batch in self._reader.poll(1.0, CHUNK_RECORDS):
            found += self._take(self._place, batch.split(self._end)[0])
        self.position = self._reader.positions[self._place]
        return found


class _Copying:
    """One copy under way."""

    def __init__(self, source: EventLog, target: EventLog, erasing: Erasing | None) -> None:
        self.copied = Copied()
        self._source, self._target, self._erasing = source, target, erasing
        self._ends: Positions = {}
        # Facts first: the payloads that they name, and the batches, are then before the other ends.
        for topic in ("events", "tokens", "batches"):
            self._ends |= source.end_positions(topic)
        places = {each: 0 for topic in TOPICS for each in target.end_positions(topic)}
        self._positions = CopiedPositions(self._ends, places)
        self._latest_us = 0
        """The latest time given to a record of the topic that is copied."""
        self._runs: dict[str, bytes] = {}
        """Runs whose records are told apart in the topic that is copied, and their ids' bytes."""

    def look_ahead(self) -> None:
        """Note all positions that facts tell."""
        with ExitStack() as stack:
            for stream in self._streams("events", self._note, stack).values():
                while not stream.ended:
                    stream.read()

    def copy(self, topic: Topic) -> None:
        """Copy one topic, those that others tell positions of before them."""
        counts: Counter[int] = Counter()
        self._latest_us = 0
        bounds = self._positions.bounds(topic)
        self._runs = {run_id: run_id.encode() for run_id in bounds if run_id is not None}
        chunk: list[tuple[int, Record]] = []
        size = 0
        with ExitStack() as stack:
            streams = self._streams(topic, self._arrived, stack)
            order = CopyOrder(
                streams,
                bounds,
                lambda run_id, bound: self._positions.reached(topic, run_id, bound, counts),
            )
            for log_time_us, record in order:
                counts[self._target.partition_of(record.key)] += 1
                chunk.append((log_time_us, self._moved(topic, record)))
                size += len(record.value)
                if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                    self._append(topic, chunk)
                    chunk, size = [], 0
        self._append(topic, chunk)
        self._check_ends(topic, counts)

    def _streams(self, topic: Topic, take: Take, stack: ExitStack) -> dict[int, _PartitionStream]:
        return {
            place.partition: _PartitionStream(
                self._source, place, range(start, self._ends[place]), take, stack
            )
            for place, start in self._source.start_positions(topic).items()
        }

    def _note(self, _: TopicPartition, batch: RecordBatch) -> Sequence[Arrived]:
        for value in batch.values:
            try:
                if writer_schema_of(value).wire.name in TELLING:
                    self._positions.note(value)
            except DecodeError:
                continue  # nobody decides anything by it
        return ()

    def _arrived(self, place: TopicPartition, batch: RecordBatch) -> Sequence[Arrived]:
        if self._erasing is None:
            kept = list(map(Record, batch.keys, batch.values))
        else:
            kept = self._erasing.kept(place, batch)
        rows = zip(batch.offsets, batch.log_times_us, kept, strict=True)
        return [
            Arrived(offset, log_time_us, self._run_of(record.value), record)
            for offset, log_time_us, record in rows
            if record is not None
        ]

    def _run_of(self, value: bytes) -> str | None:
        named = [run_id for run_id, needle in self._runs.items() if needle in value]
        if len(named) < 2:
            return named[0] if named else None
        try:
            run_id = decode_datum(value)[1]["run_id"]
        except DecodeError:
            return None
        return run_id if run_id in named else None

    def _moved(self, topic: Topic, record: Record) -> Record:
        if topic != "events":
            return record
        try:
            if writer_schema_of(record.value).wire.name not in TELLING:
                return record
            value = self._positions.moved(record.value)
        except DecodeError:
            return record
        if value is None:
            self.copied.unmoved.append(decode_datum(record.value)[1]["event_id"])
            return record
        self.copied.moved += value is not record.value
        return Record(record.key, value)

    def _append(self, topic: Topic, chunk: Sequence[tuple[int, Record]]) -> None:
        times_us, records = [each for each, _ in chunk], [each for _, each in chunk]
        if isinstance(self._target, DatedLog):
            # A broker's clock may have stepped back.
            _, *times_us = accumulate(times_us, max, initial=self._latest_us)
            self._target.append_dated(topic, records, times_us)
            self._latest_us = max(times_us, default=self._latest_us)
        else:
            self._target.append(topic, records)
        self.copied.records += len(chunk)

    def _check_ends(self, topic: Topic, counts: Counter[int]) -> None:
        """Offsets were told ahead of the appends: raise LogError unless they came true."""
        due = {place: counts[place.partition] for place in self._target.end_positions(topic)}
        deadline = time.monotonic() + VISIBLE_S
        while (ends := self._target.end_positions(topic)) != due:
            if any(ends[place] > due[place] for place in due) or time.monotonic() > deadline:
                told = ", ".join(f"{place} at {due[place]}, not {ends[place]}" for place in due)
                raise LogError(f"the copy must be its writer's alone and end {told}: copy again")
            time.sleep(0.1)
