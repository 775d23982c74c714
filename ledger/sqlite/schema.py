"""What a SqliteLog's file must be: its place, its header, its tables, and what errors mean.

A file of something else is refused before SQLite could alter it, and never made into a log."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import uuid
from pathlib import Path
from urllib.parse import quote

from ledger.log import TOPICS, LogError, LogUnavailable

APPLICATION_ID = 0x526F6C6C
""""Roll" in ASCII, bytes 68..71 of the file."""

SCHEMA_VERSION = 1

NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs4?|cifs|smb3|smbfs|afs|ceph|lustre|gpfs|beegfs|glusterfs"
    r"|fuse\.(sshfs|ceph|glusterfs|s3fs|gcsfuse|rclone|juicefs)"
)
"""There neither locks nor the WAL's shared memory reach over machines."""

_RECORDS = """
CREATE TABLE {topic} (
    offset INTEGER PRIMARY KEY, log_time_us INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL
)"""

_TABLES = (
    "CREATE TABLE meta (identity TEXT NOT NULL)",
    "CREATE TABLE fences (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL)",
    # Counters, not AUTOINCREMENT: that starts at 1, and the last log time of a topic must outlive
    # its records.
    """CREATE TABLE topics (
        topic TEXT PRIMARY KEY,
        start_offset INTEGER NOT NULL DEFAULT 0,
        end_offset INTEGER NOT NULL DEFAULT 0,
        last_log_time_us INTEGER NOT NULL DEFAULT 0
    )""",
    *(_RECORDS.format(topic=topic) for topic in TOPICS),
)


def check_place(path: str) -> None:
    """Raise LogError where no log can be, or where something else already is."""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise LogError(f"the directory of a SQLite log must exist, got {path}")
    if os.path.isdir(path):
        raise LogError(f"a SQLite log must be a file, got the directory {path}")
    file_system = file_system_of(directory)
    if NETWORK_FILE_SYSTEMS.fullmatch(file_system):
        raise LogError(f"a SQLite log must be on a local disk, got {path} on {file_system}")
    if os.path.exists(path) and os.path.getsize(path):
        try:
            # Immutable: a plain connection to a foreign WAL database checkpoints it on closing.
            connection = sqlite3.connect(f"{_uri(path)}?mode=ro&immutable=1", uri=True)
            try:
                check_header(connection, path)
            finally:
                connection.close()
        except sqlite3.Error as error:
            # Without its WAL a sound log looks corrupt while a checkpoint is under way, or after a
            # crash or a full disk in the middle of one. `prepare` looks again, with the WAL.
            if _code(error) != sqlite3.SQLITE_CORRUPT:
                raise explained(path, error) from error


def check_header(connection: sqlite3.Connection, path: str) -> None:
    """Raise LogError unless the database is a log of this version."""
    application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if application_id != APPLICATION_ID:
        raise LogError(
            f"{path} is a database of something else: application_id must be"
            f" {APPLICATION_ID:#x}, got {application_id:#x}"
        )
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version != SCHEMA_VERSION:
        raise LogError(
            f"{path} must have log format {SCHEMA_VERSION}, got {version}: another release made it"
        )


def connect(path: str, may_create: bool) -> sqlite3.Connection:
    """A connection without automatic transactions, waits or checkpoints."""
    connection = sqlite3.connect(
        f"{_uri(path)}?mode={'rwc' if may_create else 'rw'}",
        uri=True,
        timeout=0.0,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # Some builds overwrite removed records with zeros, through the WAL.
    connection.execute("PRAGMA secure_delete = FAST")
    return connection


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in an empty database; many processes may do it at once.

    One transaction in rollback mode, and WAL only then: the file is empty or has our
    application_id, at any moment and after any crash."""
    if _is_empty(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _is_empty(connection):
                _create(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    check_header(connection, path)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise LogError(f"{path}: its file system must support SQLite's WAL, got mode {mode}")


def _is_empty(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return not tables and not connection.execute("PRAGMA application_id").fetchone()[0]


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES (?)", (str(uuid.uuid4()),))
    connection.executemany("INSERT INTO topics (topic) VALUES (?)", [(name,) for name in TOPICS])


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection held a lock, so that trying again helps."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def explained(path: str, error: sqlite3.Error | OSError) -> LogError:
    """`error` as the log's own, with the path and what must hold."""
    code = _code(error) if isinstance(error, sqlite3.Error) else None
    number = error.errno if isinstance(error, OSError) else None
    if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT):
        return LogUnavailable(f"{path}: the disk must have room for an append, it is full")
    if code == sqlite3.SQLITE_IOERR or number == errno.EIO:
        return LogUnavailable(f"{path}: the disk failed ({error})")
    if code == sqlite3.SQLITE_NOTADB:
        return LogError(
            f"{path} must be a SQLite database, its first bytes are something else"
            " (a book is named by --book)"
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return LogError(f"{path} is corrupt ({error}): restore it from a backup")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return LogError(f"{path} and its directory must be readable and writable ({error})")
    return LogError(f"{path}: {error}")


def file_system_of(directory: str) -> str:
    """The type of the file system that holds an absolute directory; "" where it isn't known."""
    try:
        lines = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        _, mount, mount_kind = line.split(" ")[:3]
        mount = mount.replace("\\040", " ").rstrip("/")
        if (directory + "/").startswith(mount + "/") and len(mount) >= len(best):
            best, kind = mount, mount_kind
    return kind


def _uri(path: str) -> str:
    return "file:" + quote(os.fsencode(path))


def _code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
