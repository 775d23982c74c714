"""One account as an answer: rows, what they mean, what they are over, how whole the book is.

report(connection, find_account("step-time"), run_id=run)     # or, to ask more than once:
Reports(connection).ask(find_account("step-time"), run_id=run)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from uuid import UUID

import duckdb

from ledger.accounts.compare import Row
from ledger.accounts.outcomes import Selection, TaskOutcome, read_outcomes
from ledger.accounts.quality import pass_at_1_intervals, pass_at_k_intervals
from ledger.accounts.registry import Account, definition_of
from ledger.accounts.row_sources import RowSource, RowSources
from ledger.accounts.rule_sets import check_rule_set, rule_sets_in

COMPUTED: Mapping[str, Callable[[Sequence[TaskOutcome], Row], dict[str, object]]] = {
    "pass_at_1": pass_at_1_intervals,
    "pass_at_k": pass_at_k_intervals,
}
"""View -> columns that are computed beside its rows, since SQL is too slow for them."""


@dataclass(frozen=True, slots=True)
class Report:
    """An account's answer."""

    account: Account
    definition: str
    """What one row is."""
    run_id: UUID | None
    """The run that was asked for; null: all runs."""
    rule_sets: tuple[int | None, ...]
    """Rule sets of the rows; empty where nothing depends on judgement, null among them where none
    has judged."""
    position: dict[str, int]
    """Up to where the book has read the log, by `topic/partition`."""
    problems: dict[str, int]
    """What keeps the book from being the whole story; empty: nothing."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """(n,) rows of `columns`."""
    total: int
    """How many rows there are; more than those here only where a limit was asked for."""


def extended(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    rows: Sequence[Row],
    have: Set[UUID] = frozenset(),
) -> list[dict[str, Any]]:
    """Rows of a view of `COMPUTED` with the columns that are computed beside them; those of runs in
    `have` have them. Rows of one evaluation, such as one for each k, share one reading of its
    tasks."""
    compute = COMPUTED[view]
    tasks = cache(partial(read_outcomes, connection))
    return [
        dict(row)
        if row["run_id"] in have
        else {
            **row,
            **compute(tasks(Selection(row["run_id"], row["policy_version"], row["rule_set"])), row),
        }
        for row in rows
    ]


class Reports:
    """Asks a book for accounts. What makes those of some runs quick is kept between them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: RowSources | None = None
        """Null after an error, too."""

    def ask(
        self,
        account: Account,
        *,
        run_id: UUID | None = None,
        rule_set: int | None = None,
        limit: int | None = None,
    ) -> Report:
        """One account, its first `limit` rows. A filter is ignored by an account that doesn't have
        its column. Raises BookError for a rule set that there isn't."""
        if rule_set is not None:
            check_rule_set(rule_set, rule_sets_in(self._connection))
        with self._source(account.view, run_id) as source:
            columns, rows, total, rule_sets = _rows(
                source, account, {"run_id": run_id, "rule_set": rule_set}, limit
            )
            if account.view in COMPUTED and rows:
                named = [dict(zip(columns, row, strict=True)) for row in rows]
                completed = extended(source.cursor, account.view, named, source.kept)
                columns, rows = tuple(completed[0]), [tuple(row.values()) for row in completed]
            position = _pairs(
                source.cursor,
                "SELECT topic || '/' || log_partition, next_offset FROM positions ORDER BY ALL",
            )
            problems = _pairs(
                source.cursor, "SELECT problem, records FROM book_problems ORDER BY ALL"
            )
        return Report(
            account=account,
            definition=definition_of(account.view),
            run_id=run_id,
            rule_sets=tuple(sorted(rule_sets, key=lambda each: (each is None, each or 0))),
            position=position,
            problems=problems,
            columns=columns,
            rows=tuple(rows),
            total=total,
        )

    @contextlib.contextmanager
    def _source(self, view: str, run_id: UUID | None) -> Generator[RowSource]:
        sources, self._sources = self._sources or RowSources(self._connection), None
        with sources.of(view, run_id) as source:
            yield source
        self._sources = sources


def report(
    connection: duckdb.DuckDBPyConnection,
    account: Account,
    *,
    run_id: UUID | None = None,
    rule_set: int | None = None,
    limit: int | None = None,
) -> Report:
    """Ask one account, once; as `Reports.ask`."""
    return Reports(connection).ask(account, run_id=run_id, rule_set=rule_set, limit=limit)


def _rows(
    source: RowSource, account: Account, filters: Mapping[str, Any], limit: int | None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]], int, Set[int | None]]:
    """Columns and the first rows, and of all: how many there are, and their rule sets."""
    described = source.cursor.execute(
        "SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [account.view]
    )
    has = {str(name) for (name,) in described.fetchall()}
    asked = {name: value for name, value in filters.items() if value is not None and name in has}
    where = " AND ".join(f"{name} = ${name}" for name in asked) or "true"
    if limit is None:
        rows = f"SELECT * FROM ({source.all_rows()}) WHERE {where} ORDER BY {account.order}"
        result = source.cursor.execute(rows, asked)
        columns = tuple(str(column[0]) for column in result.description or ())
        found = result.fetchall()
        place = columns.index("rule_set") if "rule_set" in has else None
        of = frozenset[int | None]() if place is None else {row[place] for row in found}
        return columns, found, len(found), of
    # What is to be made is made once, though it is asked for its rows and for their number.
    made = f"recent AS MATERIALIZED (SELECT * FROM {source.made} WHERE {where}), "
    rule_sets = "list(DISTINCT rule_set)" if "rule_set" in has else "[]"
    result = source.cursor.execute(
        f"WITH {made if source.made else ''}"
        f"asked AS NOT MATERIALIZED (FROM ({source.all_rows('recent')}) WHERE {where}),"
        f" counted AS (SELECT {{'rows': count(*), 'of': {rule_sets}}} AS counted FROM asked)"
        f" SELECT *, (FROM counted) FROM asked ORDER BY {account.order} LIMIT {limit}",
        asked,
    )
    columns = tuple(str(column[0]) for column in (result.description or ())[:-1])
    found = result.fetchall()
    counted: dict[str, Any] = found[0][-1] if found else {"rows": 0, "of": []}
    return columns, [row[:-1] for row in found], counted["rows"], set(counted["of"])


def _pairs(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, int]:
    return {str(name): int(value) for name, value in connection.execute(query).fetchall()}
