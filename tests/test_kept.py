"""Accounts that are kept: the same rows as the views have, whatever comes behind them."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from consumers.judge import judge_log
from ledger.accounts.registry import ACCOUNTS, find_account
from ledger.accounts.reports import Reports
from ledger.book import connect
from ledger.book_sql import sql_file
from ledger.facts import FACTS
from ledger.judgement import load_rules
from ledger.kept import KEPT, kin_of, standing
from ledger.open_log import open_log
from ledger.stand_ins import made_of
from tests.books import append, numbered, projected
from tests.builders import a_fact, an_id
from tests.decided_runs import Slot, TellRun, at
from tests.kept_books import (
    EVALUATION,
    add,
    assert_as_plain,
    book_at,
    few_runs,
    in_words,
    keep,
    plain,
)
from tests.test_one_run import UNTOLD, runs_of_all_kinds
from tests.test_waste import (
    CLUSTER,
    FIRST,
    SECOND,
    TRAIN,
    turn,
    two_runs_on_one_engine,
)

LATE = {"turn_completed", "step_completed", "checkpoint_saved"}
"""Kinds of facts that are tried in every round of tests."""
OF_ENGINES = [view for view in KEPT if kin_of(KEPT[view]) == "kin_by_engines"]


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book of a log that lies beside it: runs of all kinds, all of which are kept."""
    folder = tmp_path_factory.mktemp("all-kinds")
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        runs_of_all_kinds(log)
        append(log, numbered(two_runs_on_one_engine()))
    projected(url, folder / "book")
    with book_at(folder / "book") as book:
        keep(book)
    return folder / "book"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small book that is kept, with runs that share an engine."""
    return few_runs(tmp_path_factory.mktemp("few"))


def runs_of(book: duckdb.DuckDBPyConnection) -> list[UUID]:
    """One of each kind; there are others beside them."""
    found = book.execute("SELECT min(run_id) FROM run_declared GROUP BY name ORDER BY 1").fetchall()
    return [run_id for (run_id,) in found]


@pytest.fixture(scope="module")
def before(few: Path) -> dict[str, list[str]]:
    """What each account says of it."""
    with contextlib.closing(connect(few, read_only=True)) as book:
        return {view: in_words(plain(book, find_account(view))) for view in KEPT}


@pytest.fixture
def copy(few: Path, tmp_path: Path) -> Path:
    """A copy of it to add to."""
    return Path(shutil.copy(few, tmp_path / "book"))


def test_an_account_is_kept_or_what_it_has_of_a_run_alone_is() -> None:
    assert {account.view for account in ACCOUNTS} - set(KEPT) == {"book_problems", "producers"}
    assert {view for view, kept in KEPT.items() if view != kept} == {"conservation", "dataset_use"}
    assert set(OF_ENGINES) == {
        "capacity",
        "failure_hazard",  # it only has a column of the name
        "failures",
        "runaway_contexts",
        "waste",
    }


@pytest.mark.parametrize("view", KEPT)
def test_kept_rows_are_the_views_rows(all_kinds: Path, view: str) -> None:
    with contextlib.closing(connect(all_kinds, read_only=True)) as book:
        known = standing(book, KEPT[view])
        assert (len(known.kept), known.others) == (14, set())
        rows = assert_as_plain(book, view, [None, *runs_of(book), uuid.uuid4()])
        assert rows or view in UNTOLD
        assert_as_plain(book, view, rule_sets=(1, 2))


@pytest.mark.parametrize(
    "view",
    [view if view in OF_ENGINES else pytest.param(view, marks=pytest.mark.long) for view in KEPT],
)
def test_some_runs_that_are_kept_and_others_that_are_not_are_the_whole_book(
    all_kinds: Path, tmp_path: Path, view: str
) -> None:
    path = Path(shutil.copy(all_kinds, tmp_path / "book"))
    with book_at(path) as owner:
        runs = runs_of(owner.connection)
        owner.connection.execute(
            "DELETE FROM kept_accounts WHERE run_id IN ($1, $2, $3)", [*runs[:2], FIRST]
        )
    with contextlib.closing(connect(path, read_only=True)) as book:
        known = standing(book, KEPT[view])
        assert len(known.kept) + len(known.others) == 14
        # In accounts of engines, with each its cluster's own run, and whoever else is its kin.
        assert known.others >= {*runs[:2], UUID(FIRST)}
        assert len(known.others) == (3 if view not in OF_ENGINES else 7)
        assert_as_plain(book, view, [None, runs[0]])


@pytest.mark.parametrize(
    "name", [name if name in LATE else pytest.param(name, marks=pytest.mark.long) for name in FACTS]
)
def test_a_late_fact_of_any_kind_changes_an_account_as_it_changes_the_view(
    before: dict[str, list[str]], copy: Path, name: str
) -> None:
    fact = late(name)
    with book_at(copy) as owner:
        add(owner, [fact])
    changed = set[str]()
    with contextlib.closing(connect(copy, read_only=True)) as book:
        for view in KEPT:
            known = standing(book, KEPT[view])
            assert known.others == {UUID(fact.run_id)}
            assert len(known.kept) == 5
            if name in made_of(view):
                now = assert_as_plain(book, view, [None, UUID(fact.run_id)])
                # (Whoever tells of it is a producer of whom numbers are missing.)
                if now != before[view] and view != "conservation":
                    changed.add(view)
    assert bool(changed) == (name not in UNSEEN), changed


UNSEEN = {
    "task_validated",
    "refill_requested",
    "checkpoint_saved",
    "weights_published",
    "weights_orphaned",
    "producer_alive",
    "producer_closed",
    "producer_lost",
    "facts_erased",
}
"""Kinds of facts that no account shows that is kept."""


def late(name: str) -> Any:
    """A fact about what the run `TRAIN` has done, or of an evaluation's task."""
    run = TellRun(TRAIN, seed=1)
    told = {
        "run_id": EVALUATION if name == "task_declared" else TRAIN,
        "group_id": run.group_id(8 if name == "group_opened" else 0),
        "trajectory_id": run.trajectory_id(0, 0),
        "batch_id": run.batch_id(1),
        "slot": 0,
        "step": 1,
        "engine": "engine-0",
        "rule_set": 2,
        "policy_version": 1,
        "success": True,
        "cache_flushed": True,
        "resumed_step": 0,
        "occurred_at": at(0) if name == "weights_applied" else at(6),
        "started_at": at(5),
    }
    names = {field.name for field in dataclasses.fields(FACTS[name])}
    return a_fact(name, seed=77, **{key: value for key, value in told.items() if key in names})


