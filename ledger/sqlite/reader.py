"""Reading a SqliteLog: whole columns out of one short snapshot, then waiting without one.

Keeps two invariants: a transaction never outlives a call of SQLite, since an open one would let
the WAL grow without end; and offsets have no holes, so a position is in the log or it is refused.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any, Self

from ledger.log import (
    TOPICS,
    LogError,
    PositionOutOfRange,
    Positions,
    RecordBatch,
    TopicPartition,
)
from ledger.sqlite.file import LogFile

WAKE_S = 0.02
"""A waiting reader looks for commits this often: 1 to 2% of a core, a fifth of the promised
100 ms."""

POLL_BYTES_MAX = 32 * 1024 * 1024
"""A poll stops reading values behind this many bytes (and up to `CHUNK` records more)."""

CHUNK = 64

_SELECT = {
    topic: f"SELECT offset, log_time_us, key, value FROM {topic} WHERE offset >= ?"
    " ORDER BY offset LIMIT ?"
    for topic in TOPICS
}


class SqliteReader:
    """A Reader with a connection of its own."""

    def __init__(self, file: LogFile, positions: Mapping[TopicPartition, int]):
        self._file = file
        self._positions: Positions = dict(positions)
        self._order = list(self._positions)
        try:
            self._file.read(self._check)
        except BaseException:
            file.close()
            raise

    @property
    def positions(self) -> Positions:
        return dict(self._positions)

    def poll(self, timeout_s: float, max_records: int = 10_000) -> list[RecordBatch]:
        """See Reader.poll. Large values end a poll early (`POLL_BYTES_MAX`)."""
        if max_records < 1:
            raise ValueError(f"max_records must be at least 1, got {max_records}")
        deadline = time.monotonic() + timeout_s
        while True:
            seen, batches = self._file.read(lambda connection: self._read(connection, max_records))
            if batches:
                for batch in batches:
                    place = TopicPartition(batch.topic, batch.partition)
                    self._positions[place] = batch.next_offset
                return batches
            while self._file.outside_transaction(self._version) == seen:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return []
                time.sleep(min(WAKE_S, left_s))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _version(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Changes with every commit of another connection."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        return self._file.generation, version

    def _check(self, connection: sqlite3.Connection) -> dict[TopicPartition, int]:
        """The number of records from each position on."""
        return {
            place: _records_from(connection, place, offset)
            for place, offset in self._positions.items()
        }

    def _read(
        self, connection: sqlite3.Connection, max_records: int
    ) -> tuple[tuple[int, int], list[RecordBatch]]:
        seen = self._version(connection)
        waiting = self._check(connection)
        # A topic that fills every poll alone must not keep the others out.
        self._order = self._order[1:] + self._order[:1]
        batches: list[RecordBatch] = []
        bytes_left = POLL_BYTES_MAX
        for place in self._order:
            if waiting[place] and max_records > 0 and bytes_left > 0:
                batch, size = _read_batch(
                    connection, place, self._positions[place], max_records, bytes_left
                )
                batches.append(batch)
                max_records -= len(batch)
                bytes_left -= size
        return seen, batches


def _records_from(connection: sqlite3.Connection, place: TopicPartition, offset: int) -> int:
    """How many records lie from `offset` on. Raises PositionOutOfRange."""
    row = connection.execute(
        "SELECT start_offset, end_offset FROM topics WHERE topic = ?", (place.topic,)
    ).fetchone()
    if row is None or place.partition != 0:
        raise PositionOutOfRange(f"a SQLite log has partition 0 of {TOPICS}, got {place}")
    start, end = row
    if not start <= offset <= end:
        raise PositionOutOfRange(
            f"position of {place} must be from {start} to {end}, got {offset}:"
            " this is another log, or records were removed from it"
        )
    return end - offset


def _read_batch(
    connection: sqlite3.Connection,
    place: TopicPartition,
    offset: int,
    max_records: int,
    max_bytes: int,
) -> tuple[RecordBatch, int]:
    """Records from `offset` on, at least one, and the bytes of their values."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    cursor = connection.execute(_SELECT[place.topic], (offset, max_records))
    try:
        while size < max_bytes and (chunk := cursor.fetchmany(CHUNK)):
            rows += chunk
            size += sum([len(row[3]) for row in chunk])
    finally:
        # An unfinished cursor keeps its snapshot, also past COMMIT.
        cursor.close()
    if not rows or rows[0][0] != offset or rows[-1][0] != offset + len(rows) - 1:
        raise LogError(f"{place} has a hole behind offset {offset}: the log is damaged")
    offsets, log_times_us, keys, values = map(list, zip(*rows, strict=True))
    batch = RecordBatch(
        topic=place.topic,
        partition=0,
        offsets=offsets,
        log_times_us=log_times_us,
        keys=keys,
        values=values,
        next_offset=offset + len(rows),
    )
    return batch, size
