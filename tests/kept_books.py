"""Books of which accounts are kept, and what plain views say of the same book.

few_runs(folder)                        a small one
with book_at(path) as book: keep(book); add(book, facts)
assert_as_plain(path, view)             the account's answers are the view's rows
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import duckdb

from consumers import keeper
from consumers.decode import decode_batches
from consumers.dedupe import HighestIds
from consumers.insert import insert
from ledger.accounts.registry import Account, find_account
from ledger.accounts.reports import COMPUTED, Reports, extended
from ledger.book import Book, connect
from ledger.facts import Fact
from ledger.facts.lists import GroupDecision
from ledger.kept import KEPT
from ledger.log import TopicPartition
from ledger.open_log import open_log
from producers.simulator.copies import as_batch
from tests.books import append, numbered, projected, record_of
from tests.builders import an_id
from tests.decided_runs import Slot, TellRun
from tests.test_waste import a_run_on_two_gpus, a_run_with_every_reason, two_runs_on_one_engine

EVALUATION = an_id("evaluation")


def few_runs(folder: Path) -> Path:
    """The book of a log that lies beside it: runs that a test of waste tells of, two of which share
    an engine, and an evaluation; all are kept."""
    url = f"sqlite:///{folder / 'log.db'}"
    evaluation = TellRun(EVALUATION, seed=46)
    evaluation.say("run_declared", kind="eval", pass_threshold=0.5)
    evaluation.group(0, None, [Slot(1.0), Slot(0.0)], GroupDecision.EVALUATED)
    told = [*a_run_on_two_gpus(), *a_run_with_every_reason(), *two_runs_on_one_engine()]
    with open_log(url) as log:
        append(log, numbered([*told, *evaluation.facts]))
    projected(url, folder / "book")
    with book_at(folder / "book") as book:
        keep(book)
    return folder / "book"


@contextlib.contextmanager
def book_at(path: Path) -> Generator[Book]:
    """Open for writing."""
    with contextlib.closing(connect(path, read_only=True)) as connection:
        ((log,),) = connection.execute("SELECT value FROM book_meta WHERE name = 'log'").fetchall()
    with contextlib.closing(Book(path, log)) as book:
        yield book


def keep(
    book: Book,
    worth_it_from: int = 0,
    *,
    only: Sequence[str] = tuple(KEPT),
    one_by_one: bool = False,
) -> None:
    """Keep these accounts: by an hour after its facts every run is quiet. `one_by_one`: each run
    and its kin by themselves, so that what is made of others' facts shows."""
    at_once = 0 if one_by_one else keeper.FACTS_AT_ONCE
    with (
        mock.patch.object(keeper, "KEPT", {view: KEPT[view] for view in only}),
        mock.patch.object(keeper, "FACTS_AT_ONCE", at_once),
        contextlib.closing(keeper.Keeper(book, worth_it_from)) as keeping,
    ):
        keeping.keep_all(datetime.now(UTC) + timedelta(hours=1))


def add(book: Book, facts: Sequence[Fact]) -> None:
    """As the projector does when they come."""
    (at,) = book.positions().values()
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    batch = as_batch([record_of(fact) for fact in facts], at, now_us)
    place = TopicPartition("events", 0)
    done = insert(
        book,
        HighestIds(book.connection),
        decode_batches([batch]),
        {place: batch.next_offset},
    )
    assert (done.facts, done.duplicates, done.quarantined) == (len(facts), 0, 0)


def assert_as_plain(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    runs: Sequence[UUID | None] = (None,),
    rule_sets: Sequence[int | None] = (None,),
) -> list[str]:
    """An account says of the whole book (null) and of runs what its view says: these rows."""
    account, reports = find_account(view), Reports(connection)
    whole = plain(connection, account)
    for run_id in runs:
        for rule_set in rule_sets:
            asked = reports.ask(account, run_id=run_id, rule_set=rule_set)
            due = [
                row
                for row in whole
                if row.get("run_id", run_id) == (run_id or row.get("run_id"))
                and row.get("rule_set", rule_set) == (rule_set or row.get("rule_set"))
            ]
            assert asked.columns == tuple(due[0]) if due else not asked.rows
            found = [dict(zip(asked.columns, row, strict=True)) for row in asked.rows]
            assert in_words(found) == in_words(due), (view, run_id, rule_set)
            assert places(account, found) == places(account, due), (view, run_id, rule_set)
    return in_words(whole)


def plain(connection: duckdb.DuckDBPyConnection, account: Account) -> list[dict[str, Any]]:
    """The view's rows, in order, with what is computed beside them."""
    found = connection.execute(f"FROM {account.view} ORDER BY {account.order}")
    names = [str(column[0]) for column in found.description or ()]
    rows = [dict(zip(names, each, strict=True)) for each in found.fetchall()]
    return extended(connection, account.view, rows) if account.view in COMPUTED else rows


def in_words(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows without their order; floats that were added in another order are the same."""
    return sorted(str({name: _in_word(each) for name, each in row.items()}) for row in rows)


def _in_word(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return [_in_word(each) for each in value] if isinstance(value, list) else value


def places(account: Account, rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What rows are ordered by. (Rows that are equal in it may be in any order.)"""
    names = [column.split()[0] for column in account.order.split(", ")]
    return [tuple(_in_word(row[name]) for name in names) for row in rows]
