"""The book as it was, for one reading: of each table what lies before the position.

Nothing is replayed. It differs from a replay in one case: the same fact in two partitions, of which
the projector read the later one first.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from ledger.book_sql import sql_file
from ledger.log import TopicPartition
from ledger.stand_ins import StandIns, tables


def as_of(cursor: duckdb.DuckDBPyConnection, positions: Mapping[TopicPartition, int]) -> StandIns:
    """`cursor` is in the reading's transaction, and sees the book as it is."""
    before = " OR ".join(
        f"(log_partition = {place.partition} AND log_offset < {offset})"
        for place, offset in positions.items()
    )
    read_to = ", ".join(
        f"('{place.topic}', {place.partition}::INTEGER, {offset}::BIGINT)"
        for place, offset in positions.items()
    )

    def part(name: str, whole: str) -> str | None:
        if name == "positions":
            return f"FROM (VALUES {read_to}) AS t(topic, log_partition, next_offset)"
        if name == "producer_numbers":
            return sql_file("producer_numbers.sql")
        has_place = "log_offset" in tables().get(name, "")
        return f"FROM {whole} WHERE {before}" if has_place else None

    return StandIns(cursor, part)
