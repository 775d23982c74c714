"""SqliteLog: the embedded log, one file on a local disk, for many processes of one machine.

One table per topic, one partition (0). Writers take turns, so the order of offsets is the order
of commits, from 0 on and without holes. `ledger/sqlite/file.py` says how the file is kept safe
(beside it lie `-wal`, `-shm` and `-lock`), `ledger/sqlite/reader.py` how it is read.

Network file systems are refused: SQLite's locks and shared memory don't reach over machines.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from ledger.durable import sync
from ledger.log import (
    TOPICS,
    Fenced,
    LogError,
    Positions,
    Record,
    Topic,
    TopicPartition,
    check_removable,
    check_sizes,
)
from ledger.sqlite.file import LogFile
from ledger.sqlite.reader import SqliteReader
from ledger.sqlite.schema import explained, is_busy

OPEN_TIMEOUT_S = 30.0

REMOVE_CHUNK = 500
"""Records that one transaction removes, so that appends get their turn."""

_INSERT = {topic: f"INSERT INTO {topic} VALUES (?, ?, ?, ?)" for topic in TOPICS}
_TIME_AT = {topic: f"SELECT log_time_us FROM {topic} WHERE offset = ?" for topic in TOPICS}
_REMOVE = {topic: f"DELETE FROM {topic} WHERE offset < ?" for topic in TOPICS}


class SqliteLog:
    """An EventLog in the file `path`, which is made when missing (its directory is not).

    Raises LogError for a file of something else, a place where no log can be, or missing
    permission; LogUnavailable when the disk is full or others hold the file for
    `OPEN_TIMEOUT_S`."""

    def __init__(self, path: str | os.PathLike[str]):
        self._file = LogFile(path)
        try:
            self._file.make(OPEN_TIMEOUT_S)
            self._identity = self._file.read(
                lambda connection: str(
                    connection.execute("SELECT identity FROM meta").fetchone()[0]
                )
            )
        except BaseException:
            self._file.close()
            raise

    @property
    def identity(self) -> str:
        return self._identity

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        """See EventLog.append; here all of `records` or none are appended."""
        self.append_each({topic: records}, timeout_s)

    def append_each(
        self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0
    ) -> None:
        """See EventLog.append_each; here all of `records` or none are appended."""
        for topic, of_topic in records.items():
            check_sizes(topic, of_topic)
        if any(records.values()):
            self._file.write(lambda connection: _insert_each(connection, records), timeout_s)

    def append_dated(
        self, topic: Topic, records: Sequence[Record], log_times_us: Sequence[int]
    ) -> None:
        """See DatedLog.append_dated; all of `records` or none are appended."""
        check_sizes(topic, records)

        def insert(connection: sqlite3.Connection) -> None:
            _, end, last_us = _counters(connection, topic)
            for before_us, time_us in itertools.pairwise([last_us, *log_times_us]):
                if time_us < before_us:
                    raise LogError(
                        f"log times must not step back, got {time_us} us after {before_us}"
                        f" (topic {topic})"
                    )
            _insert_at(connection, topic, end, records, log_times_us)

        if records:
            self._file.write(insert, OPEN_TIMEOUT_S)

    def partition_of(self, key: str) -> int:
        return 0

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> SqliteFencedWriter:
        def take(connection: sqlite3.Connection) -> int:
            connection.execute(
                "INSERT INTO fences VALUES (?, 1)"
                " ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1",
                (name,),
            )
            return _epoch(connection, name)

        return SqliteFencedWriter(self._file, name, self._file.write(take, timeout_s))

    def reader(self, positions: Mapping[TopicPartition, int]) -> SqliteReader:
        return SqliteReader(self._file.another(), positions)

    def start_positions(self, topic: Topic) -> Positions:
        return {TopicPartition(topic, 0): self._bounds(topic)[0]}

    def end_positions(self, topic: Topic) -> Positions:
        return {TopicPartition(topic, 0): self._bounds(topic)[1]}

    def positions_at(self, topic: Topic, time_us: int) -> Positions:
        """See EventLog.positions_at. A binary search, since log times never step back."""

        def search(connection: sqlite3.Connection) -> int:
            start, end, _ = _counters(connection, topic)
            offsets = range(start, end)

            def log_time_us(offset: int) -> int:
                return int(connection.execute(_TIME_AT[topic], (offset,)).fetchone()[0])

            return start + bisect.bisect_left(offsets, time_us, key=log_time_us)

        return {TopicPartition(topic, 0): self._file.read(search)}

    def remove_before(self, positions: Mapping[TopicPartition, int]) -> None:
        """See EventLog.remove_before. Some hundred records at a time, so that appends get their
        turn; their offsets are never given again, their space is used again, and the file
        doesn't shrink. Raises PositionOutOfRange for a position past the end."""
        for place, offset in positions.items():
            check_removable(place, self.end_positions(place.topic), offset)
        for place, offset in positions.items():
            while self._file.write(functools.partial(_remove, place.topic, offset), 30.0):
                pass

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the log as it is now to a new file, whole or not at all; writers go on.

        The copy has the same identity. Raises LogError if `path` exists or can't be made,
        LogUnavailable for a full disk."""
        target = Path(os.path.realpath(path))
        if os.path.lexists(path):
            raise LogError(f"a backup must not overwrite a file, got {path}")
        partial = target.with_name(f"{target.name}.partial-{uuid.uuid4().hex}")
        source = self._file.another()
        try:
            source.outside_transaction(lambda connection: _copy(connection, partial))
            sync(partial)
            # A link, unlike a rename, fails if another backup was faster.
            os.link(partial, target)
            sync(target.parent)
        except FileExistsError:
            raise LogError(f"a backup must not overwrite a file, got {path}") from None
        except OSError as error:
            raise explained(str(path), error) from error
        finally:
            source.close()
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(f"{partial}{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _bounds(self, topic: Topic) -> tuple[int, int]:
        return self._file.read(lambda connection: _counters(connection, topic)[:2])


class SqliteFencedWriter:
    """A FencedWriter; every append compares its epoch inside the append's own transaction."""

    def __init__(self, file: LogFile, name: str, epoch: int):
        self._file = file
        self._name = name
        self._epoch = epoch
        self._closed = False

    def append(self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0) -> None:
        if self._closed:
            raise LogError(f"fenced writer {self._name!r} was used after close()")
        for topic, of_topic in records.items():
            check_sizes(topic, of_topic)

        def insert_all(connection: sqlite3.Connection) -> None:
            newest = _epoch(connection, self._name)
            if newest != self._epoch:
                raise Fenced(
                    f"fenced writer {self._name!r} has epoch {self._epoch}, but {newest} exists"
                    f" ({self._file.path})"
                )
            _insert_each(connection, records)

        self._file.write(insert_all, timeout_s)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _counters(connection: sqlite3.Connection, topic: Topic) -> tuple[int, int, int]:
    """Start offset, end offset and last log time in microseconds."""
    row = connection.execute(
        "SELECT start_offset, end_offset, last_log_time_us FROM topics WHERE topic = ?", (topic,)
    ).fetchone()
    if row is None:
        raise LogError(f"topic must be one of {', '.join(TOPICS)}, got {topic!r}")
    start, end, last_us = row
    return start, end, last_us


