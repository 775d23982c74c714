"""One consistent look at the book: rows and the position that they belong to.

Invariant: everything that one `Reading` answers is of one position, since it is one transaction;
and it ends at its limit, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence
from typing import Any

import duckdb

from api.server.as_of import AsOf
from api.server.problems import Problem
from ledger.book import positions_in
from ledger.log import Positions

Row = dict[str, Any]


class Reading:
    """A transaction on a cursor of its own."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, as_of: Positions | None) -> None:
        self._cursor = cursor
        self._then = None if as_of is None else AsOf(cursor, as_of)
        self.positions = positions_in(cursor) if as_of is None else as_of
        """Where the book was, for each partition."""

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """For what asks a connection; inside the same transaction."""
        if self._then is not None:
            self._then.prepare_all()
        return self._cursor

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """(n,) rows by column name."""
        if self._then is not None:
            self._then.prepare(query)
        result = self._cursor.execute(query, list(parameters))
        names = [str(column[0]) for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def one(self, query: str, parameters: Sequence[Any] = ()) -> Row | None:
        """The first row; None where there is none."""
        return next(iter(self.rows(query, parameters)), None)


class Readings:
    """Opens readings of a book; used from any thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, limit_s: float) -> None:
        self._connection = connection.cursor()
        self._making = threading.Lock()
        self._limit_s = limit_s

    @contextlib.contextmanager
    def open(self, as_of: Positions | None = None) -> Generator[Reading]:
        """A reading of the book as it is, or as it was. Raises Problem when it takes too long."""
        with self._making:
            cursor = self._connection.cursor()
        timer = threading.Timer(self._limit_s, cursor.interrupt)
        timer.daemon = True
        timer.start()
        try:
            cursor.execute("SET TimeZone = 'UTC'")
            cursor.execute("BEGIN")
            yield Reading(cursor, as_of)
        except duckdb.OutOfMemoryException as error:
            raise Problem(
                503, "out_of_memory", rule=str(error).partition("\n")[0], place="the book"
            ) from None
        except duckdb.InterruptException:
            raise Problem(
                503,
                "too_slow",
                rule=f"an answer may take {self._limit_s:g} s",
                place="[serve] answer_s",
            ) from None
        finally:
            timer.cancel()
            cursor.close()
