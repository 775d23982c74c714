"""The file under a SQLite log: what is refused, what a full disk, a lock or a fork does to it."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.log import LogError, LogUnavailable
from ledger.sqlite.schema import NETWORK_FILE_SYSTEMS, check_place, file_system_of
from ledger.sqlite_log import SqliteLog
from tests.sqlite_logs import EVENTS, FORK, SPAWN, assert_sound, read_all, records

# What is no log


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def refusal(path: Path) -> str:
    with pytest.raises(LogError) as caught:
        SqliteLog(path).close()
    assert not isinstance(caught.value, LogUnavailable)
    return str(caught.value)


@pytest.mark.parametrize("journal_mode", ["DELETE", "WAL"])
def test_a_database_of_something_else_is_refused_and_unchanged(
    tmp_path: Path, journal_mode: str
) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal_mode}")
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.commit()
        before = contents(tmp_path)
        assert refusal(path) == (
            f"{path} is a database of something else: application_id must be 0x526f6c6c, got 0x0"
        )
        assert contents(tmp_path) == before


def test_a_text_file_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary,\n" * 1000)
    assert refusal(path).startswith(f"{path} must be a SQLite database")
    assert contents(tmp_path) == {"notes.txt": b"Dear diary,\n" * 1000}


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SqliteLog(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert f"{path} must have log format 1, got 99" in refusal(path)


def test_places_where_no_log_can_be_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "log.db"
    assert refusal(missing) == f"the directory of a SQLite log must exist, got {missing}"
    assert refusal(tmp_path) == f"a SQLite log must be a file, got the directory {tmp_path}"


def test_a_damaged_log_is_named_as_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append("events", records(*[bytes(500)] * 200))
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xa5" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    assert refusal(path).startswith(f"{path} is corrupt")


def test_a_log_whose_last_checkpoint_was_cut_short_opens_with_all_records(tmp_path: Path) -> None:
    path, cut = tmp_path / "log.db", tmp_path / "cut.db"
    with SqliteLog(path) as log:
        log.append("events", records(*[bytes(500)] * 200))
        cut.write_bytes(path.read_bytes())
        cut.with_name("cut.db-wal").write_bytes(path.with_name("log.db-wal").read_bytes())
    with cut.open("r+b") as file:
        # The first page says how many pages there are; the others didn't get into the file.
        file.write(path.read_bytes()[:4096])
    with SqliteLog(cut) as log:
        assert read_all(log) == [(n, bytes(500)) for n in range(200)]
    assert_sound(cut)


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    with SqliteLog(path) as log:
        log.append("events", records(b"a"))
        assert read_all(log) == [(0, b"a")]


@pytest.mark.parametrize("name", ["log 1.db", "what?mode=ro.db", "50%.db", "#1.db", "лог.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    SqliteLog(tmp_path / name).close()
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/mounts")
def test_network_file_systems_are_told_from_local_ones() -> None:
    assert file_system_of("/proc") == "proc"
    network = ["nfs", "nfs4", "cifs", "fuse.sshfs"]
    local = ["ext4", "xfs", "btrfs", "tmpfs", "overlay", ""]
    assert [kind for kind in network + local if NETWORK_FILE_SYSTEMS.fullmatch(kind)] == network


def in_fork(work: Callable[[], None]) -> int | None:
    process = FORK.Process(target=work)
    process.start()
    process.join(30)
    return process.exitcode


def test_missing_permission_is_named() -> None:
    # Not tmp_path: its parents are closed to others, and root must become one here.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        SqliteLog(directory / "log.db").close()
        (directory / "log.db").chmod(stat.S_IRUSR)
        directory.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)

        def check() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            for file in ("log.db", "new.db"):
                assert "must be readable and writable" in refusal(directory / file)

        assert in_fork(check) == 0
        directory.chmod(stat.S_IRWXU)


# Trouble while it is open


def test_a_full_disk_is_named_and_appending_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append("events", records(b"a"))

        def limit_pages(pages: int) -> None:
            log._file.outside_transaction(
                lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
            )

        limit_pages(40)
        with pytest.raises(LogUnavailable, match=f"{path}: the disk must have room"):
            log.append("events", records(b"b", bytes(1024 * 1024)))
        log.append("events", records(b"c"))
        limit_pages(4000)
        log.append("events", records(b"d"))
        assert read_all(log) == [(0, b"a"), (1, b"c"), (2, b"d")]


def test_a_checkpoint_that_finds_no_room_fails_no_append(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    ours, theirs = FORK.Pipe()

    def append_until_full() -> None:
        # The database reaches this size in a checkpoint, the WAL only some appends later.
        resource.setrlimit(resource.RLIMIT_FSIZE, (24 * 1024 * 1024, resource.RLIM_INFINITY))
        with SqliteLog(path) as log:
            for n in range(1000):
                try:
                    log.append("tokens", records(b"%d" % n, bytes(512 * 1024)))
                except LogUnavailable as error:
                    theirs.send((n, str(error)))
                    return

    assert in_fork(append_until_full) == 0
    completed, message = ours.recv()
    assert completed * 512 * 1024 > 32 * 1024 * 1024
    assert message == f"{path}: the disk failed (disk I/O error)"
    with SqliteLog(path) as log:
        short = [value for _, value in read_all(log, "tokens") if len(value) < 9]
        assert short == [b"%d" % n for n in range(completed)]
    assert_sound(path)


def test_a_lock_that_others_hold_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(LogUnavailable, match=f"{path}: other writers held it for 0.2 s"):
            log.append("events", records(b"a"), timeout_s=0.2)
        assert time.monotonic() - started < 1.0
        assert read_all(log) == []
        other.rollback()
        log.append("events", records(b"b"), timeout_s=0.0)
        assert read_all(log) == [(0, b"b")]


def test_a_file_removed_or_replaced_while_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append("events", records(b"a"))
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(LogError, match="removed while the log was open"):
            log.append("events", records(b"b"))
        path.touch()
        with pytest.raises(LogError, match="replaced while the log was open"):
            log.append("events", records(b"b"))


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.close()
    log.close()
    with pytest.raises(LogError, match="used after close"):
        log.append("events", records(b"a"))


# Several processes


def append_in_child(path: Path) -> None:
    with SqliteLog(path) as log:
        log.append("events", records(b"child"))


def test_a_second_log_object_does_not_drop_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append("events", records(b"a"))
        SqliteLog(path).close()
        # Without our lock it would be the last one that closes, and delete the WAL under us.
        child = SPAWN.Process(target=append_in_child, args=(path,))
        child.start()
        child.join()
        log.append("events", records(b"b"))
    with SqliteLog(path) as log:
        assert read_all(log) == [(0, b"a"), (1, b"child"), (2, b"b")]


def test_a_log_and_a_reader_go_on_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    reader = log.reader({EVENTS: 0})
    log.append("events", records(b"parent before"))
    ours, theirs = FORK.Pipe()

    def child() -> None:
        log.append("events", records(b"child"))
        theirs.send("appended")
        theirs.recv()
        # The parent has closed its log: with inherited locks its close took the WAL with it.
        log.append("events", records(b"child after"))
        rows = [value for batch in reader.poll(1.0) for value in batch.values]
        theirs.send(rows)
        # No interpreter shutdown: the fork of a test runner has more to lose than this log.
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    assert ours.recv() == "appended"
    log.append("events", records(b"parent"))
    reader.close()
    log.close()
    ours.send("closed")
    expected = [b"parent before", b"child", b"parent", b"child after"]
    assert ours.recv() == expected
    process.join()
    with SqliteLog(path) as log:
        assert read_all(log) == list(enumerate(expected))


def test_a_fork_waits_for_a_log_that_another_thread_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteLog(tmp_path / "log.db").close()
    began, looked = threading.Event(), threading.Event()

    def look_long(path: str) -> None:
        began.set()
        time.sleep(0.5)
        check_place(path)
        looked.set()

    monkeypatch.setattr("ledger.sqlite.file.check_place", look_long)
    thread = threading.Thread(target=lambda: SqliteLog(tmp_path / "log.db").close())
    thread.start()
    assert began.wait(30)
    assert in_fork(lambda: sys.exit(0 if looked.is_set() else 1)) == 0
    thread.join()


def test_a_fork_waits_for_the_append_of_another_thread(tmp_path: Path) -> None:
    stop = threading.Event()
    with SqliteLog(tmp_path / "log.db") as log:

        def append_all_the_time() -> None:
            while not stop.is_set():
                log.append("events", records(b"thread"))

        thread = threading.Thread(target=append_all_the_time)
        thread.start()
        codes = [in_fork(lambda: log.append("events", records(b"child"))) for _ in range(10)]
        stop.set()
        thread.join()
        assert codes == [0] * 10
        assert [value for _, value in read_all(log)].count(b"child") == 10
