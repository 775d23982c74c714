"""Backups of an SQLite log, and the removal of what it need not keep."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ledger.log import LogError, PositionOutOfRange, RecordBatch, TopicPartition
from ledger.sqlite_log import SqliteLog
from tests.sqlite_logs import EVENTS, SPAWN, TOKENS, read_all, records


def append_until_told(path: Path, pipe: Connection) -> None:
    with SqliteLog(path) as log:
        n = 0
        while not pipe.poll():
            log.append("events", records(*[b"%d" % i for i in range(n, n + 50)]))
            n += 50


def test_a_backup_made_under_writers_is_a_whole_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "log.db", tmp_path / "copy.db"
    ours, theirs = SPAWN.Pipe()
    with SqliteLog(path) as log:
        process = SPAWN.Process(target=append_until_told, args=(path, theirs))
        process.start()
        with log.reader({EVENTS: 0}) as reader:
            assert reader.poll(20.0)
        before = log.end_positions("events")[EVENTS]
        log.backup(copy)
        after = log.end_positions("events")[EVENTS]
        with log.reader({EVENTS: after}) as reader:
            assert reader.poll(20.0)
        ours.send("stop")
        process.join()
        assert sorted(file.name for file in tmp_path.iterdir() if "copy" in file.name) == [
            "copy.db"
        ]
        with SqliteLog(copy) as copied:
            rows = read_all(copied)
            assert before <= len(rows) <= after
            assert rows == [(n, b"%d" % n) for n in range(len(rows))]
            assert copied.identity == log.identity
            copied.append("events", records(b"goes on"))
            assert copied.end_positions("events") == {EVENTS: len(rows) + 1}


def test_a_backup_overwrites_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        (tmp_path / "copy.db").write_text("mine")
        with pytest.raises(LogError, match=r"must not overwrite a file, got .*copy\.db"):
            log.backup(tmp_path / "copy.db")
        assert (tmp_path / "copy.db").read_text() == "mine"
        with pytest.raises(LogError, match=r"missing/copy\.db"):
            log.backup(tmp_path / "missing" / "copy.db")
        assert list(tmp_path.glob("*partial*")) == []


def test_removed_records_leave_offsets_and_times_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append("tokens", records(*[b"%d" % n for n in range(1200)]))
        with log.reader({TOKENS: 0}) as reader:
            first_us = reader.poll(0.0)[0].log_times_us[0]
        log.remove_before({TopicPartition("tokens", 0): 1100})
        assert log.start_positions("tokens") == {TOKENS: 1100}
        assert log.end_positions("tokens") == {TOKENS: 1200}
        assert log.positions_at("tokens", 0) == {TOKENS: 1100}
        assert read_all(log, "tokens") == [(n, b"%d" % n) for n in range(1100, 1200)]
        log.remove_before({TopicPartition("tokens", 0): 5})
        log.remove_before({TopicPartition("tokens", 0): 1200})
    with SqliteLog(path) as log:
        assert log.start_positions("tokens") == log.end_positions("tokens") == {TOKENS: 1200}
        assert log.positions_at("tokens", 0) == {TOKENS: 1200}
        log.append("tokens", records(b"next"))
        assert read_all(log, "tokens") == [(1200, b"next")]
        with log.reader({TOKENS: 1200}) as reader:
            batch: RecordBatch = reader.poll(0.0)[0]
            assert batch.log_times_us[0] >= first_us


def test_a_reader_behind_which_records_were_removed_is_told(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("batches", records(b"0", b"1", b"2"))
        place = TopicPartition("batches", 0)
        with log.reader({place: 0}) as reader:
            assert len(reader.poll(0.0, max_records=1)) == 1
            log.remove_before({TopicPartition("batches", 0): 2})
            with pytest.raises(PositionOutOfRange, match="must be from 2 to 3, got 1"):
                reader.poll(0.0)
        with pytest.raises(PositionOutOfRange, match="must be from 2 to 3, got 0"):
            log.reader({place: 0})


def test_facts_are_never_removed(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("events", records(b"a"))
        with pytest.raises(LogError, match="topic must be tokens or batches, got events"):
            log.remove_before({TopicPartition("events", 0): 1})
        with pytest.raises(PositionOutOfRange, match="up to its end 0, got 1"):
            log.remove_before({TopicPartition("tokens", 0): 1})
        assert read_all(log) == [(0, b"a")]
