"""What the book notes of the runs whose facts it takes, in the transaction that takes them: how
many facts of each there are, and which runs are kin, since they name the same groups, batches or
engines. By these notes it is seen whether what is kept of a run's accounts (`ledger.kept`) still
holds.

It notes the producers' numbers there, too: to count those of all facts whenever somebody asks
whether any is missing would cost a reading of the whole book.

Invariants:

1. No fact of a run comes into the book without raising that run's count.
2. `producer_numbers` is what its query says of view `facts`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from consumers.decode import DecodedFacts
from ledger.book_sql import sql_file

ASK_ENGINES = frozenset(["turn_completed", "turn_failed", "engine_sampled"])
"""Tables whose `engine` says that a run had to do with it."""

_COUNTED = (
    "(SELECT run_id::UUID AS run_id, count(*) AS facts, max(log_time) AS last"
    " FROM new_facts GROUP BY 1)"
)
_OF_ALL = ["run_id", "log_time", "producer", "incarnation", "producer_seq"]


def note(connection: duckdb.DuckDBPyConnection, new: Sequence[DecodedFacts]) -> None:
    """Note facts that are being inserted; part of the caller's transaction."""
    if not new:
        return
    with _registered(connection, "new_facts", [each.table.select(_OF_ALL) for each in new]):
        connection.execute(
            "UPDATE run_facts SET facts = run_facts.facts + counted.facts,"
            " last_log_time = greatest(last_log_time, counted.last)"
            f" FROM {_COUNTED} AS counted WHERE counted.run_id = run_facts.run_id"
        )
        connection.execute(
            "INSERT INTO run_facts SELECT run_id, facts, last, run_id, run_id"
            f" FROM {_COUNTED} ANTI JOIN run_facts USING (run_id)"
        )
        _number(connection)
    names = [pairs for each in new for pairs in _names_in(each.table)]
    if _are_new(connection, "run_names", "name", "UUID", names):
        _unite(connection, "run_names", "name", "kin_by_names")
        _unite(connection, "run_names", "name", "kin_by_engines")
    engines = [_pairs(each.table, "engine") for each in new if each.wire.name in ASK_ENGINES]
    if _are_new(connection, "run_engines", "engine", "VARCHAR", engines):
        _unite(connection, "run_engines", "engine", "kin_by_engines")


def _number(connection: duckdb.DuckDBPyConnection) -> None:
    """Note which numbers producers gave the new facts."""
    counted = f"({sql_file('producer_numbers.sql').replace('FROM facts', 'FROM new_facts')})"
    connection.execute(
        f"MERGE INTO producer_numbers AS known USING {counted} AS new USING (incarnation)"
        " WHEN MATCHED THEN UPDATE SET"
        " first_run = least(known.first_run, new.first_run),"
        " last_run = greatest(known.last_run, new.last_run),"
        " last_log_time = greatest(known.last_log_time, new.last_log_time),"
        " last_seq = greatest(known.last_seq, new.last_seq),"
        " numbers = known.numbers + new.numbers,"
        " total = known.total + new.total,"
        " squares = known.squares + new.squares"
        " WHEN NOT MATCHED THEN INSERT BY NAME"
    )


def _names_in(facts: pa.Table) -> Generator[pa.Table]:
    """(name, run_id) of every group and batch that facts of one kind name."""
    for column in ("group_id", "batch_id"):
        if column in facts.column_names:
            yield _pairs(facts, column)
    if "group_ids" in facts.column_names:
        ids = facts["group_ids"].combine_chunks()
        of_runs = facts["run_id"].take(pc.list_parent_indices(ids))
        yield pa.table({"name": pc.list_flatten(ids), "run_id": of_runs})


def _pairs(facts: pa.Table, column: str) -> pa.Table:
    found = facts.group_by([column, "run_id"]).aggregate([])
    return found.rename_columns({column: "name"})


def _are_new(
    connection: duckdb.DuckDBPyConnection,
    known: str,
    column: str,
    kind: str,
    pairs: Sequence[pa.Table],
) -> bool:
    """Note which runs name what. Whether something is new that another run names."""
    if not pairs:
        return False
    with _registered(connection, "new_pairs", pairs):
        new = connection.execute(
            f"INSERT INTO {known}"
            f" SELECT DISTINCT name::{kind} AS name, run_id::UUID AS named_by FROM new_pairs"
            f" ANTI JOIN {known} AS known"
            f" ON known.{column} = new_pairs.name::{kind}"
            " AND known.run_id = new_pairs.run_id::UUID"
            f" WHERE new_pairs.name IS NOT NULL RETURNING {column}"
        ).fetchall()
    if not new:
        return False
    names = list({name for (name,) in new})
    shared = connection.execute(
        f"SELECT 1 FROM {known} WHERE {column} IN (SELECT unnest($names::{kind}[]))"
        f" GROUP BY {column} HAVING count(*) > 1 LIMIT 1",
        {"names": names},
    ).fetchall()
    return bool(shared)


def _unite(connection: duckdb.DuckDBPyConnection, known: str, column: str, kin: str) -> None:
    """Those that name the same are kin."""
    found = connection.execute(
        f"SELECT list(DISTINCT {kin}) FROM {known} JOIN run_facts USING (run_id)"
        f" GROUP BY {column} HAVING count(DISTINCT {kin}) > 1"
    ).fetchall()
    now: dict[UUID, UUID] = {}
    for (ids,) in found:
        together = {_last(now, each) for each in ids}
        lowest = min(together)
        now |= dict.fromkeys(together - {lowest}, lowest)
    for before in now:
        connection.execute(
            f"UPDATE run_facts SET {kin} = $after WHERE {kin} = $before",
            {"before": before, "after": _last(now, before)},
        )


def _last(now: dict[UUID, UUID], each: UUID) -> UUID:
    while each in now:
        each = now[each]
    return each


@contextlib.contextmanager
def _registered(
    connection: duckdb.DuckDBPyConnection, name: str, tables: Sequence[pa.Table]
) -> Generator[None]:
    connection.register(name, pa.concat_tables(tables))
    try:
        yield
    finally:
        connection.unregister(name)
