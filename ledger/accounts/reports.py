"""One account as an answer: rows, what they mean, what they are over, how whole the book is.

report(connection, find_account("step-time"), run_id=run)     # or, to ask more than once:
Reports(connection).ask(find_account("step-time"), run_id=run)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from uuid import UUID

import duckdb

from ledger.accounts.compare import Row
from ledger.accounts.outcomes import TASKS, Selection, TaskOutcome, read_outcomes
from ledger.accounts.quality import pass_at_1_intervals, pass_at_k_intervals
from ledger.accounts.registry import Account, definition_of
from ledger.accounts.rule_sets import check_rule_set, rule_sets_in
from ledger.one_run import OneRun, covers

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


def extended(
    connection: duckdb.DuckDBPyConnection, view: str, rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """Rows of a view of `COMPUTED` with the columns that are computed beside them. Rows of one
    evaluation, such as one for each k, share one reading of its tasks."""
    compute = COMPUTED[view]
    tasks = cache(partial(read_outcomes, connection))
    return [
        {
            **row,
            **compute(tasks(Selection(row["run_id"], row["policy_version"], row["rule_set"])), row),
        }
        for row in rows
    ]


class Reports:
    """Asks a book for accounts. What makes those of one run quick is kept between them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._one_run: OneRun | None = None

    def ask(
        self, account: Account, *, run_id: UUID | None = None, rule_set: int | None = None
    ) -> Report:
        """One account. A filter is ignored by an account that doesn't have its column. Raises
        BookError for a rule set that there isn't."""
        connection = self._connection
        if rule_set is not None:
            check_rule_set(rule_set, rule_sets_in(connection))
        if run_id is not None and covers(account.view):
            if self._one_run is None:
                self._one_run = OneRun(connection)
            shown = self._one_run.show(run_id)
            shown.prepare(account.view)
            if account.view in COMPUTED:
                shown.prepare(TASKS)
            connection = self._one_run.cursor
        columns, rows = _rows(connection, account, {"run_id": run_id, "rule_set": rule_set})
        if account.view in COMPUTED and rows:
            named = [dict(zip(columns, row, strict=True)) for row in rows]
            whole = extended(connection, account.view, named)
            columns, rows = tuple(whole[0]), [tuple(row.values()) for row in whole]
        place = columns.index("rule_set") if "rule_set" in columns else None
        found: set[int | None] = set() if place is None else {row[place] for row in rows}
        return Report(
            account=account,
            definition=definition_of(account.view),
            run_id=run_id,
            rule_sets=tuple(sorted(found, key=lambda each: (each is None, each or 0))),
            position=_pairs(
                self._connection,
                "SELECT topic || '/' || log_partition, next_offset FROM positions ORDER BY ALL",
            ),
            problems=_pairs(
                self._connection, "SELECT problem, records FROM book_problems ORDER BY ALL"
            ),
            columns=columns,
            rows=tuple(rows),
        )


def report(
    connection: duckdb.DuckDBPyConnection,
    account: Account,
    *,
    run_id: UUID | None = None,
    rule_set: int | None = None,
) -> Report:
    """Ask one account, once; as `Reports.ask`."""
    return Reports(connection).ask(account, run_id=run_id, rule_set=rule_set)


def _rows(
    connection: duckdb.DuckDBPyConnection, account: Account, filters: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    has = {
        str(name)
        for (name,) in connection.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [account.view]
        ).fetchall()
    }
    asked = {name: value for name, value in filters.items() if value is not None and name in has}
    where = " AND ".join(f"{name} = ${name}" for name in asked) or "true"
    result = connection.execute(
        f"SELECT * FROM {account.view} WHERE {where} ORDER BY {account.order}", asked
    )
    columns = tuple(str(column[0]) for column in result.description or ())
    return columns, result.fetchall()


def _pairs(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, int]:
    return {str(name): int(value) for name, value in connection.execute(query).fetchall()}
