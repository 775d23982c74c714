"""Decoded facts -> rows of the book, in one transaction with the positions that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from consumers.decode import Decoded, DecodedFacts, Reject, weed_out
from consumers.dedupe import HighestIds, StrangeId, judge
from consumers.places import Place
from consumers.run_marks import note
from ledger.book import Book
from ledger.log import TopicPartition

QUARANTINED_BYTES = 256 * 1024
"""Bytes of a quarantined record that the book keeps; the log has it whole."""

_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of some records."""

    facts: int = 0
    duplicates: int = 0
    quarantined: int = 0

    def __add__(self, other: Inserted) -> Inserted:
        return Inserted(
            self.facts + other.facts,
            self.duplicates + other.duplicates,
            self.quarantined + other.quarantined,
        )


def insert(
    book: Book, highest: HighestIds, decoded: Decoded, positions: Mapping[TopicPartition, int]
) -> Inserted:
    """Put facts into the book, each once, with the positions behind them; all or nothing."""
    try:
        return _insert(book, highest, decoded, positions)
    except (duckdb.ConversionException, StrangeId):
        # A foreign writer's id is no UUID. Looking for it beforehand would cost every fact.
        return _insert(book, highest, weed_out(decoded), positions)


def _insert(
    book: Book, highest: HighestIds, decoded: Decoded, positions: Mapping[TopicPartition, int]
) -> Inserted:
    inserted = duplicates = 0
    rejects = list(decoded.rejects)
    taken: list[DecodedFacts] = []
    try:
        with book.transaction() as connection:
            for facts in decoded.facts:
                verdict = judge(connection, highest, facts)
                for new in verdict.new:
                    _insert_arrow(connection, new.wire.name, new.table)
                    inserted += len(new.places)
                    taken.append(new)
                _insert_derived(connection, facts.wire.name, verdict.derived)
                for again in verdict.duplicates:
                    _insert_duplicates(connection, again)
                    duplicates += len(again.places)
                rejects += verdict.conflicts
            _insert_rejects(connection, rejects)
            note(connection, taken)
            book.set_positions(positions)
    except BaseException:
        highest.forget()
        raise
    return Inserted(inserted, duplicates, len(rejects))


def _insert_derived(
    connection: duckdb.DuckDBPyConnection, name: str, event_ids: Sequence[str]
) -> None:
    if event_ids:
        rows = pa.table({"event_id": event_ids, "fact": [name] * len(event_ids)})
        _insert_arrow(connection, "derived_ids", rows)


def _insert_duplicates(connection: duckdb.DuckDBPyConnection, again: DecodedFacts) -> None:
    names = pa.array([again.wire.name] * len(again.places), pa.string())
    table = again.table.select(
        ["log_partition", "log_offset", "log_time", "event_id", "incarnation", "producer_seq"]
    )
    _insert_arrow(connection, "duplicates", table.add_column(3, "fact", names))


def _insert_rejects(connection: duckdb.DuckDBPyConnection, rejects: Sequence[Reject]) -> None:
    if not rejects:
        return
    places = [reject.place for reject in rejects]
    table = {"topic": ["events"] * len(rejects)} | _place_columns(places)
    table |= {
        "reason": [reject.reason for reject in rejects],
        "detail": [reject.detail for reject in rejects],
        "event_id": pa.array([reject.event_id for reject in rejects], pa.string()),
        "incarnation": pa.array([reject.incarnation for reject in rejects], pa.string()),
        "producer_seq": pa.array([reject.producer_seq for reject in rejects], pa.int64()),
        "key": [place.key for place in places],
        "size_bytes": [len(place.value) for place in places],
        "value": pa.array([place.value[:QUARANTINED_BYTES] for place in places], pa.binary()),
    }
    _insert_arrow(connection, "quarantine", pa.table(table))


def _place_columns(places: Sequence[Place]) -> dict[str, object]:
    return {
        "log_partition": pa.array([place.partition for place in places], pa.int32()),
        "log_offset": pa.array([place.offset for place in places], pa.int64()),
        "log_time": pa.array([place.log_time_us for place in places], _UTC),
    }


def _insert_arrow(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register("new_rows", rows)
    connection.execute(f"INSERT INTO {name} FROM new_rows")
    connection.unregister("new_rows")
