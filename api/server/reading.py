"""One consistent look at the book: rows and the position that they belong to.

Invariant: everything that one `Reading` answers is of one position, since it is one transaction;
and it ends at its limit, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any
from uuid import UUID

import duckdb

from api.server.as_of import as_of
from api.server.problems import Problem
from ledger.accounts.row_sources import RowSource, RowSources
from ledger.book import positions_in
from ledger.log import Positions
from ledger.stand_ins import StandIns

Row = dict[str, Any]


class Reading:
    """A transaction on a cursor."""

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        stand_ins: StandIns | None,
        positions: Positions | None = None,
        source: RowSource | None = None,
    ) -> None:
        """`positions`: of the past that it is of; null: it is of now. `source`: it is for the
        rows of one view."""
        self._cursor = cursor
        self.source = source
        self._stand_ins = stand_ins
        self.positions = positions_in(cursor) if positions is None else positions
        """Where the book was, for each partition."""

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """For what asks a connection; inside the same transaction."""
        if self._stand_ins is not None:
            self._stand_ins.prepare_all()
        return self._cursor

    def cursor_for(self, *views: str) -> duckdb.DuckDBPyConnection:
        """The same, for what asks for these views alone."""
        if self._stand_ins is not None:
            self._stand_ins.prepare(" ".join(views))
        return self._cursor

    def rows(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
        """(n,) rows by column name."""
        result = self.cursor_for(query).execute(query, parameters)
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
        self._sources: list[RowSources] = []
        """Idle; what they have made is worth keeping."""
        self._limit_s = limit_s

    def newest(self) -> Positions:
        """Where the book is: no answer was of a later position. (The projector says where it is a
        moment after it is there.)"""
        with self.open() as reading:
            return reading.positions

    @contextlib.contextmanager
    def open(self, then: Positions | None = None) -> Generator[Reading]:
        """A reading of the book as it is, or as it was then. Raises Problem when it takes too
        long."""
        with self._making:
            cursor = self._connection.cursor()
        try:
            with self._within_limit(cursor.interrupt):
                cursor.execute("SET TimeZone = 'UTC'")
                cursor.execute("BEGIN")
                yield Reading(cursor, None if then is None else as_of(cursor, then), then)
        finally:
            cursor.close()

    @contextlib.contextmanager
    def open_view(
        self, view: str, run_id: UUID | None, then: Positions | None = None
    ) -> Generator[Reading]:
        """A reading for the rows of one view, of a run where one is given: `source` says where they
        are. Of other views it may show a part. `then`: as `open`, without a source where something
        came since. Raises Problem."""
        if then is None or then == self.newest():
            with self._open_view(view, run_id) as reading:
                if then is None or then == reading.positions:
                    yield reading
                    return
        with self.open(then) as reading:
            yield reading

    @contextlib.contextmanager
    def _open_view(self, view: str, run_id: UUID | None) -> Generator[Reading]:
        with self._making:
            sources = self._sources.pop() if self._sources else RowSources(self._connection)
        with self._within_limit(sources.interrupt), sources.of(view, run_id) as source:
            yield Reading(source.cursor, source.stand_ins, source=source)
        with self._making:
            self._sources.append(sources)

    @contextlib.contextmanager
    def _within_limit(self, interrupt: Callable[[], None]) -> Generator[None]:
        timer = threading.Timer(self._limit_s, interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
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
