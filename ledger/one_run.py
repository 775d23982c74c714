"""The book as far as one run goes: an account of it reads what belongs to it, not the whole book.

The facts of attempts are nearly all of a book, and those of one run say nothing of another's. All
other facts stay whole, since runs share them: an engine's samples belong to its cluster's run, and
an evaluation's policy version to the run that trained it.

Invariant: an account that `covers` names has the same rows for a run as the view over the whole
book has, unless other runs are its kin in it (`ledger.kept.kin`; `tests/test_one_run.py`).
"""

from __future__ import annotations

import re
from functools import cache
from uuid import UUID

import duckdb

from ledger.book_sql import sql_file
from ledger.stand_ins import StandIns, made_of

OF_ATTEMPTS = frozenset(
    [
        "group_opened",
        "trajectory_started",
        "sandbox_started",
        "sandbox_prepared",
        "sandbox_failed",
        "sandbox_stopped",
        "turn_completed",
        "turn_failed",
        "tool_call_completed",
        "reward_assigned",
        "trajectory_finished",
        "trajectory_judged",
        "group_decided",
    ]
)
"""Tables with many rows for each attempt or group, all of one run."""
WORTH_IT_FROM = 500_000
"""Facts of a book. Of 171,000 both ways took the same time; of 1,500,000 this one a third of it
(failures, waste, policy_lag)."""
_ACROSS_RUNS = frozenset(["dataset_use"])
"""Views of attempts of several runs: what one is trained on may come from others."""


@cache
def covers(view: str) -> bool:
    """Whether a view's rows of one run are made of that run's attempts alone."""
    made = made_of(view) | {view}
    return not made.isdisjoint(OF_ATTEMPTS) and made.isdisjoint(_ACROSS_RUNS)


class OneRun:
    """A cursor that shows the attempts of one run at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.cursor = connection.cursor()
        """What it shows is made as it is asked for, and kept."""
        self.cursor.execute("SET TimeZone = 'UTC'")
        self._stand_ins = StandIns(self.cursor, _part)

    def show(self, run_id: UUID) -> StandIns:
        """From here on the cursor shows this run's."""
        self.cursor.execute(f"SET VARIABLE shown_run = '{run_id}'::UUID")
        return self._stand_ins

    def close(self) -> None:
        self.cursor.close()


def _part(name: str, whole: str) -> str | None:
    if name in OF_ATTEMPTS:
        return f"FROM {whole} WHERE run_id = getvariable('shown_run')::UUID"
    if name == "facts":  # a producer numbers what it writes of all runs
        return _of_whole_tables(whole.removesuffix('"facts"'))
    return None


def _of_whole_tables(schema: str) -> str:
    """The query of view `facts`, over tables that nothing stands before."""
    _, query = sql_file("views/facts.sql").split(" AS\n", 1)
    return re.sub(r"\bFROM (\w+)", rf'FROM {schema}"\1"', query)
