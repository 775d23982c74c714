"""The book as it was, for one reading.

On the reading's own cursor, temporary views stand before the book's tables: each shows what lies
before the position. Over them come the book's own views, as they are in `ledger/views/`, so that an
answer of then is the same query. Nothing is copied or replayed, and nobody else sees them: they go
with the cursor. It differs from a replay in one case: the same fact in two partitions, of which the
projector read the later one first.

Invariant: whatever a query names, and whatever that is made of, is cut off at the position before
the query runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import duckdb

from ledger.book import VIEWS, sql_file
from ledger.log import TopicPartition

_VIEW = "CREATE OR REPLACE VIEW"


class AsOf:
    """The views of one cursor. Made one by one: all of them take a second."""

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, positions: Mapping[TopicPartition, int]
    ) -> None:
        """`cursor` is in the reading's transaction, and sees the book as it is."""
        self._cursor = cursor
        self._positions = positions
        self._before = " OR ".join(
            f"(log_partition = {place.partition} AND log_offset < {offset})"
            for place, offset in positions.items()
        )
        (self._book,) = cursor.execute("SELECT current_database()").fetchone() or ("",)
        self._made: set[str] = set()

    def prepare(self, query: str) -> None:
        """Make what `query` names, where it isn't there yet."""
        names = named(query)
        needed = names.union(*(made_of(name) for name in names)) - self._made
        for table in sorted(needed & tables().keys()):
            self._make_table(table)
        for view in VIEWS:
            if view in needed:
                text = sql_file(f"views/{view}.sql")
                self._cursor.execute(text.replace(_VIEW, "CREATE TEMP VIEW", 1))
        self._made |= needed

    def prepare_all(self) -> None:
        """Make everything, for who asks the cursor itself."""
        self.prepare(" ".join(VIEWS))

    def _make_table(self, table: str) -> None:
        if table == "positions":
            rows = ", ".join(
                f"('{place.topic}', {place.partition}::INTEGER, {offset}::BIGINT)"
                for place, offset in self._positions.items()
            )
            shown = f"FROM (VALUES {rows}) AS t(topic, log_partition, next_offset)"
        else:
            cut = f" WHERE {self._before}" if "log_offset" in tables()[table] else ""
            shown = f'FROM "{self._book}".main."{table}"{cut}'
        self._cursor.execute(f'CREATE TEMP VIEW "{table}" AS {shown}')


@cache
def tables() -> dict[str, str]:
    """The book's tables, each with the text that makes it."""
    text = sql_file("book.sql") + sql_file("tables.sql")
    found = re.findall(r"^CREATE TABLE (\w+) \((.*?)^\);", text, re.M | re.S)
    return {str(name): str(columns) for name, columns in found}


def named(text: str) -> set[str]:
    """The tables and views that `text` may mean: every word that is the name of one."""
    return set(re.findall(r"\w+", text)) & (tables().keys() | set(VIEWS))


@cache
def made_of(name: str) -> frozenset[str]:
    """What a view is made of, down to the tables: of what its text names, all that stands before
    it. (A column of another view's name makes that too, which does no harm.)"""
    if name in tables():
        return frozenset()
    before = tables().keys() | set(VIEWS[: VIEWS.index(name)])
    direct = named(sql_file(f"views/{name}.sql")) & before
    return frozenset(direct.union(*(made_of(each) for each in direct)))
