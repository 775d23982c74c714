"""What tests of SQLite logs share: records, all that a log holds, ways to start processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
from pathlib import Path

from ledger.log import Record, Topic, TopicPartition
from ledger.sqlite_log import SqliteLog

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
EVENTS = TopicPartition("events", 0)
TOKENS = TopicPartition("tokens", 0)


def records(*values: bytes) -> list[Record]:
    return [Record("group-1", value) for value in values]


def read_all(log: SqliteLog, topic: Topic = "events") -> list[tuple[int, bytes]]:
    """(offset, value) of all records."""
    rows: list[tuple[int, bytes]] = []
    with log.reader(log.start_positions(topic)) as reader:
        while batches := reader.poll(0.0):
            for batch in batches:
                rows += zip(batch.offsets, batch.values, strict=True)
    return rows


def assert_sound(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