def test_the_noted_numbers_of_producers_are_those_of_their_facts(all_kinds: Path) -> None:
    copy = Path(shutil.copy(all_kinds, all_kinds.with_name("more")))
    others = [
        a_fact("trajectory_started", seed=seed, incarnation=an_id("new")) for seed in (80, 81)
    ]
    known = a_fact("trajectory_started", seed=82, run_id=TRAIN)
    with book_at(copy) as owner:
        for facts in ([known], others):
            add(owner, [dataclasses.replace(each, producer_seq=2**41 + 7) for each in facts])
        book = owner.connection
        noted = book.execute("FROM producer_numbers ORDER BY incarnation").fetchall()
        counted = sql_file("producer_numbers.sql")
        assert noted == book.execute(f"FROM ({counted}) ORDER BY incarnation").fetchall()
    assert len(noted) > 5


def test_what_runs_of_one_engine_do_is_in_each_others_accounts_of_engines_alone(
    copy: Path,
) -> None:
    first, second, cluster = map(UUID, (FIRST, SECOND, CLUSTER))
    run = TellRun(SECOND, seed=44)
    run.group(9, "stale", [Slot(1.0, turns=[turn(9, 3, 20, engine="shared")])])
    with book_at(copy) as owner:
        add(owner, run.facts)
    with contextlib.closing(connect(copy, read_only=True)) as book:
        for view in KEPT:
            others = {first, second, cluster} if view in OF_ENGINES else {second}
            assert standing(book, KEPT[view]).others == others
            assert_as_plain(book, view, [None, first, second, cluster])


def test_a_run_that_begins_to_use_an_engine_becomes_kin_of_those_that_did(copy: Path) -> None:
    run = TellRun(TRAIN, seed=45)
    run.group(9, "stale", [Slot(1.0, turns=[turn(9, 3, 20, engine="shared")])])
    with book_at(copy) as owner:
        add(owner, run.facts)
        kin = {UUID(each) for each in (TRAIN, FIRST, SECOND, CLUSTER)}
        for again in (False, True):
            for view in KEPT:
                others = kin if view in OF_ENGINES else {UUID(TRAIN)}
                assert standing(owner.connection, KEPT[view]).others == (set() if again else others)
                assert_as_plain(owner.connection, view, [None, UUID(TRAIN), UUID(FIRST)])
            keep(owner)


@pytest.mark.long
def test_two_runs_that_name_one_group_are_kin_in_every_account(copy: Path) -> None:
    group = TellRun(TRAIN, seed=1).group_id(0)
    decided = a_fact("group_decided", seed=78, run_id=SECOND, group_id=group, occurred_at=at(7))
    with book_at(copy) as owner:
        add(owner, [decided])
        for again in (False, True):
            for view in KEPT:
                others = standing(owner.connection, KEPT[view]).others
                assert not others if again else others >= {UUID(TRAIN), UUID(SECOND)}
                assert_as_plain(owner.connection, view, [None, UUID(TRAIN), UUID(SECOND)])
            keep(owner)


@pytest.mark.parametrize("view", ["failures", "pass_at_1", "exclusions_by_version", "throughput"])
def test_judging_by_another_rule_set_shows(all_kinds: Path, tmp_path: Path, view: str) -> None:
    for file in ("log.db", "book"):
        shutil.copy(all_kinds.with_name(file), tmp_path / file)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_log(url) as log:
        judge_log(log, load_rules(2))
    projected(url, tmp_path / "book")
    with contextlib.closing(connect(tmp_path / "book", read_only=True)) as book:
        rows = assert_as_plain(book, view, [None, *runs_of(book)], (None, 1, 2))
        assert rows
        found = Reports(book).ask(find_account(view), rule_set=2)
        assert found.rule_sets == (2,)
