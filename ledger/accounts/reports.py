"""One account as an answer: rows, what they mean, what they are over, how whole the book is.

report(connection, find_account("step-time"), run_id=run)     # or, to ask more than once:
Reports(connection).ask(find_account("step-time"), run_id=run)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from uuid import UUID

import duckdb

from ledger.accounts.compare import Row
from ledger.accounts.outcomes import TASKS, Selection, TaskOutcome, read_outcomes
from ledger.accounts.quality import pass_at_1_intervals, pass_at_k_intervals
from ledger.accounts.registry import Account, definition_of
from ledger.accounts.rule_sets import check_rule_set, rule_sets_in
from ledger.kept import KEPT, about, has_table, holding, keeps, kin, owner, standing, table_of
from ledger.one_run import OneRun, covers
from ledger.some_runs import SomeRuns

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
    """Asks a book for accounts. What makes those of some runs quick is kept between them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._one_run: OneRun | None = None
        self._some_runs: SomeRuns | None = None

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
        with self._looking(account.view, run_id) as look:
            asked = _Asked.of(look, account, {"run_id": run_id, "rule_set": rule_set})
            columns, rows = asked.rows(limit)
            total, rule_sets = len(rows), _rule_sets(columns, rows)
            if limit is not None and total == limit:
                total, rule_sets = asked.all_of_it("rule_set" in columns)
            if account.view in COMPUTED:
                columns, rows = _completed(look, account.view, columns, rows)
            position = _pairs(
                look.connection,
                "SELECT topic || '/' || log_partition, next_offset FROM positions ORDER BY ALL",
            )
            problems = _pairs(
                look.connection, "SELECT problem, records FROM book_problems ORDER BY ALL"
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
    def _looking(self, view: str, run_id: UUID | None) -> Generator[_Look]:
        if view in KEPT and keeps(self._connection):
            with self._some_runs_now() as some_runs:
                yield _look_at(self._connection, some_runs, view, run_id)
        elif run_id is not None and covers(view):
            if self._one_run is None:
                self._one_run = OneRun(self._connection)
            shown = self._one_run.show(run_id)
            shown.prepare(" ".join([view, *([TASKS] if view in COMPUTED else [])]))
            yield _Look(self._one_run.cursor, view)
        else:
            yield _Look(self._connection, view)

    @contextlib.contextmanager
    def _some_runs_now(self) -> Generator[SomeRuns]:
        """In one transaction: what is kept and what isn't are of one position."""
        some_runs = self._some_runs or SomeRuns(self._connection)
        self._some_runs = None
        try:
            some_runs.cursor.execute("BEGIN")
            yield some_runs
            some_runs.cursor.execute("COMMIT")
        except BaseException:
            some_runs.close()
            raise
        self._some_runs = some_runs


@dataclass(frozen=True, slots=True)
class _Look:
    """Where the rows of a view are read."""

    connection: duckdb.DuckDBPyConnection
    source: str
    """What to select from."""
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])
    """Those that `source` names."""
    kept: Set[UUID] = frozenset()
    """Runs of which it has what is computed, too."""


def _look_at(
    connection: duckdb.DuckDBPyConnection, some_runs: SomeRuns, view: str, run_id: UUID | None
) -> _Look:
    """What is kept of an account, and the rows of its view for the runs of which nothing is."""
    cursor = some_runs.cursor
    known = standing(cursor, view)
    if run_id is None and not known.kept:
        return _Look(connection, view)
    shown = known.others
    if run_id is not None:
        shown = frozenset[UUID]() if run_id in known.kept else kin(cursor, view, run_id)
    some_runs.show(shown, view, *([TASKS] if view in COMPUTED else []))
    if not has_table(cursor, view):
        return _Look(cursor, view)
    # (Nothing is shown of a run that is kept, and a row of no run is of those that are shown.)
    kept = f"SELECT * FROM {table_of(view)} WHERE {owner(view)} IN ({holding(view)})"
    source = f"({kept} UNION ALL BY NAME SELECT * FROM {view})" if shown else f"({kept})"
    return _Look(cursor, source, about(view), known.kept)


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


@dataclass(frozen=True, slots=True)
class _Asked:
    """The rows of an account that pass filters."""

    connection: duckdb.DuckDBPyConnection
    source: str
    """What to select from, and where."""
    order: str
    parameters: Mapping[str, object]

    @classmethod
    def of(cls, look: _Look, account: Account, filters: Mapping[str, Any]) -> _Asked:
        has = {
            str(name)
            for (name,) in look.connection.execute(
                "SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [account.view]
            ).fetchall()
        }
        asked = {
            name: value for name, value in filters.items() if value is not None and name in has
        }
        where = " AND ".join(f"{name} = ${name}" for name in asked) or "true"
        return cls(
            look.connection,
            f"{look.source} WHERE {where}",
            account.order,
            {**look.parameters, **asked},
        )

    def rows(self, limit: int | None) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """The columns, and the first rows."""
        first = "" if limit is None else f" LIMIT {limit}"
        result = self.connection.execute(
            f"SELECT * FROM {self.source} ORDER BY {self.order}{first}", self.parameters
        )
        columns = tuple(str(column[0]) for column in result.description or ())
        return columns, result.fetchall()

    def all_of_it(self, judged: bool) -> tuple[int, Set[int | None]]:
        """How many rows there are, and the rule sets of them."""
        of = "rule_set" if judged else "NULL::INTEGER"
        counted = self.connection.execute(
            f"SELECT {of} AS told, count(*) FROM {self.source} GROUP BY told", self.parameters
        ).fetchall()
        rule_sets = {rule_set for rule_set, _ in counted} if judged else set[int | None]()
        return sum(count for _, count in counted), rule_sets


def _rule_sets(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Set[int | None]:
    if "rule_set" not in columns:
        return frozenset()
    place = columns.index("rule_set")
    return {row[place] for row in rows}


def _completed(
    look: _Look, view: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """With the columns that are computed, where they aren't kept."""
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    bare = [place for place, row in enumerate(named) if row["run_id"] not in look.kept]
    completed = extended(look.connection, view, [named[place] for place in bare])
    for place, row in zip(bare, completed, strict=True):
        named[place] = row
    return (tuple(named[0]) if named else columns), [tuple(row.values()) for row in named]


def _pairs(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, int]:
    return {str(name): int(value) for name, value in connection.execute(query).fetchall()}
