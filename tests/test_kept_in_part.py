"""Accounts that take other runs' facts: what is a run's own is kept, and the rest is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from api.server.reading import Readings
from ledger.accounts.registry import find_account
from ledger.accounts.reports import Reports, report
from ledger.book import Book
from ledger.facts import Fact
from ledger.facts.lists import GroupDecision
from ledger.kept import KEPT, kin, standing
from ledger.open_log import open_log
from tests.books import append, numbered, projected
from tests.builders import a_fact, an_id
from tests.decided_runs import Slot, TellRun, at
from tests.kept_books import EVALUATION, add, assert_as_plain, book_at, keep

A, B, C, D = (an_id("run of", n) for n in range(4))
FEW = ("conservation", "dataset_use", "slot_balance", "stop_reasons", "runaway_contexts")
"""Accounts that these tests ask for."""
SHARED = (
    "conservation",
    "context_growth",
    "dispositions",
    "policy_lag",
    "runaway_contexts",
    "selection",
    "slot_outcomes",
    "step_time",
    "stop_reasons",
    "throughput",
    "waste",
)
"""Of attempts."""
ATTEMPT = TellRun(A, seed=50).trajectory_id(0, 0)


def told(run_id: str, seed: int) -> TellRun:
    """A run of two groups, one of which was trained on."""
    run = TellRun(run_id, seed)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    run.group(0, None, [Slot(1.0), Slot(0.0)])
    run.group(1, "stale", [Slot(1.0)])
    run.batch(1, [0])
    run.step(1)
    return run


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Book]:
    """A book that keeps three runs."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_log(url) as log:
        runs = [told(run_id, 50 + n) for n, run_id in enumerate((A, B, C))]
        append(log, numbered([fact for run in runs for fact in run.facts]))
    projected(url, tmp_path / "book")
    with book_at(tmp_path / "book") as book:
        keep(book, only=FEW)
        yield book


def of_an_attempt(run_id: str, seed: int, trajectory_id: str, name: str) -> Fact:
    ids: dict[str, Any] = {"trajectory_id": trajectory_id, "group_id": an_id("of", seed)}
    return a_fact(name, seed=seed, run_id=run_id, slot=3, **ids)


def moved(book: Book, reports: Reports) -> Sequence[tuple[UUID, UUID]]:
    """(run, attempt) of attempts that are in two slots, as the account has it."""
    found = reports.ask(find_account("conservation"))
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert_as_plain(
        book.connection, "conservation", [None, *map(UUID, (A, B, C, D)), UUID(an_id("nobody"))]
    )
    return [
        (row["run_id"], row["trajectory_id"])
        for row in rows
        if row["identity"] == "one_slot_per_trajectory"
    ]


def others(book: Book) -> set[str]:
    return {str(each) for each in standing(book.connection, KEPT["conservation"]).others}


@pytest.mark.parametrize("name", ["trajectory_started", "trajectory_finished", "trajectory_judged"])
def test_an_attempt_of_two_runs_is_seen_whichever_of_them_is_kept(owner: Book, name: str) -> None:
    reports = Reports(owner.connection)
    assert others(owner) == set()
    assert moved(owner, reports) == []
    add(owner, [of_an_attempt(B, 90, ATTEMPT, name)])
    at = [(UUID(min(A, B)), UUID(ATTEMPT))]
    assert others(owner) == {A, B}
    assert moved(owner, reports) == at
    keep(owner, only=["conservation"])
    assert others(owner) == set()
    assert moved(owner, reports) == at
    for late, run_id in enumerate((A, B)):
        add(owner, [a_fact("sandbox_stopped", seed=91 + late, run_id=run_id)])
        assert others(owner) == {A, B}
        assert moved(owner, reports) == at
        keep(owner, only=["conservation"])
        assert moved(owner, reports) == at


def test_what_runs_share_is_followed_from_run_to_run(owner: Book) -> None:
    reports = Reports(owner.connection)
    of_c = TellRun(C, seed=52).trajectory_id(1, 0)
    add(owner, [of_an_attempt(B, 90, of_c, "trajectory_started")])
    keep(owner, only=["conservation"])
    add(owner, [of_an_attempt(D, 91, ATTEMPT, "trajectory_finished")])
    assert others(owner) == {A, D}
    add(owner, [of_an_attempt(D, 92, an_id("its own"), "trajectory_started"),
                of_an_attempt(A, 93, of_c, "trajectory_judged")])  # fmt: skip
    assert others(owner) == {A, B, C, D}
    assert kin(owner.connection, KEPT["conservation"], {UUID(B)}) == set(map(UUID, (A, B, C, D)))
    assert len(moved(owner, reports)) == 2
    keep(owner, only=["conservation"])
    assert others(owner) == set()
    assert len(moved(owner, reports)) == 2