def _insert_each(connection: sqlite3.Connection, records: Mapping[Topic, Sequence[Record]]) -> None:
    for topic, of_topic in records.items():
        if of_topic:
            _, end, last_us = _counters(connection, topic)
            now_us = max(time.time_ns() // 1000, last_us)
            _insert_at(connection, topic, end, of_topic, [now_us] * len(of_topic))


def _insert_at(
    connection: sqlite3.Connection,
    topic: Topic,
    end: int,
    records: Sequence[Record],
    log_times_us: Sequence[int],
) -> None:
    """Insert records, at least one, at the topic's end."""
    rows = zip(itertools.count(end), log_times_us, records, strict=False)
    connection.executemany(
        _INSERT[topic], [(at, time_us, key, value) for at, time_us, (key, value) in rows]
    )
    connection.execute(
        "UPDATE topics SET end_offset = ?, last_log_time_us = ? WHERE topic = ?",
        (end + len(records), log_times_us[-1], topic),
    )


def _remove(topic: Topic, offset: int, connection: sqlite3.Connection) -> bool:
    """Remove some records before `offset`; whether more are left."""
    start = _counters(connection, topic)[0]
    cut = min(offset, start + REMOVE_CHUNK)
    if cut > start:
        connection.execute(_REMOVE[topic], (cut,))
        connection.execute("UPDATE topics SET start_offset = ? WHERE topic = ?", (cut, topic))
    return cut < offset


def _epoch(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT epoch FROM fences WHERE name = ?", (name,)).fetchone()
    return int(row[0])


def _copy(source: sqlite3.Connection, partial: Path) -> None:
    try:
        target = sqlite3.connect(partial)
        try:
            # All pages in one step: in smaller ones the copy starts again after every append.
            source.backup(target)
        finally:
            target.close()
    except sqlite3.Error as error:
        if is_busy(error):
            raise
        raise explained(str(partial), error) from error
