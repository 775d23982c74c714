"""Keeps accounts of runs that are quiet (`ledger.kept`), a few runs of one account at a time.

    not kept, and quiet ─▶ select in a transaction of its own ─▶ short write: rows and their stamps

Selecting waits for nobody and holds up nobody; the projector waits for the write alone. What comes
in between makes the stamp one that doesn't hold.

Invariant: rows are kept in one transaction with the number of facts that they were made of, and
these were counted in the transaction that selected them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Sequence, Set
from datetime import UTC, datetime, timedelta
from uuid import UUID

import duckdb

from ledger.accounts.reports import COMPUTED, extended
from ledger.book import Book
from ledger.kept import (
    KEPT,
    about,
    has_table,
    holding,
    kin,
    listed,
    made_by,
    owner,
    stamped,
    table_of,
)
from ledger.one_run import WORTH_IT_FROM
from ledger.some_runs import SomeRuns

logger = logging.getLogger(__name__)

QUIET_S = 10.0
"""A run without a fact for so long is quiet. Of one that was kept and became loud again it takes
twice as long each time."""
QUIET_MOST_S = 3_600.0
LOOK_S = 2.0
"""Between two looks for quiet runs."""
FACTS_AT_ONCE = 1_000_000
"""Runs with so many facts are selected together: selecting has a fixed cost, and takes memory."""


class Keeper:
    """Keeps accounts of one book; in its owner's process."""

    def __init__(self, book: Book, worth_it_from: int = WORTH_IT_FROM) -> None:
        """`worth_it_from`: facts of the book; of a smaller one nothing is kept."""
        self._book = book
        self._worth_it_from = worth_it_from
        self._some_runs = SomeRuns(book.connection)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rollbook-keep")
        self._louder: Counter[UUID] = Counter()
        """How often a run was kept and became loud again."""
        self._seen_to: dict[UUID, int] = {}
        """Runs of which all was kept that can be, with how many facts they had."""

    def start(self) -> None:
        """Keep what becomes quiet, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End it with no more than the write in hand, and for good."""
        self._stop.set()
        while self._thread.is_alive():
            self._some_runs.cursor.interrupt()
            self._thread.join(0.1)
        self.close()

    def close(self) -> None:
        self._some_runs.close()

    def keep_all(self, now: datetime | None = None) -> None:
        """Keep what is quiet, now or at a time given. What can't be kept is logged, and left to
        the views until another run is quiet."""
        quiet = self._quiet(now or datetime.now(UTC))
        if quiet == self._seen_to:
            return
        for view in KEPT.values():
            for runs in _portions(self._missing(view, quiet.keys())):
                try:
                    self._keep(view, runs)
                except duckdb.Error as error:
                    with contextlib.suppress(duckdb.Error):
                        self._some_runs.cursor.execute("ROLLBACK")
                    self._some_runs.forget()
                    if not self._stop.is_set():
                        logger.warning("%s of %d runs isn't kept: %s", view, len(runs), error)
                if self._stop.is_set():
                    return
        self._seen_to = quiet

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.keep_all()
            except duckdb.Error as error:
                if not self._stop.is_set():
                    logger.warning("what could be kept isn't known: %s", error)

    def _quiet(self, now: datetime) -> dict[UUID, int]:
        """Runs that are quiet, with how many facts they have; none in a book that is too small."""
        found = self._some_runs.cursor.execute(
            "SELECT run_id, facts, last_log_time FROM run_facts"
        ).fetchall()
        if sum(facts for _, facts, _ in found) < self._worth_it_from:
            return {}
        quiet = dict[UUID, int]()
        for run_id, facts, last in found:
            waits_s = min(QUIET_S * 2.0 ** min(self._louder[run_id], 20), QUIET_MOST_S)
            if last <= now - timedelta(seconds=waits_s):
                quiet[run_id] = facts
            elif run_id in self._seen_to:
                self._louder[run_id] += 1
        return quiet

    def _missing(self, view: str, quiet: Set[UUID]) -> list[tuple[list[UUID], int]]:
        """Runs that are kin and all quiet, of which not all are kept, and how many facts they
        have."""
        found = self._some_runs.cursor.execute(
            f"SELECT list(run_id), any_value(facts) FROM ({stamped(view)})"
            f" GROUP BY kin HAVING NOT bool_and(run_id IN ({holding(view)}))",
            about(view),
        ).fetchall()
        return [(runs, int(facts)) for runs, facts in found if quiet >= set(runs)]

    def _keep(self, view: str, runs: Sequence[UUID]) -> None:
        """Keep an account's rows of runs and their kin, which may be more by now."""
        cursor = self._some_runs.cursor
        cursor.execute("BEGIN")
        cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE made_of AS SELECT run_id, facts FROM ({stamped(view)})"
            f" WHERE run_id IN ({listed(kin(cursor, view, set(runs)))})"
        )
        shown = cursor.execute("SELECT run_id FROM made_of").fetchall()
        self._some_runs.show({run_id for (run_id,) in shown}, view)
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE making AS SELECT * FROM {view}")
        if view in COMPUTED:
            _compute(cursor, view)
        cursor.execute("COMMIT")
        with self._book.writing:
            cursor.execute("BEGIN")
            _put(cursor, view)
            cursor.execute("COMMIT")


def _compute(cursor: duckdb.DuckDBPyConnection, view: str) -> None:
    """Add the columns that are computed beside the rows."""
    found = cursor.execute("SELECT rowid, * FROM making ORDER BY rowid")
    names = [str(column[0]) for column in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    for place, row in enumerate(extended(cursor, view, rows)):
        computed = {name: row[name] for name in row.keys() - set(names)}
        if place == 0:
            for name in (name for name in row if name in computed):
                kind = "VARCHAR" if name.endswith("_method") else "DOUBLE"
                cursor.execute(f"ALTER TABLE making ADD COLUMN {name} {kind}")
        said = ", ".join(f"{name} = ${name}" for name in computed)
        cursor.execute(
            f"UPDATE making SET {said} WHERE rowid = $rowid", {**computed, "rowid": row["rowid"]}
        )


def _put(cursor: duckdb.DuckDBPyConnection, view: str) -> None:
    """Put what was made in the place of what was kept of these runs."""
    (rows,) = cursor.execute("SELECT count(*) FROM making").fetchone() or (0,)
    if has_table(cursor, view):
        cursor.execute(
            f"DELETE FROM {table_of(view)} WHERE {owner(view)} IN (SELECT run_id FROM made_of)"
        )
    elif rows or view not in COMPUTED:  # what is computed has a column once it has a row
        cursor.execute(f"CREATE TABLE {table_of(view)} AS FROM making LIMIT 0")
    if rows:
        cursor.execute(f"INSERT INTO {table_of(view)} BY NAME FROM making")
    cursor.execute(
        "DELETE FROM kept_accounts WHERE account = $account"
        " AND run_id IN (SELECT run_id FROM made_of)",
        {"account": view},
    )
    cursor.execute(
        "INSERT INTO kept_accounts SELECT $account, run_id, facts, $made_by FROM made_of",
        {"account": view, "made_by": made_by()},
    )


def _portions(found: Sequence[tuple[list[UUID], int]]) -> list[list[UUID]]:
    """Runs with how many facts they have, together as far as these are few."""
    portions, room = list[list[UUID]](), 0
    for runs, facts in found:
        if not portions or facts > room:
            portions.append([])
            room = FACTS_AT_ONCE
        portions[-1] += runs
        room -= facts
    return portions
