"""The book as far as some runs go: views over it show these runs' rows alone.

Unlike `one_run`, this leaves no table of facts whole, so an answer costs what the runs that it is
of cost, however large the book is. It is for the accounts of which `ledger.kept` says that nothing
but a run's own facts, and those of runs that share its groups or engines, is in its rows.

Invariant: of the runs shown, an account's rows are those that the view over the whole book has, if
with each run all are shown that it shares groups with, and for accounts of engines those that it
shares engines with (`tests/test_kept.py`).
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from uuid import UUID

import duckdb

from ledger.stand_ins import StandIns, tables


class SomeRuns:
    """A cursor that shows some runs at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.cursor = connection.cursor()
        self.cursor.execute("SET TimeZone = 'UTC'")
        self._shown: Set[UUID] | None = None
        self._stand_ins: StandIns | None = None
        self._settled: str | None = None

    def show(self, runs: Set[UUID], *views: str) -> None:
        """From here on these views show these runs' rows. Raises duckdb.Error, after which the
        cursor is of no more use."""
        if self._settled is not None:
            self.cursor.execute(f'DROP TABLE temp.main."{self._settled}"')
            self._settled = None
        if self._stand_ins is not None and runs != self._shown:
            self.forget()  # what isn't asked for now would stay before its table
        if self._stand_ins is None:
            several = ", ".join(f"'{run_id}'::UUID" for run_id in sorted(runs))
            only = f"run_id IN ({several})" if runs else "false"
            self._stand_ins = StandIns(
                self.cursor,
                lambda name, whole: f"FROM {whole} WHERE {only}" if name in _of_runs() else None,
            )
            self._shown = frozenset(runs)
        self._stand_ins.prepare(" ".join(views))

    def settle(self, view: str, rows: str) -> None:
        """Until runs are shown again, `view` has the rows that a query has now, and all else shows
        the whole book. So what is made of it takes little more than what it has besides."""
        self.cursor.execute(f'CREATE TEMP TABLE "{view}" AS {rows}')
        self._settled = view
        self.forget()

    def forget(self) -> None:
        """Make everything again, also after a transaction that was rolled back."""
        stand_ins, self._stand_ins = self._stand_ins, None
        if stand_ins is not None:
            stand_ins.drop()

    def close(self) -> None:
        self.cursor.close()


@cache
def _of_runs() -> frozenset[str]:
    """The tables of facts."""
    return frozenset(name for name, columns in tables().items() if "time_quality" in columns)
