"""The book as far as some of its rows go, for one cursor.

Temporary views of the cursor stand before the book's tables, each with a part of its rows. The
book's own views find them there, since DuckDB looks up what a view names when it is asked; so an
answer about a part is the same query. Nothing is copied, and nobody else sees them: they go with
the cursor.

Invariant: whatever a query names, and whatever that is made of, shows its part before the query
runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import duckdb

from ledger.book_sql import VIEWS, sql_file

Part = Callable[[str, str], str | None]
"""From the name of a table or view, and its name that nothing stands before, to the query that
stands for it; null: itself."""


class StandIns:
    """The temporary views of one cursor, made as they are needed."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, part: Part) -> None:
        self._cursor = cursor
        whole = whole_names(cursor)
        self._queries = {
            name: query
            for name in (*tables(), *VIEWS)
            if (query := part(name, whole(name))) is not None
        }
        self._made: set[str] = set()

    def prepare(self, query: str) -> None:
        """Make what `query` needs, where it isn't there yet."""
        needed, further = set[str](), named(query) - self._made
        while further:
            needed |= further
            whole = (made_of(name) | named(self._queries.get(name, "")) for name in further)
            further = set[str]().union(*whole) - needed - self._made
        for name in sorted(needed & self._queries.keys()):
            self._cursor.execute(f'CREATE OR REPLACE TEMP VIEW "{name}" AS {self._queries[name]}')
        self._made |= needed

    def drop(self) -> None:
        """None of them stands before anything any more."""
        made, self._made = self._made & self._queries.keys(), set()  # also if it is interrupted
        for name in made:
            self._cursor.execute(f'DROP VIEW IF EXISTS temp.main."{name}"')

    def prepare_all(self) -> None:
        """Make everything, for who asks the cursor itself."""
        self.prepare(" ".join(VIEWS))


def whole_names(cursor: duckdb.DuckDBPyConnection) -> Callable[[str], str]:
    """From the name of a table or view of the book to the name that nothing stands before."""
    (book,) = cursor.execute("SELECT current_database()").fetchone() or ("",)
    return lambda name: f'"{book}".main."{name}"'


@cache
def tables() -> dict[str, str]:
    """The book's tables, each with the text that makes it."""
    text = sql_file("book.sql") + sql_file("tables.sql")
    found = re.findall(r"^CREATE TABLE (\w+) \((.*?)^\);", text, re.M | re.S)
    return {str(name): str(columns) for name, columns in found}


def named(text: str) -> set[str]:
    """The tables and views that `text` may mean: every word that is the name of one, but in
    comments and strings."""
    words = re.findall(r"--[^\n]*|'[^']*'|(\w+)", text)
    return set(words) & (tables().keys() | set(VIEWS))


@cache
def made_of(name: str) -> frozenset[str]:
    """What a view is made of, down to the tables: of what its text names, all that stands before
    it. (A column of another view's name makes that too, which does no harm.)"""
    if name in tables():
        return frozenset()
    before = tables().keys() | set(VIEWS[: VIEWS.index(name)])
    direct = named(sql_file(f"views/{name}.sql")) & before
    return frozenset(direct.union(*(made_of(each) for each in direct)))
