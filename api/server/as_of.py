"""The book as it was: one schema for each position that somebody asks for.

A schema has the book's tables, each cut off at the position, and over them the very views of the
book; so an answer of then is the same query. Nothing is copied or replayed: a schema costs its
views (a quarter of a second once), a replay would cost the log up to there. It differs from a
replay in one case: the same fact in two partitions, of which the projector read the later first.

Invariant: only the last `KEPT` schemas are there; one in use outlives its removal, since a
transaction sees what was there when it began.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping

import duckdb

from api.server.places import show
from ledger.book import VIEWS, sql_file
from ledger.log import TopicPartition

CATALOG = "past"
"""An attached database in memory, so that the book's file stays as the projector wrote it."""
KEPT = 16


class Past:
    """The schemas of one served book."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        """`connection` is the past's own cursor of the book."""
        self._connection = connection
        self._lock = threading.Lock()
        self._schemas: OrderedDict[str, str] = OrderedDict()
        (self._book,) = connection.execute("SELECT current_database()").fetchone() or ("",)
        connection.execute(f"ATTACH ':memory:' AS {CATALOG}")
        rows = connection.execute(
            "SELECT table_name, bool_or(column_name = 'log_offset') FROM duckdb_columns()"
            " WHERE database_name = ? AND table_name IN (SELECT table_name FROM duckdb_tables())"
            " GROUP BY table_name ORDER BY table_name",
            [self._book],
        ).fetchall()
        self._tables = [(str(name), bool(placed)) for name, placed in rows]

    def schema(self, positions: Mapping[TopicPartition, int]) -> str:
        """The name of the schema at `positions`, made if it isn't there."""
        name = "at_" + hashlib.sha256(show(positions).encode()).hexdigest()[:20]
        with self._lock:
            if name not in self._schemas:
                self._make(name, positions)
                self._schemas[name] = name
            self._schemas.move_to_end(name)
            while len(self._schemas) > KEPT:
                _, old = self._schemas.popitem(last=False)
                self._connection.execute(f"DROP SCHEMA {CATALOG}.{old} CASCADE")
        return f"{CATALOG}.{name}"

    def _make(self, name: str, positions: Mapping[TopicPartition, int]) -> None:
        before = " OR ".join(
            f"(log_partition = {place.partition} AND log_offset < {offset})"
            for place, offset in positions.items()
        )
        self._connection.execute("BEGIN")
        try:
            self._connection.execute(f"CREATE SCHEMA {CATALOG}.{name}")
            self._connection.execute(f"USE {CATALOG}.{name}")
            for table, placed in self._tables:
                if table == "positions":
                    self._connection.execute(f"CREATE VIEW positions AS {_positions(positions)}")
                    continue
                cut = f" WHERE {before}" if placed else ""
                self._connection.execute(
                    f'CREATE VIEW "{table}" AS FROM "{self._book}".main."{table}"{cut}'
                )
            for view in VIEWS:
                self._connection.execute(sql_file(f"views/{view}.sql"))
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _positions(positions: Mapping[TopicPartition, int]) -> str:
    rows = ", ".join(
        f"('{place.topic}', {place.partition}, {offset})" for place, offset in positions.items()
    )
    return (
        "SELECT topic::VARCHAR AS topic, log_partition::INTEGER AS log_partition,"
        f" next_offset::BIGINT AS next_offset FROM (VALUES {rows})"
        " AS given(topic, log_partition, next_offset)"
    )