def test_an_unbalanced_run_is_kept_with_its_rows_and_a_late_fact_mends_it(owner: Book) -> None:
    run, reports = told(D, 60), Reports(owner.connection)
    finished = [fact for fact in run.facts if type(fact).__name__ == "TrajectoryFinished"]
    add(owner, [fact for fact in run.facts if fact is not finished[0]])

    def unended() -> list[Any]:
        moved(owner, reports)
        found = reports.ask(find_account("conservation"), run_id=UUID(D))
        at = [found.columns.index(name) for name in ("identity", "trajectory_id")]
        rows = [tuple(row[place] for place in at) for row in found.rows]
        return [row for row in rows if row[0] == "voter_ended"]

    due = [("voter_ended", UUID(finished[0].trajectory_id))]
    assert unended() == due
    keep(owner, only=["conservation"])
    assert others(owner) == set()
    assert unended() == due
    add(owner, finished[:1])
    assert others(owner) == {D}
    assert unended() == []
    keep(owner, only=["conservation"])
    assert unended() == []


def test_traces_of_runs_that_are_kept_or_not_are_in_the_use_of_data(owner: Book) -> None:
    tune = TellRun(D, seed=61)
    tune.say("run_declared", kind="sft", parent_run_id=A)
    tune.batch(1, [], trace_ids=[ATTEMPT, TellRun(B, 51).trajectory_id(0, 1), an_id("late")])
    tune.step(1)
    add(owner, tune.facts)

    def use() -> dict[str, Any]:
        assert_as_plain(owner.connection, "dataset_use", [None, *map(UUID, (A, B, C, D))])
        found = Reports(owner.connection).ask(find_account("dataset-use"), run_id=UUID(D))
        return dict(zip(found.columns, found.rows[0], strict=True))

    for again in (False, True):
        assert (use()["trace_uses"], use()["traces_unknown"], use()["trace_tasks"]) == (3, 1, 1)
        assert use()["trace_run_ids"] == sorted(map(UUID, (A, B)))
        if not again:
            keep(owner, only=["dataset_use"])
    # Of run C comes what run D was tuned on; of D comes nothing.
    add(owner, [of_an_attempt(C, 94, an_id("late"), "trajectory_started")])
    assert (use()["traces_unknown"], len(use()["trace_run_ids"])) == (0, 3)


def test_a_reader_of_several_accounts_sees_the_whole_book_behind_each(owner: Book) -> None:
    """What was shown of one run for an account stands before nothing in the next."""
    evaluation = TellRun(EVALUATION, seed=63)
    evaluation.say("run_declared", kind="eval", tasks=1, attempts_per_task=1)
    evaluation.group(0, None, [Slot(1.0), Slot(0.0)], GroupDecision.EVALUATED)
    add(owner, [*told(D, 62).facts, *evaluation.facts])
    reports, readings = Reports(owner.connection), Readings(owner.connection, 60.0)
    for name in ("stop-reasons", "conservation", "dataset-use", "slot-balance", "conservation"):
        account = find_account(name)
        for run_id in (None, UUID(D), UUID(A), UUID(EVALUATION)):
            found = reports.ask(account, run_id=run_id)
            assert found.rows
            assert found == report(owner.connection, account, run_id=run_id)
            with readings.open_view(account.view, run_id) as reading:
                assert reading.source is not None
                every = f"SELECT count(*) AS n FROM ({reading.source.all_rows()})"
                asked = f"{every} WHERE run_id = '{run_id}'" if run_id else every
                assert reading.rows(asked) == [{"n": found.total}]
    identities = [row[0] for row in reports.ask(find_account("conservation")).rows]
    assert identities.count("evaluation_slots") == 1


def test_an_attempt_of_two_runs_is_in_the_accounts_of_each_by_its_own_facts(owner: Book) -> None:
    """Beside engines of their own: at one of them a request waits behind the attempt's turn."""
    facts = list[Fact]()
    for n, (run_id, engine) in enumerate(((A, "e1"), (B, "e2"))):
        cap = {"engine_context_cap_tokens": 200, "occurred_at": at(-3_600)}
        facts.append(a_fact("resources_declared", seed=95 + n, run_id=run_id, **cap))
        facts.append(a_turn(97 + n, run_id, ATTEMPT, engine, ended_s=115, client_s=30.0))
    facts.append(a_turn(99, B, an_id("behind"), "e2", ended_s=110, client_s=10.0, queue_s=1.0))
    for mine in (A, B):
        add(owner, [fact for fact in facts if fact.run_id == mine])
        keep(owner, only=SHARED, one_by_one=True)
    for view in SHARED:
        assert standing(owner.connection, KEPT[view]).others == set()
        assert_as_plain(owner.connection, view, [None, UUID(A), UUID(B)])
    runaways = Reports(owner.connection).ask(find_account("runaway-contexts"))
    behind = [runaways.columns.index(name) for name in ("run_id", "queued_behind")]
    assert {tuple(row[place] for place in behind) for row in runaways.rows} == {
        (UUID(A), 0),
        (UUID(B), 1),
    }


def a_turn(seed: int, run_id: str, trajectory_id: str, engine: str, **times: float) -> Fact:
    ids: dict[str, Any] = {"trajectory_id": trajectory_id, "group_id": an_id("of", seed), "slot": 3}
    told = {"occurred_at": at(times.pop("ended_s")), "queue_s": 0.0} | times
    tokens = {"prompt_tokens": 500 if seed < 99 else 1, "completion_tokens": 100}
    return a_fact(
        "turn_completed",
        seed=seed,
        run_id=run_id,
        engine=engine,
        turn_no=0,
        **ids,
        **told,
        **tokens,
    )
