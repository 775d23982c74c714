"""What the projector's process keeps of accounts, when, and what is left of it after a kill, an
erasure or another version."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from consumers import keeper
from consumers.copy_log import copy_log
from consumers.projector import Projector
from ledger.book import Book, connect
from ledger.kept import KEPT, standing
from ledger.open_log import open_log
from tests.books import append, projected
from tests.builders import a_turn
from tests.kept_books import assert_as_plain, book_at, few_runs, keep
from tests.recorded import ROOT, eventually
from tests.test_waste import FIRST, TRAIN


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small book that is kept."""
    return few_runs(tmp_path_factory.mktemp("few"))


@pytest.fixture
def copy(few: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copy(few, tmp_path / "book"))


def test_a_small_book_keeps_nothing_and_neither_does_a_loud_run(copy: Path) -> None:
    with book_at(copy) as owner:
        owner.connection.execute("DELETE FROM kept_accounts")
        ((facts,),) = owner.connection.execute("SELECT sum(facts) FROM run_facts").fetchall()
        keep(owner, worth_it_from=facts + 1)
        assert owner.connection.execute("FROM kept_accounts").fetchall() == []
        with contextlib.closing(keeper.Keeper(owner, worth_it_from=facts)) as now:
            now.keep_all()  # all came just now
            assert owner.connection.execute("FROM kept_accounts").fetchall() == []
        keep(owner, worth_it_from=facts)
        assert all(len(standing(owner.connection, view).kept) == 6 for view in KEPT.values())


def test_nothing_of_an_erased_run_is_in_a_book_that_keeps(few: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'without.db'}"
    with open_log(f"sqlite:///{few.with_name('log.db')}") as source, open_log(url) as target:
        copy_log(source, target, UUID(TRAIN))
    projected(url, tmp_path / "book")
    with book_at(tmp_path / "book") as owner:
        keep(owner)
        owner.connection.execute("CHECKPOINT")
        assert all(standing(owner.connection, view).others == set() for view in KEPT.values())
        for view in ("waste", "throughput", "exclusions_by_version"):
            assert assert_as_plain(owner.connection, view)
        assert of_run(owner.connection, TRAIN) == {}
    with contextlib.closing(connect(few, read_only=True)) as before:
        assert of_run(before, TRAIN).keys() >= {"run_facts", "run_names", "kept_waste"}


def of_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, int]:
    """Tables with rows of a run, and how many."""
    tables = connection.execute(
        "SELECT duckdb_tables.table_name"
        " FROM duckdb_columns() JOIN duckdb_tables() USING (table_oid)"
        " WHERE column_name = 'run_id'"
    ).fetchall()
    counts = {
        str(name): connection.execute(
            f"SELECT count(*) FROM {name} WHERE run_id = '{run_id}'"
        ).fetchall()[0][0]
        for (name,) in tables
    }
    return {name: rows for name, rows in counts.items() if rows}


def test_a_kill_while_rows_are_kept_leaves_all_of_them_or_none(copy: Path) -> None:
    with book_at(copy) as owner:
        owner.connection.execute("DELETE FROM kept_accounts")
    code = (
        "import os, sys; from pathlib import Path; from consumers import keeper\n"
        "from tests.kept_books import book_at, keep\n"
        "put, done = keeper._put, []\n"
        "def dying(cursor, view):\n"
        "    put(cursor, view); done.append(view)\n"
        "    if len(done) == 5: os.kill(os.getpid(), 9)\n"
        "keeper._put = dying\n"
        "with book_at(Path(sys.argv[1])) as owner: keep(owner)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(copy)], check=False, cwd=ROOT)
    assert killed.returncode == -9
    with contextlib.closing(connect(copy, read_only=True)) as book:
        kept = [view for view in KEPT if standing(book, KEPT[view]).kept]
        assert kept == list(KEPT)[:4]
        kept_or_next = list(KEPT)[:6]
        for view in kept_or_next:
            assert_as_plain(book, view)
    with book_at(copy) as owner:
        keep(owner)
        for view in kept_or_next:
            assert standing(owner.connection, view).others == set()
            assert_as_plain(owner.connection, view)


def test_what_another_version_computed_does_not_hold(copy: Path) -> None:
    with book_at(copy) as owner:
        owner.connection.execute("UPDATE kept_accounts SET made_by = 'another'")
        assert standing(owner.connection, "pass_at_1").kept == set()
        assert len(assert_as_plain(owner.connection, "pass_at_1")) == 1
        keep(owner)
        assert standing(owner.connection, "pass_at_1").others == set()
        assert len(assert_as_plain(owner.connection, "pass_at_1")) == 1


def test_a_book_of_an_older_version_is_asked_as_it_is(copy: Path) -> None:
    with book_at(copy) as owner:
        for table in ("kept_accounts", "run_facts", "run_names", "run_engines"):
            owner.connection.execute(f"DROP TABLE {table}")
        owner.connection.execute("UPDATE book_meta SET value = 'another' WHERE name = 'hash'")
        for view in ("waste", "throughput"):
            assert assert_as_plain(owner.connection, view, [None, UUID(TRAIN), UUID(FIRST)])


def test_the_projector_keeps_what_is_quiet_while_it_follows_the_log(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("QUIET_S", 0.0), ("LOOK_S", 0.05)):
        monkeypatch.setattr(keeper, name, value)
    monkeypatch.setattr("consumers.projector.Keeper", lambda book: keeper.Keeper(book, 0))
    shutil.copy(few.with_name("log.db"), tmp_path / "log.db")
    stop, train = threading.Event(), UUID(TRAIN)
    with (
        open_log(f"sqlite:///{tmp_path / 'log.db'}") as log,
        contextlib.closing(Book(tmp_path / "book", log.identity)) as book,
    ):
        following = threading.Thread(target=Projector(log, book).follow, args=[stop])
        following.start()
        cursor = book.connection.cursor()
        try:

            def all_kept(facts: int) -> bool:
                seen = cursor.execute("SELECT sum(facts) FROM run_facts").fetchone()
                return seen == (facts,) and not any(
                    standing(cursor, view).others for view in ("step_time", [*KEPT.values()][-1])
                )

            ((facts,),) = counted(few)
            eventually(lambda: all_kept(facts), 60.0)
            append(log, [a_turn(run_id=TRAIN, engine="engine-0")])
            eventually(lambda: all_kept(facts + 1), 60.0)
            assert assert_as_plain(cursor, "waste", [None, train])
        finally:
            stop.set()
            following.join()


def counted(path: Path) -> list[Any]:
    with contextlib.closing(connect(path, read_only=True)) as book:
        return book.execute("SELECT sum(facts) FROM run_facts").fetchall()
