"""Accounts of one run, read from its own attempts: the same rows as the view over the whole book.

The golden numbers of `tests/account_logs.py` are asked for both ways too."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from api.server.reading import Readings
from consumers.judge import judge_log
from ledger.accounts.registry import ACCOUNTS, find_account
from ledger.accounts.reports import Reports, report
from ledger.book import connect
from ledger.judgement import load_rules
from ledger.log import EventLog
from ledger.one_run import OF_ATTEMPTS, OneRun, covers
from ledger.open_log import open_log
from ledger.stand_ins import made_of
from producers.simulator.published import EVALUATIONS
from producers.simulator.run import SimulatedRun
from producers.simulator.write import write
from tests.books import append, numbered, projected
from tests.lived_runs import lived
from tests.test_simulator import RUNAWAY_SMALL, SMALL, few_turns
from tests.test_waste import FIRST, two_runs_on_one_engine

VIEWS = [account.view for account in ACCOUNTS]
COVERED = [view for view in VIEWS if covers(view)]
UNTOLD = {"contamination", "downtime", "fabricated_zero", "false_exclusion", "stragglers"}
"""Of these runs there may be nothing to tell."""
EVALUATION = replace(few_turns(EVALUATIONS[0], 1_000.0), tasks=12)


def runs_of_all_kinds(log: EventLog) -> None:
    """Some of them twice."""
    lived(log)
    for seed in (1, 2):
        for plan in (SMALL, EVALUATION):
            write(log, SimulatedRun(plan, seed))
    write(log, SimulatedRun(RUNAWAY_SMALL, 1))
    judge_log(log, load_rules(1))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("runs")
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        runs_of_all_kinds(log)
    projected(url, folder / "book")
    with contextlib.closing(connect(folder / "book", read_only=True)) as connection:
        yield connection


def runs_of(book: duckdb.DuckDBPyConnection) -> list[UUID]:
    """One of each kind; there are others beside them."""
    found = book.execute("SELECT min(run_id), count(*) FROM run_declared GROUP BY name").fetchall()
    assert sum(runs for _, runs in found) > len(found) == 4
    return [run_id for run_id, _ in found]


def plain(rows: list[tuple[Any, ...]]) -> list[str]:
    """In an order that doesn't depend on in which order floats were added."""
    return sorted(
        str([f"{each:.6g}" if isinstance(each, float) else each for each in row]) for row in rows
    )


def test_the_heavy_accounts_are_covered() -> None:
    assert set(VIEWS) - set(COVERED) == {
        "book_problems",
        "dataset_use",
        "producers",
    }


@pytest.mark.parametrize("view", COVERED)
def test_a_run_alone_has_the_rows_that_it_has_among_others(
    book: duckdb.DuckDBPyConnection, view: str
) -> None:
    one_run, answered = OneRun(book), 0
    for run_id in runs_of(book):
        query = f"FROM {view} WHERE run_id = ?"
        expected = plain(book.execute(query, [run_id]).fetchall())
        one_run.show(run_id).prepare(query)
        assert plain(one_run.cursor.execute(query, [run_id]).fetchall()) == expected
        answered += len(expected)
    assert answered > 0 or view in UNTOLD


@pytest.mark.parametrize("view", COVERED)
def test_no_table_of_attempts_is_read_beyond_the_run(
    book: duckdb.DuckDBPyConnection, view: str
) -> None:
    one_run, run_id = OneRun(book), runs_of(book)[-1]
    query = f"FROM {view} WHERE run_id = '{run_id}'"
    one_run.show(run_id).prepare(query)
    ((_, text),) = one_run.cursor.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
    scans = list(scans_in(json.loads(text)))
    assert scans or not made_of(view)
    for table, filters in scans:
        whole = view == "conservation"  # which sums up a producer's numbers of all runs
        if table in OF_ATTEMPTS and "run_id" not in filters and not whole:  # all rows pass it
            runs = book.execute(f"SELECT DISTINCT run_id FROM {table}").fetchall()
            assert runs == [(run_id,)], table


def scans_in(plan: list[Any]) -> Iterator[tuple[str, str]]:
    """(table, filters) of each scan of a table in an explained plan."""
    for node in plan:
        about = node.get("extra_info", {})
        if "Table" in about:
            yield about["Table"].rpartition(".")[2], str(about.get("Filters", ""))
        yield from scans_in(node["children"])


def test_reports_of_several_runs_by_one_asker_are_each_their_own(
    book: duckdb.DuckDBPyConnection,
) -> None:
    reports, account = Reports(book), find_account("pass-at-1")
    for run_id in (*runs_of(book), *runs_of(book)):
        of_run = reports.ask(account, run_id=run_id)
        assert {row[of_run.columns.index("run_id")] for row in of_run.rows} <= {run_id}
        assert of_run == report(book, account, run_id=run_id)
    whole = reports.ask(account)
    assert len({row[whole.columns.index("run_id")] for row in whole.rows}) > 1


def test_readings_of_runs_go_on_side_by_side_and_after_one_that_failed(
    book: duckdb.DuckDBPyConnection,
) -> None:
    readings, count = Readings(book, 60.0), "SELECT count(*) AS n FROM trajectories"
    runs = runs_of(book)
    expected = [book.execute(f"{count} WHERE run_id = ?", [run]).fetchall()[0][0] for run in runs]
    assert len(set(expected)) > 1
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            open_ones = [
                stack.enter_context(readings.open_view("trajectories", run)) for run in runs
            ]
            assert [reading.rows(count) for reading in open_ones] == [[{"n": n}] for n in expected]
        with pytest.raises(duckdb.Error), readings.open_view("trajectories", runs[0]) as reading:
            reading.rows("SELECT nothing FROM trajectories")
    with readings.open() as whole:
        assert whole.rows(count)[0]["n"] > sum(expected)


def test_a_reading_of_a_run_that_shares_its_engine_has_what_the_others_did_there(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_log(url) as log:
        append(log, numbered(two_runs_on_one_engine()))
    projected(url, tmp_path / "book")
    with contextlib.closing(connect(tmp_path / "book", read_only=True)) as book:
        readings = Readings(book, 60.0)
        for view in ("waste", "turns"):
            query = f"SELECT * FROM {view} WHERE run_id = '{FIRST}'"
            with readings.open() as whole, readings.open_view(view, UUID(FIRST)) as reading:
                assert reading.rows(query) == whole.rows(query) != []
                runs = reading.rows("SELECT DISTINCT run_id FROM turns")
                assert len(runs) == (2 if view == "waste" else 1)
