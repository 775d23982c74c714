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
(Who becomes kin brings facts.)

Attempts are too many to note who names which. So where rows compare them, it is looked for when
rows are kept and when they are asked for: the ids of a few runs' attempts are found quickly.

Of an account that takes other runs' facts in every book (`conservation`, which looks for holes in
what producers numbered, and `dataset_use`, which takes other runs' traces) there is a view of what
is a run's own, and its rows are kept. What is of the whole book isn't.

Invariant: kept rows and the view's rows of the runs that aren't kept are the view's rows
(`tests/test_kept.py`, `test_kept_in_part.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from importlib import resources
from uuid import UUID

import duckdb

from ledger.accounts.registry import ACCOUNTS
from ledger.book_sql import book_hash
from ledger.one_run import covers
from ledger.stand_ins import made_of, whole_names

_OWN = {"conservation": "broken_in_runs", "dataset_use": "data_used"}
"""Of an account that takes other runs' facts, what it is made of that doesn't."""
_COMPARE_ATTEMPTS = frozenset(["broken_in_runs"])
"""Views with rows of attempts that two runs name."""
_COMPUTING = ("intervals.py", "outcomes.py", "quality.py")
"""What else than SQL makes kept rows, in `ledger/accounts`. (The SQL is in the book's own hash.)"""
KEPT: Mapping[str, str] = {
    account.view: _OWN.get(account.view, account.view)
    for account in ACCOUNTS
    if covers(_OWN.get(account.view, account.view))
}
"""View of an account -> the view of which rows are kept for it, which is mostly the same."""


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
    return "kin_by_engines" if asks_engines(view) else "kin_by_names"


def asks_engines(view: str) -> bool:
    """Whether what runs did at one engine is in each other's rows."""
    return "engine_sampled" in made_of(view)


def stamped(view: str) -> str:
    """A query of each run's stamp: how many facts the book has of it and its kin."""
    column = kin_of(view)
    return (
        f"SELECT run_id, {column} AS kin, sum(facts) OVER (PARTITION BY {column}) AS facts"
        " FROM run_facts"
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
    """Whether the book notes what can be kept, as this version does."""
    query = "SELECT 1 FROM book_meta WHERE name = 'hash' AND value = ?"
    return bool(connection.execute(query, [book_hash()]).fetchall())


def standing(connection: duckdb.DuckDBPyConnection, view: str) -> Standing:
    """As the book is now."""
    kept = {run_id for (run_id,) in connection.execute(holding(view), about(view)).fetchall()}
    seen = connection.execute("SELECT run_id FROM run_facts").fetchall()
    others = {run_id for (run_id,) in seen} - kept
    if kept and others and view in _COMPARE_ATTEMPTS:
        others = kin(connection, view, others)
    return Standing(kept - others, others)


def kin(connection: duckdb.DuckDBPyConnection, view: str, runs: Set[UUID]) -> Set[UUID]:
    """The runs, and all whose facts may be in their rows of a view."""
    column, known = kin_of(view), set[UUID]()
    found = set(runs)
    while found > known:
        known = set(found)
        theirs = f"SELECT {column} FROM run_facts WHERE run_id IN ({listed(found)})"
        more = connection.execute(f"SELECT run_id FROM run_facts WHERE {column} IN ({theirs})")
        found |= {run_id for (run_id,) in more.fetchall()}
        if view in _COMPARE_ATTEMPTS:
            found |= _sharing_attempts(connection, found)
    return found


def _sharing_attempts(connection: duckdb.DuckDBPyConnection, runs: Set[UUID]) -> set[UUID]:
    """All others that name an attempt which one of these names, as only a foreign writer does."""
    facts = ("trajectory_started", "trajectory_finished", "trajectory_judged")
    whole = whole_names(connection)
    named = " UNION ALL ".join(f"SELECT run_id, trajectory_id FROM {whole(each)}" for each in facts)
    found = connection.execute(
        f"SELECT DISTINCT theirs.run_id FROM ({named}) AS theirs"
        f" JOIN ({named}) AS ours USING (trajectory_id)"
        f" WHERE ours.run_id IN ({listed(runs)}) AND theirs.run_id NOT IN ({listed(runs)})"
    ).fetchall()
    return {run_id for (run_id,) in found}


def listed(runs: Set[UUID]) -> str:
    """A query of these runs. (To pass as many UUIDs as parameters takes 0.14 ms each.)"""
    ids = ",".join(map(str, sorted(runs)))
    return f"SELECT unnest(string_split(nullif('{ids}', ''), ','))::UUID"


def owner(view: str) -> str:
    """Of a kept row, the run that tells whether it holds. (Idle engines of several runs are of
    none of them.)"""
    return "coalesce(run_id, cluster_id)" if view == "waste" else "run_id"


def table_of(view: str) -> str:
    """The table of a view's kept rows; it is made when the first run is kept, or its first row."""
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
