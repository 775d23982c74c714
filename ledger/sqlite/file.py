"""The file under a SqliteLog: made once, opened safely, locked for every write.

Invariants kept here:

- One writer at a time, over all processes: a `flock` on `<path>-lock`, then BEGIN IMMEDIATE.
- No checkpoint runs beside a commit. SQLite before 3.51.3 can lose commits where they meet (its
  "WAL-reset bug"), and TRUNCATE alone does not keep them apart: with the write lock taken it goes
  on as a passive checkpoint. Hence the flock around both, and no automatic checkpoints.
- No connection is alive across a fork: SQLite would believe in the child that it holds locks
  which only the parent holds, and the parent's close would then delete the child's WAL.
- Nothing here opens the database file but SQLite: closing any other descriptor of it would drop
  all locks that this process holds on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from ledger.log import LogError, LogUnavailable
from ledger.sqlite.schema import check_place, connect, explained, is_busy, prepare

T = TypeVar("T")

WAL_BYTES_MAX = 16 * 1024 * 1024
"""A commit that leaves a larger WAL is followed by a checkpoint."""

CHECKPOINT_WAIT_MS = 100
"""How long a checkpoint, and every writer behind it, waits for readers."""

READ_TIMEOUT_S = 30.0
"""Reads wait only while another process opens or closes the file as its only user."""

FORK_WAIT_S = 10.0


class LogFile:
    """One connection to a log's file, for one thread at a time (it waits for others)."""

    def __init__(self, path: str | os.PathLike[str], file_id: tuple[int, int] | None = None):
        """`file_id` (device, inode): the file that it must be; None makes or accepts any log."""
        self.path = os.path.realpath(path)
        self.generation = 0
        """How often it was connected: `PRAGMA data_version` compares only within one."""
        self._file_id = file_id
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._lock_fd = -1
        self._pid = os.getpid()
        self._wal_limit = WAL_BYTES_MAX
        self._closed = False
        with _fork_lock:
            _files.add(self)

    def make(self, timeout_s: float) -> None:
        """Make the log if the file is new or empty, else check that it is a log of ours."""
        try:
            # It opens the file, too: a process that forks meanwhile would leave its child SQLite's
            # own locks, which nobody there lets go of.
            with self._lock:
                check_place(self.path)
        except OSError as error:
            raise explained(self.path, error) from error
        self._retry(
            lambda connection: self._exclusively(lambda: prepare(connection, self.path)), timeout_s
        )

    def another(self) -> LogFile:
        """One more connection to this very file."""
        return LogFile(self.path, self._file_id)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one snapshot, which ends with it."""
        return self._retry(lambda connection: _transact(connection, "BEGIN", work), READ_TIMEOUT_S)

    def write(self, work: Callable[[sqlite3.Connection], T], timeout_s: float) -> T:
        """Run `work` in one transaction as the only writer; durable when it returns.

        Raises LogUnavailable when others held the lock for `timeout_s`, or the disk is full;
        nothing of `work` happened if `work` raises."""

        def attempt(connection: sqlite3.Connection) -> T:
            result = _transact(connection, "BEGIN IMMEDIATE", work)
            self._bound_wal(connection)
            return result

        return self._retry(
            lambda connection: self._exclusively(lambda: attempt(connection)), timeout_s
        )

    def outside_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` with nothing around it: a pragma, a backup."""
        return self._retry(work, READ_TIMEOUT_S)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def _retry(self, attempt: Callable[[sqlite3.Connection], T], timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = min(max(0.0, deadline - time.monotonic()), 86_400.0)
            if not self._lock.acquire(timeout=left_s):
                raise LogUnavailable(f"{self.path}: another thread used it for {timeout_s} s")
            try:
                return attempt(self._usable())
            except BlockingIOError:
                pass
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise explained(self.path, error) from error
            except OSError as error:
                raise explained(self.path, error) from error
            finally:
                self._lock.release()
            if time.monotonic() >= deadline:
                raise LogUnavailable(f"{self.path}: other writers held it for {timeout_s} s")
            # Jitter: with equal waits the same loser meets the same winner every time.
            time.sleep(random.uniform(0.0002, 0.003))

    def _exclusively(self, work: Callable[[], T]) -> T:
        if self._lock_fd < 0:
            self._lock_fd = os.open(f"{self.path}-lock", os.O_RDONLY | os.O_CREAT, 0o644)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            return work()
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _usable(self) -> sqlite3.Connection:
        if self._closed:
            raise LogError(f"{self.path}: used after close()")
        if self._connection is None:
            self._connection = connect(self.path, may_create=self._file_id is None)
            self._pid = os.getpid()
            self.generation += 1
        elif self._pid != os.getpid():
            raise LogError(
                f"{self.path}: opened in process {self._pid}, must not be used in {os.getpid()},"
                " which was forked past Python: open the log there"
            )
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            raise LogError(f"{self.path}: the file was removed while the log was open") from None
        if self._file_id is None:
            self._file_id = (status.st_dev, status.st_ino)
        elif self._file_id != (status.st_dev, status.st_ino):
            raise LogError(f"{self.path}: the file was replaced while the log was open")
        return self._connection

    def _bound_wal(self, connection: sqlite3.Connection) -> None:
        """Move a long WAL into the database. Never raises, since the commit before it stands."""
        try:
            wal_bytes = os.stat(f"{self.path}-wal").st_size
        except OSError:
            return
        if wal_bytes <= self._wal_limit:
            return
        # Behind a long reader (a backup) or a full disk not every append should try it again.
        self._wal_limit = wal_bytes + WAL_BYTES_MAX
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
            if not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                self._wal_limit = WAL_BYTES_MAX
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout = 0")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        lock_fd, self._lock_fd = self._lock_fd, -1
        if self._pid != os.getpid():
            _never_closed.append(connection)
            return
        if lock_fd >= 0:
            os.close(lock_fd)
        if connection is not None:
            connection.close()

    def before_fork(self) -> bool:
        """Disconnect and hold still until `after_fork`; False if a thread would not let go."""
        if not self._lock.acquire(timeout=FORK_WAIT_S):
            return False
        self._disconnect()
        return True

    def after_fork(self) -> None:
        self._lock.release()


def _transact(
    connection: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]
) -> T:
    try:
        connection.execute(begin)
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


_files: weakref.WeakSet[LogFile] = weakref.WeakSet()
_fork_lock = threading.Lock()
_held_for_fork: list[LogFile] = []
_never_closed: list[sqlite3.Connection | None] = []
"""Connections of a parent process: closing one in a child could delete the parent's WAL."""


def _before_fork() -> None:
    _fork_lock.acquire()
    _held_for_fork.extend(file for file in list(_files) if file.before_fork())


def _after_fork() -> None:
    while _held_for_fork:
        _held_for_fork.pop().after_fork()
    _fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
