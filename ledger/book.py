"""The book: one DuckDB file, projected from the log, disposable.

Invariants:

1. The rows and the positions that they were read up to change in one transaction.
2. A book belongs to one log (`identity`) and to one set of tables, views and schemas (`hash`);
   with another log it is refused, with another set it is rebuilt from the log.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Generator, Mapping
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from ledger.book_sql import VIEWS, book_hash, sql_file
from ledger.empty_book import Statements, copy_to, is_made
from ledger.log import Positions, TopicPartition

MEMORY_LIMIT = "2GB"


class BookError(Exception):
    """Something is wrong with a book; the message says value, rule and place."""


class BookInUse(BookError):
    """Another process has the book open."""


class BookOfAnotherLog(BookError):
    """The book was projected from another log."""


def connect(path: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB file. Raises BookInUse, BookError."""
    if read_only and not path.exists():
        raise BookError(f"there is no book at {path} (rollbook project makes one)")
    try:
        # Without its type, DuckDB would download what reads a file of another database.
        connection = duckdb.connect(f"duckdb:{path.absolute()}", read_only=read_only)
    except duckdb.IOException as error:
        if "not a valid DuckDB" in str(error):
            raise BookError(
                f"a book must be a DuckDB file, and {path} is not a valid DuckDB one"
                " (a log is named by --log)"
            ) from error
        if "Conflicting lock" not in str(error):
            raise BookError(f"{path} can't be opened as a book: {error}") from error
        holder = re.search(r"\(PID (\d+)\)", str(error))
        who = f"process {holder[1]}" if holder else "another process"
        raise BookInUse(
            f"book {path} is open in {who}, and a DuckDB file has one owner at a time:"
            f" ask that process{_where_served(path)}, or stop it"
        ) from error
    except duckdb.Error as error:
        raise BookError(f"{path} is no DuckDB file: {error}") from error
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    _spill_to(connection, f"{path.absolute()}.tmp")
    # Small checkpoints cost a projection that catches up more than they save.
    connection.execute("SET checkpoint_threshold = '256MB'")
    return connection


def _spill_to(connection: duckdb.DuckDBPyConnection, folder: str) -> None:
    """What doesn't fit into memory goes there. By itself DuckDB would put the file's type before
    its name; once it has gone somewhere, nothing can be set."""
    if connection.execute("SELECT current_setting('temp_directory')").fetchone() != (folder,):
        connection.execute("SET temp_directory = $folder", {"folder": folder})


def positions_in(connection: duckdb.DuckDBPyConnection) -> Positions:
    """Up to where the book that `connection` sees has read the log; no place where nothing was."""
    rows = connection.execute(
        "SELECT log_partition, next_offset FROM positions WHERE topic = 'events'"
    ).fetchall()
    return {TopicPartition("events", int(place)): int(offset) for place, offset in rows}


def served_at(path: Path) -> Path:
    """The file beside a book that says where its owner answers, while `rollbook serve` has it."""
    return path.with_name(path.name + ".served")


def _where_served(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return f" ({served_at(path).read_text().strip()})"
    return ""


def _of_tables() -> Statements:
    return sql_file("book.sql"), sql_file("tables.sql")


def _of_views() -> Statements:
    told = f"INSERT INTO book_meta VALUES ('hash', '{book_hash()}')"
    return *(sql_file(f"views/{view}.sql") for view in VIEWS), told


@cache
def _whole() -> Statements:
    """All that makes a book of no log yet."""
    return *_of_tables(), *_of_views()


class Book:
    """A book open for writing, by its only owner."""

    def __init__(self, path: Path, log_identity: str, *, views: bool = True) -> None:
        """Open the book at `path`, made empty if missing; without `views` a new one is not
        current before `add_views`.

        Raises BookOfAnotherLog, BookInUse, BookError."""
        self.path = path
        self.writing = threading.Lock()
        """Held by each transaction; whoever holds it may copy the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() and (views or is_made(_whole())):
            copy_to(path, _whole())
        self.connection = connect(path)
        try:
            if not self._tables():
                self._create()
                if views:
                    self.add_views()
            self._check(log_identity)
        except BaseException:
            self.connection.close()
            raise

    @property
    def current(self) -> bool:
        """Whether it was built with the tables, views and schemas of this version."""
        return self.meta().get("hash") == book_hash()

    def add_views(self) -> None:
        """Give a new book its views, which takes longer than everything else about it."""
        if "hash" in self.meta():
            return
        with self.transaction() as connection:
            for statement in _of_views():
                connection.execute(statement)

    def meta(self) -> dict[str, str]:
        """What the book was built with and from."""
        rows = self.connection.execute("SELECT name, value FROM book_meta").fetchall()
        return {str(name): str(value) for name, value in rows}

    def positions(self) -> Positions:
        """Where to read the log on."""
        return positions_in(self.connection)

    def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store positions; part of the caller's transaction."""
        if not positions:
            return
        # As an Arrow table: of a list parameter, DuckDB's client looks for pandas at every item.
        topics, partitions = zip(*positions, strict=True)
        rows = {
            "topic": pa.array(topics, pa.string()),
            "log_partition": pa.array(partitions, pa.int32()),
            "next_offset": pa.array(list(positions.values()), pa.int64()),
        }
        self.connection.register("new_positions", pa.Table.from_pydict(rows))
        self.connection.execute(
            "DELETE FROM positions WHERE (topic, log_partition) IN"
            " (SELECT (topic, log_partition) FROM new_positions)"
        )
        self.connection.execute("INSERT INTO positions FROM new_positions")
        self.connection.unregister("new_positions")

    @contextlib.contextmanager
    def transaction(self) -> Generator[duckdb.DuckDBPyConnection]:
        """All of the block's changes, or none."""
        with self.writing:
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            except BaseException:
                with contextlib.suppress(duckdb.Error):  # some errors have rolled back already
                    self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()

    def _tables(self) -> set[str]:
        rows = self.connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        return {str(name) for (name,) in rows}

    def _create(self) -> None:
        with self.transaction() as connection:
            for statement in _of_tables():
                connection.execute(statement)

    def _check(self, log_identity: str) -> None:
        if "book_meta" not in self._tables():
            raise BookError(f"{self.path} is a DuckDB file, but no book: it has no book_meta")
        log = self.meta().get("log")
        if log is None:
            self.connection.execute("INSERT INTO book_meta VALUES ('log', ?)", [log_identity])
        elif log != log_identity:
            raise BookOfAnotherLog(
                f"book {self.path} was projected from log {log}, not from {log_identity}:"
                " give another --book, or remove the file to build it anew"
            )
