"""What only the SQLite log promises: offsets without holes, one safe file, bounded side files."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ledger.log import (
    Fenced,
    LogError,
    PositionOutOfRange,
    Record,
    RecordBatch,
    Topic,
    TopicPartition,
)
from ledger.sqlite.file import WAL_BYTES_MAX
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


def wal_bytes(path: Path) -> int:
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else 0


def assert_sound(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# Offsets and durability


def test_offsets_count_from_0_in_each_topic(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("events", records(b"a", b"b"))
        log.append("tokens", records(b"c"))
        log.append("events", records(b"d"))
        assert read_all(log) == [(0, b"a"), (1, b"b"), (2, b"d")]
        assert read_all(log, "tokens") == [(0, b"c")]
        assert log.end_positions("events") == {EVENTS: 3}


def test_an_append_that_fails_in_the_middle_leaves_no_hole(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("events", records(b"a"))
        with pytest.raises(LogError):
            log.append("events", [*records(b"b"), Record("k", [1])])  # type: ignore[arg-type]
        log.append("events", records(b"c"))
        assert read_all(log) == [(0, b"a"), (1, b"c")]


def append_until_killed(path: Path, round_number: int, done: Connection) -> None:
    with SqliteLog(path) as log:
        for n in range(1_000_000):
            log.append(
                "events", [Record("g", b"%d:%d:%d" % (round_number, n, i)) for i in range(99)]
            )
            done.send(n)


@pytest.mark.fault
def test_a_writer_killed_at_any_moment_leaves_whole_appends_and_no_hole(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "log.db"
    expected: list[bytes] = []
    with SqliteLog(path) as log:
        for round_number in range(5):
            done, its_end = SPAWN.Pipe(duplex=False)
            process = SPAWN.Process(target=append_until_killed, args=(path, round_number, its_end))
            process.start()
            its_end.close()
            completed = done.recv()
            time.sleep(rng.uniform(0.0, 0.1))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            with contextlib.suppress(EOFError):
                while True:
                    completed = done.recv()
            rows = read_all(log)
            assert [offset for offset, _ in rows] == list(range(len(rows)))
            # The kill may have come between the commit of one more append and its report.
            appends = (len(rows) - len(expected)) // 99
            assert appends in (completed + 1, completed + 2)
            expected += [
                b"%d:%d:%d" % (round_number, n, i) for n in range(appends) for i in range(99)
            ]
            assert [value for _, value in rows] == expected
            log.append("events", records(b"between"))
            expected.append(b"between")
    assert_sound(path)


def test_a_log_time_does_not_step_back_with_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append("events", records(b"a"))
    ahead_us = time.time_ns() // 1000 + 3_600_000_000
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE topics SET last_log_time_us = ?", (ahead_us,))
        connection.commit()
    with SqliteLog(path) as log:
        log.append("events", records(b"b", b"c"))
        with log.reader({EVENTS: 1}) as reader:
            assert [batch.log_times_us for batch in reader.poll(0.0)] == [[ahead_us, ahead_us]]


def append_megabytes(path: Path, writer: int, count: int) -> None:
    with SqliteLog(path) as log:
        for n in range(count):
            value = random.Random(n).randbytes(1024)
            log.append("events", [Record(f"g{writer}", value) for _ in range(1024)])


def test_the_wal_stays_bounded_under_writers_and_readers(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    largest = 0
    with SqliteLog(path) as log:
        writers = [SPAWN.Process(target=append_megabytes, args=(path, n, 40)) for n in range(2)]
        for writer in writers:
            writer.start()
        with log.reader({EVENTS: 0}) as reader:
            while reader.positions != {EVENTS: 80 * 1024}:
                assert reader.poll(20.0)
                largest = max(largest, wal_bytes(path))
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [0, 0]
        # Readers may hold up a checkpoint or two; with none it would be 83 MB.
        assert WAL_BYTES_MAX // 2 < largest < 4 * WAL_BYTES_MAX
    assert_sound(path)
    assert wal_bytes(path) == 0


# The reader


def test_a_poll_of_large_values_ends_before_it_fills_memory(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("tokens", records(*[bytes(1024 * 1024)] * 70))
        with log.reader({TOKENS: 0}) as reader:
            assert [len(batch) for batch in reader.poll(0.0)] == [64]
            assert reader.positions == {TOKENS: 64}


def test_a_busy_topic_does_not_keep_a_reader_from_the_others(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("events", records(*[b"e"] * 100))
        log.append("tokens", records(*[b"t"] * 10))
        with log.reader({EVENTS: 0, TOKENS: 0}) as reader:
            topics = {batch.topic for _ in range(2) for batch in reader.poll(0.0, max_records=5)}
            assert topics == {"events", "tokens"}


def test_a_reader_names_the_bounds_when_its_position_is_outside(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        with pytest.raises(PositionOutOfRange, match="events/0 must be from 0 to 0, got 1"):
            log.reader({EVENTS: 1})
        with pytest.raises(PositionOutOfRange, match="got events/3"):
            log.reader({TopicPartition("events", 3): 0})


# Fences


def fenced_append_when_told(path: Path, pipe: Connection) -> None:
    with SqliteLog(path) as log, log.fenced_writer("assembler:run-1") as writer:
        writer.append({"events": records(b"old")})
        pipe.send("ready")
        pipe.recv()
        try:
            writer.append({"events": records(b"late"), "batches": records(b"late")})
        except Fenced as error:
            pipe.send(str(error))


def test_a_fenced_writer_that_wakes_from_a_pause_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=fenced_append_when_told, args=(path, theirs))
    process.start()
    assert ours.recv() == "ready"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    ours.send("go")
    with SqliteLog(path) as log, log.fenced_writer("assembler:run-1") as writer:
        writer.append({"events": records(b"new")})
        os.kill(process.pid, signal.SIGCONT)
        assert ours.recv() == (
            f"fenced writer 'assembler:run-1' has epoch 1, but 2 exists ({path})"
        )
        process.join()
        assert read_all(log) == [(0, b"old"), (1, b"new")]
        assert read_all(log, "batches") == []


# Backup and removal


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
