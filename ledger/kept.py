"""What the book keeps of accounts, so that a question about all of it need not read all of it.

Of most accounts, a run's rows are made of that run's facts alone. Once a run is quiet, the
projector's process keeps them (`consumers/keeper.py`): in a table of its own for each account, with
what is computed beside them. They hold for as long as the book has as many facts of the run as they
were made of, since facts are never taken out of a book; the count is raised in the
transaction that brings a fact (`consumers/run_marks.py`). So nobody has to remember to throw
anything away, and what is kept of a copy of the book is right for that copy.

Facts of another run may be in a run's rows where both name the same group or batch (a foreign
writer's mistake), and, in accounts that engines' samples are in, the same engine. Such runs are
kin: theirs are kept together, and hold for as long as the book has as many facts of all of them.
(Who becomes kin brings facts.) Not kept are `dataset_use`, which takes other runs' traces, and what
is of the whole book.

Invariant: kept rows and the view's rows of the runs that aren't kept are the view's rows
(`tests/test_kept.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from importlib import resources
from uuid import UUID

import duckdb

from ledger.accounts.registry import ACCOUNTS
from ledger.one_run import covers
from ledger.stand_ins import made_of

_ACROSS_RUNS = frozenset(["conservation"])
_COMPUTING = ("intervals.py", "outcomes.py", "quality.py")
"""What else than SQL makes kept rows, in `ledger/accounts`. (The SQL is in the book's own hash.)"""
KEPT = tuple(
    account.view
    for account in ACCOUNTS
    if covers(account.view) and account.view not in _ACROSS_RUNS
)
"""Views of accounts that may be kept."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one account: which runs' rows are kept, and which are not."""

    kept: Set[UUID]
    others: Set[UUID]


@cache
def made_by() -> str:
    """Changes with the code that computes what is kept."""
    folder, digest = resources.files("ledger.accounts"), hashlib.sha256()
    for name in _COMPUTING:
        digest.update(folder.joinpath(name).read_bytes())
    return digest.hexdigest()


def kin_of(view: str) -> str:
    """The column of `run_facts` by which runs are kin in an account."""
    # (Of all facts, an account across runs takes their producers' numbers alone.)
    of_engines = "engine_sampled" in made_of(view) and view not in _ACROSS_RUNS
    return "kin_by_engines" if of_engines else "kin_by_names"


def stamped(view: str) -> str:
    """A query of each run's stamp: how many facts the book has of it and its kin."""
    kin = kin_of(view)
    return (
        f"SELECT run_id, {kin} AS kin, sum(facts) OVER (PARTITION BY {kin}) AS facts FROM run_facts"
    )


def holding(view: str) -> str:
    """A query of the runs whose kept rows hold, with parameters `about(view)`: all kin, or none."""
    return (
        f"SELECT run_id FROM ({stamped(view)}) LEFT JOIN (SELECT run_id, facts, true AS is_kept"
        " FROM kept_accounts WHERE account = $account AND made_by = $made_by)"
        " USING (run_id, facts)"
        " QUALIFY count(is_kept) OVER (PARTITION BY kin) = count(*) OVER (PARTITION BY kin)"
    )


def about(view: str) -> dict[str, object]:
    """The parameters of `holding`."""
    return {"account": view, "made_by": made_by()}


def keeps(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether the book notes what can be kept; one of an older version doesn't."""
    return _is_table(connection, "kept_accounts")


def standing(connection: duckdb.DuckDBPyConnection, view: str) -> Standing:
    """As the book is now."""
    kept = {run_id for (run_id,) in connection.execute(holding(view), about(view)).fetchall()}
    seen = connection.execute("SELECT run_id FROM run_facts").fetchall()
    return Standing(kept, {run_id for (run_id,) in seen} - kept)


def kin(connection: duckdb.DuckDBPyConnection, view: str, run_id: UUID) -> Set[UUID]:
    """The run, and all whose facts may be in its rows of a view."""
    column = kin_of(view)
    found = connection.execute(
        f"SELECT run_id FROM run_facts"
        f" WHERE {column} = (SELECT {column} FROM run_facts WHERE run_id = $run_id)",
        {"run_id": run_id},
    ).fetchall()
    return {run_id, *(each for (each,) in found)}


def owner(view: str) -> str:
    """Of a kept row, the run that tells whether it holds. (Idle engines of several runs are of
    none of them.)"""
    return "coalesce(run_id, cluster_id)" if view == "waste" else "run_id"


def table_of(view: str) -> str:
    """The table of a view's kept rows; it is made with the first row."""
    return f"kept_{view}"


def has_table(connection: duckdb.DuckDBPyConnection, view: str) -> bool:
    """Whether there is one."""
    return _is_table(connection, table_of(view))


def _is_table(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND table_name = ?",
        [name],
    ).fetchall()
    return bool(found)
