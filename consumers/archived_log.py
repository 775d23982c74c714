"""A log whose old `tokens` and `batches` lie in an archive: read as if they had never left it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from consumers.archive import TOPICS, ArchivedFile, Manifest, check_file, load_manifest
from ledger.log import (
    EventLog,
    LogError,
    PositionOutOfRange,
    Positions,
    Reader,
    RecordBatch,
    Topic,
    TopicPartition,
)
from ledger.log_over import LogOver, ReaderOver


class ArchivedLog(LogOver):
    """An EventLog over a log and its archive. Closing it closes the log."""

    def __init__(self, log: EventLog, folder: Path) -> None:
        """Raises LogError when the archive is of another log, or the two don't join."""
        super().__init__(log)
        self._folder = folder
        self._manifest = load_manifest(folder)
        if self._manifest.log != log.identity:
            raise LogError(
                f"archive {folder} is of log {self._manifest.log}, not of {log.identity}"
            )
        for topic in TOPICS:
            for place, start in log.start_positions(topic).items():
                end = self._manifest.end(place)
                if end is not None and end < start:
                    raise LogError(
                        f"archive {folder} ends at {end} of {place}, the log begins at {start}"
                    )

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        live: Positions = dict(positions)
        old: Positions = {}
        for topic in TOPICS:
            for place, start in self._log.start_positions(topic).items():
                if positions.get(place, start) < start:
                    old[place] = positions[place]
                    live[place] = start
        if not old:
            return self._log.reader(positions)
        return ArchivedReader(self._log.reader(live), self._folder, self._manifest, old, live)

    def start_positions(self, topic: Topic) -> Positions:
        starts = self._log.start_positions(topic)
        for place in starts:
            if files := self._manifest.of(place):
                starts[place] = min(starts[place], files[0].first_offset)
        return starts

    def positions_at(self, topic: Topic, time_us: int) -> Positions:
        found = self._log.positions_at(topic, time_us)
        live = self._log.start_positions(topic)
        for place, offset in found.items():
            if offset == live[place]:  # the first such record may have left the log
                for file in self._manifest.of(place):
                    rows = _read(self._folder, file).to_pydict()
                    pairs = zip(rows["offset"], rows["log_time_us"], strict=True)
                    at = next((each for each, when in pairs if when >= time_us), None)
                    if at is not None:
                        found[place] = min(at, offset)
                        break
        return found


class ArchivedReader(ReaderOver):
    """A Reader that begins in the archive and goes on in the log."""

    def __init__(
        self, live: Reader, folder: Path, manifest: Manifest, old: Positions, joins: Positions
    ) -> None:
        super().__init__(live)
        self._folder = folder
        self._manifest = manifest
        self._old = old
        self._joins = joins

    @property
    def positions(self) -> Positions:
        return self._reader.positions | self._old

    def poll(self, timeout_s: float, max_records: int = 10_000) -> list[RecordBatch]:
        deadline = time.monotonic() + timeout_s
        while self._old:
            place, start = next(iter(self._old.items()))
            batch = self._archived(place, start, max_records)
            self._old[place] = batch.next_offset
            if batch.next_offset >= self._joins[place]:
                del self._old[place]
            if len(batch):
                return [batch]
        return self._reader.poll(max(0.0, deadline - time.monotonic()), max_records)

    def _archived(self, place: TopicPartition, start: int, max_records: int) -> RecordBatch:
        end = self._joins[place]
        for file in self._manifest.of(place):
            if file.first_offset <= start < file.next_offset:
                table = _read(self._folder, file)
                offsets: list[int] = table.select(["offset"]).to_pydict()["offset"]
                first, behind = bisect_left(offsets, start), bisect_left(offsets, end)
                last = min(behind, first + max_records)
                after = min(file.next_offset, end) if last == behind else offsets[last]
                columns: dict[str, Any] = table.slice(first, last - first).to_pydict()
                return RecordBatch(
                    place.topic,
                    place.partition,
                    columns["offset"],
                    columns["log_time_us"],
                    columns["key"],
                    columns["value"],
                    after,
                )
        raise PositionOutOfRange(f"position {start} of {place} is neither archived nor in the log")


@lru_cache(maxsize=4)
def _read(folder: Path, file: ArchivedFile) -> pa.Table:
    """A file's records, checked against its digest. The last few are kept, since who reads several
    partitions in step comes back to each."""
    check_file(folder, file)
    return pq.read_table(folder / file.name)
