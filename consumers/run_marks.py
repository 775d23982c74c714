"""What the book notes of the runs whose facts it takes, in the transaction that takes them: how
many facts of each there are, and which runs are kin, since they name the same groups or engines. By
these notes it is seen whether what is kept of a run's accounts (`ledger.kept`) still holds.

Invariant: no fact of a run comes into the book without raising that run's count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from uuid import UUID

import duckdb
import pyarrow as pa

from consumers.decode import DecodedFacts

ASK_ENGINES = frozenset(["turn_completed", "turn_failed", "engine_sampled"])
"""Tables whose `engine` says that a run had to do with it."""

_COUNTED = (
    "(SELECT run_id::UUID AS run_id, sum(count_all)::BIGINT AS facts, max(log_time_max) AS last"
    " FROM new_runs GROUP BY 1)"
)


def note(connection: duckdb.DuckDBPyConnection, new: Sequence[DecodedFacts]) -> None:
    """Note facts that are being inserted; part of the caller's transaction."""
    if not new:
        return
    counts = [([], "count_all"), ("log_time", "max")]
    runs = [each.table.group_by("run_id").aggregate(counts) for each in new]
    with _registered(connection, "new_runs", runs):
        connection.execute(
            "UPDATE run_facts SET facts = run_facts.facts + counted.facts,"
            " last_log_time = greatest(last_log_time, counted.last)"
            f" FROM {_COUNTED} AS counted WHERE counted.run_id = run_facts.run_id"
        )
        connection.execute(
            "INSERT INTO run_facts SELECT run_id, facts, last, run_id, run_id"
            f" FROM {_COUNTED} ANTI JOIN run_facts USING (run_id)"
        )
    of_groups = [each.table for each in new if "group_id" in each.table.column_names]
    if _are_new(connection, "run_groups", "group_id", "UUID", of_groups):
        _unite(connection, "run_groups", "group_id", "kin_by_groups")
        _unite(connection, "run_groups", "group_id", "kin_by_engines")
    of_engines = [each.table for each in new if each.wire.name in ASK_ENGINES]
    if _are_new(connection, "run_engines", "engine", "VARCHAR", of_engines):
        _unite(connection, "run_engines", "engine", "kin_by_engines")


def _are_new(
    connection: duckdb.DuckDBPyConnection,
    known: str,
    column: str,
    kind: str,
    tables: Sequence[pa.Table],
) -> bool:
    """Note which runs name which groups or engines. Whether one is new that another run names."""
    if not tables:
        return False
    pairs = [each.group_by([column, "run_id"]).aggregate([]) for each in tables]
    with _registered(connection, "new_pairs", pairs):
        new = connection.execute(
            f"INSERT INTO {known}"
            f" SELECT DISTINCT {column}::{kind} AS name, run_id::UUID AS named_by FROM new_pairs"
            f" ANTI JOIN {known} AS known"
            f" ON known.{column} = new_pairs.{column}::{kind}"
            " AND known.run_id = new_pairs.run_id::UUID"
            f" WHERE new_pairs.{column} IS NOT NULL RETURNING {column}"
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
