"""Where the rows of a view are read, of all runs or of one: as little of the book as says the same.

1. Of an account that is kept: its kept rows, and the view for the runs of which none hold. Where
   rows of another view are kept for it: the view, made of these and of what it has besides.
2. Of a run, where the view covers it: the view, with that run's attempts alone.
3. Else the view.

Invariant: the rows are those of the view over the whole book (`tests/test_kept.py`,
`test_one_run.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Set
from dataclasses import dataclass
from uuid import UUID

import duckdb

from ledger.kept import KEPT, asks_engines, has_table, keeps, kin, listed, owner, standing, table_of
from ledger.one_run import OneRun, covers
from ledger.some_runs import SomeRuns
from ledger.stand_ins import StandIns


@dataclass(frozen=True, slots=True)
class RowSource:
    """Where the rows of a view are read."""

    cursor: duckdb.DuckDBPyConnection
    """In a transaction."""
    made: str | None
    """The view, where rows are to be made; null: all are kept."""
    stored: str | None = None
    """A query of rows that are kept."""
    kept: Set[UUID] = frozenset()
    """Runs of which it also has what is computed beside the rows."""
    stand_ins: StandIns | None = None
    """What to make before the cursor is asked for another view."""

    def all_rows(self, made: str | None = None) -> str:
        """A query of them; `made`: what stands for the view."""
        view = f"SELECT * FROM {made or self.made}" if self.made is not None else None
        return " UNION ALL BY NAME ".join(each for each in (self.stored, view) if each is not None)


class RowSources:
    """Those of one book, one at a time. What makes those of some runs quick is kept between
    them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._plain = connection.cursor()
        self._plain.execute("SET TimeZone = 'UTC'")
        self._one_run = OneRun(connection)
        self._some_runs = SomeRuns(connection)

    @contextlib.contextmanager
    def of(self, view: str, run_id: UUID | None) -> Generator[RowSource]:
        """Where the rows of a view are; `run_id`: it is asked for this run's alone. In one
        transaction, since what is kept and what isn't must be of one position. After an error
        all of them are closed."""
        try:
            source = self._partly(view, run_id) or self._whole(view)
            yield source
            source.cursor.execute("COMMIT")
        except BaseException:
            self.close()
            raise

    def interrupt(self) -> None:
        """End the question that another thread asks."""
        for cursor in (self._plain, self._one_run.cursor, self._some_runs.cursor):
            cursor.interrupt()

    def close(self) -> None:
        for each in (self._plain, self._one_run, self._some_runs):
            each.close()

    def _partly(self, view: str, run_id: UUID | None) -> RowSource | None:
        noted = keeps(self._plain)
        if view in KEPT and noted:
            return self._kept(view, KEPT[view], run_id)
        if run_id is not None and covers(view):
            return self._alone(view, run_id, noted)
        return None

    def _kept(self, view: str, of: str, run_id: UUID | None) -> RowSource | None:
        """Of a view for which rows `of` one are kept. Null: nothing is kept."""
        cursor = self._some_runs.cursor
        cursor.execute("BEGIN")
        known = standing(cursor, of)
        if run_id is None and not known.kept:
            cursor.execute("COMMIT")
            return None
        shown = known.others
        if run_id is not None and shown != {run_id}:
            shown = frozenset[UUID]() if run_id in known.kept else kin(cursor, of, {run_id})
        self._some_runs.show(shown, of)
        # (Nothing is shown of a run that is kept, and a row of no run is of those that are shown.)
        stored = f"FROM {table_of(of)} WHERE {owner(of)} IN ({listed(known.kept)})"
        source = (
            RowSource(cursor, of if shown else None, stored, known.kept)
            if has_table(cursor, of)
            else RowSource(cursor, of)
        )
        if of == view:
            return source
        whose = "" if run_id is None else f" WHERE run_id = '{run_id}'"
        self._some_runs.settle(of, f"FROM ({source.all_rows()}){whose}")
        return RowSource(cursor, view)

    def _alone(self, view: str, run_id: UUID, noted: bool) -> RowSource | None:
        """Null: others' facts may be in its rows, or what is noted doesn't say whether they are."""
        cursor = self._one_run.cursor
        cursor.execute("BEGIN")
        shares = kin(cursor, view, {run_id}) != {run_id} if noted else asks_engines(view)
        if shares:
            cursor.execute("COMMIT")
            return None
        shown = self._one_run.show(run_id)
        shown.prepare(view)
        return RowSource(cursor, view, stand_ins=shown)

    def _whole(self, view: str) -> RowSource:
        self._plain.execute("BEGIN")
        return RowSource(self._plain, view)
