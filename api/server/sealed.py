"""A DuckDB that can only read one copy of the book after another.

Used in a process of its own (`sql_child.py`, `quack_child.py`), so that it can be killed.

Invariants: once it is sealed, no setting can be changed and nothing outside the folder of copies
can be opened, by anybody; and the process can't grow over its limit, nor write a byte to a file.
"""

from __future__ import annotations

import ctypes
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

import duckdb

from api.server.sql_guard import add_guard

PR_SET_PDEATHSIG = 1
BESIDE_BYTES = 3 * 1024**3
"""Address space for code, threads and what DuckDB takes without counting it."""


def confine(memory_mb: int) -> None:
    """Limit this process: it dies with its parent, writes no file, and can't take the machine's
    memory, whatever DuckDB thinks that it uses."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    most = memory_mb * 1024 * 1024 + BESIDE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Sealed:
    """The DuckDB, and the copy that it shows under the names of the book's tables and views."""

    def __init__(self, folder: Path, memory_mb: int, extensions: Sequence[str] = ()) -> None:
        self.connection = duckdb.connect()
        for extension in extensions:
            self.connection.load_extension(extension)
        self._shown = 0
        add_guard(self.connection)
        for name, value in (
            ("TimeZone", "UTC"),
            ("memory_limit", f"{memory_mb}MB"),
            ("threads", 2),
            ("temp_directory", ""),
            ("python_enable_replacements", False),
            ("allow_community_extensions", False),
            ("autoload_known_extensions", False),
            ("autoinstall_known_extensions", False),
            ("allowed_directories", [f"{folder}/"]),
        ):
            self.connection.execute(f"SET GLOBAL {name} = ?", [value])

    def seal(self) -> None:
        """From now on it only reads."""
        self.connection.execute("SET enable_external_access = false")
        self.connection.execute("SET lock_configuration = true")

    def show(self, copy: Path, position: str, taken_at: str) -> None:
        """Show another copy: queries that run go on with the one that they began with."""
        new, old = f"copy_{self._shown + 1}", f"copy_{self._shown}"
        cursor = self.connection.cursor()
        cursor.execute(f"ATTACH '{copy}' AS {new} (READ_ONLY)")
        names = cursor.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = ?"
            " UNION SELECT view_name FROM duckdb_views() WHERE database_name = ? AND NOT internal",
            [new, new],
        ).fetchall()
        cursor.execute("BEGIN")
        for (name,) in names:
            cursor.execute(f'CREATE OR REPLACE VIEW main."{name}" AS FROM {new}.main."{name}"')
        cursor.execute(
            f"CREATE OR REPLACE VIEW main.snapshot AS SELECT '{position}' AS position,"
            f" TIMESTAMPTZ '{taken_at}' AS taken_at"
        )
        cursor.execute("COMMIT")
        if self._shown:
            cursor.execute(f"DETACH {old}")
        self._shown += 1
        cursor.close()
