"""What only the SQLite log promises: offsets without holes, one safe file, bounded side files."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ledger.log import Fenced, LogError, PositionOutOfRange, Record, TopicPartition
from ledger.sqlite.file import WAL_BYTES_MAX
from ledger.sqlite_log import SqliteLog
from tests.sqlite_logs import EVENTS, SPAWN, TOKENS, assert_sound, read_all, records


def wal_bytes(path: Path) -> int:
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else 0


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


def test_an_append_to_several_topics_that_fails_in_one_is_in_none(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        bad = [*records(b"b"), Record("k", [1])]  # type: ignore[arg-type]
        with pytest.raises(LogError):
            log.append_each({"tokens": records(b"a"), "events": bad})
        assert read_all(log, "tokens") == read_all(log) == []


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
