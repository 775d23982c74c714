"""The first views: rows written out for a small run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumers.audit import audit
from ledger.book import connect
from ledger.book_sql import VIEWS, sql_file
from ledger.facts import Excerpt, PhaseSpan, VersionSpan
from ledger.facts.lists import (
    EngineStage,
    LossReason,
    Outcome,
    PauseMode,
    Phase,
    RunKind,
    Stage,
    StopReason,
    WeightMethod,
)
from ledger.open_log import open_log
from tests.books import append, numbered, projected, rows
from tests.builders import a_fact, an_id

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
G, T, U = an_id("group"), an_id("trajectory"), an_id("trajectory", 2)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def fact(kind_of_fact: str, seconds: float, /, **fields: Any) -> Any:
    return a_fact(kind_of_fact, only_required=True, occurred_at=at(seconds), **fields)


def one(kind_of_fact: str, seconds: float, /, **fields: Any) -> Any:
    return fact(kind_of_fact, seconds, trajectory_id=T, slot=0, **fields)


def two(kind_of_fact: str, seconds: float, /, **fields: Any) -> Any:
    return fact(kind_of_fact, seconds, trajectory_id=U, slot=1, **fields)


SMALL_RUN = [
    fact("run_declared", 0, kind=RunKind.TRAIN, name="lab", pass_threshold=0.5, dataset="micro"),
    fact("task_declared", 0, task_id="fix-1", stratum="easy", stratum_weight=0.5),
    fact("task_validated", 0, task_id="fix-1", valid=False, gold_passes=False, empty_fails=True),
    fact("task_validated", 0, task_id="fix-1", valid=True, gold_passes=True, empty_fails=True),
    fact("resources_declared", 0, engine_nodes=1, sandbox_slots=8),
    fact("group_opened", 1, task_id="fix-1", expected_size=2, policy_version=3),
    one("trajectory_started", 2, task_id="fix-1", queue_s=0.5),
    one("sandbox_failed", 3, try_no=0, stage=Stage.SANDBOX_START, error_type="RateLimit"),
    one("sandbox_started", 5, try_no=1, sandbox_id="sb-1", backend="e2b", start_s=1.9),
    one("sandbox_prepared", 6, try_no=1, sandbox_id="sb-1", setup_s=0.8),
    one("turn_completed", 8, turn_no=0, prompt_tokens=100, cached_tokens=0, completion_tokens=10,
        client_s=1.5, version_spans=[VersionSpan(3, 0, 4), VersionSpan(4, 4, 10)]),
    one("tool_call_completed", 9, turn_no=0, tool_call_no=0, name="bash", wall_s=0.75,
        sandbox_s=0.5, exit_code=1, arguments=Excerpt.of("make test"), output=Excerpt.of("no")),
    one("turn_failed", 10, turn_no=1, stage=EngineStage.QUEUE, error_type="Timeout", seconds=2.0),
    one("turn_completed", 12, turn_no=1, prompt_tokens=160, cached_tokens=110,
        completion_tokens=20, client_s=2.0),
    one("trajectory_finished", 14, stop_reason=StopReason.SUBMITTED, reward_due=True,
        turns_completed=2, turns_failed=1, tool_calls=1),
    one("reward_assigned", 15, value=0.25, verifier="pytest", verifier_version="1"),
    one("reward_assigned", 90, value=1.0, verifier="pytest", verifier_version="2"),
    one("trajectory_judged", 16, rule_set=1, outcome=Outcome.COMPLETED, trainable=True),
    one("sandbox_stopped", 17, try_no=1, sandbox_id="sb-1", reason="finished", lifetime_s=12.0),
    two("trajectory_started", 4, task_id="fix-1", queue_s=0.0),
    fact("step_completed", 40, step=1, batch_id=an_id("batch"), from_version=4, to_version=5,
         started_at=at(10), wall_s=30.0, phases=[
             PhaseSpan(Phase.WAITING, 0, 12.0),
             PhaseSpan(Phase.FORWARD_BACKWARD, 12, 9.5),
             PhaseSpan(Phase.WAITING, 21.5, 1.0),
             PhaseSpan(Phase.OPTIMIZER, 22.5, 0.5),
         ]),
    fact("step_completed", 41, step=2, batch_id=an_id("batch", 2), started_at=at(40), wall_s=1.0),
    fact("weights_published", 42, policy_version=5, method=WeightMethod.DISK, step=1,
         size_bytes=330_000, publish_s=0.25),
    fact("weights_published", 43, policy_version=6, step=2),
    fact("weights_orphaned", 44, policy_version=6),
    fact("weights_applied", 43, policy_version=5, engine="engine-0", success=True,
         pause_mode=PauseMode.RETRACT, paused_s=0.1),
    fact("weights_applied", 43, policy_version=5, engine="engine-1", success=False,
         error_type="ConnectError"),
    fact("producer_alive", 50, accepted=20, last_seq=24, interval_s=10.0),
    fact("producer_lost", 51, count=3, reason=LossReason.QUEUE_FULL),
]  # fmt: skip

Ask = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    folder = tmp_path_factory.mktemp("views")
    url = f"sqlite:///{folder / 'log.db'}"
    facts = [replace(each, event_id=an_id("fact", i)) for i, each in enumerate(SMALL_RUN)]
    with open_log(url) as log:
        append(log, numbered(facts))
    assert projected(url, folder / "book").facts == len(SMALL_RUN)
    return lambda query: rows(folder / "book", query)


def test_every_view_file_is_in_the_book_and_says_what_one_row_is() -> None:
    files = Path(__file__).parents[1].joinpath("ledger", "views").glob("*.sql")
    assert sorted(file.stem for file in files) == sorted(VIEWS)
    for view in VIEWS:
        assert sql_file(f"views/{view}.sql").startswith("-- One row per ")
        assert f"CREATE OR REPLACE VIEW {view} AS" in sql_file(f"views/{view}.sql")


def test_runs(ask: Ask) -> None:
    assert ask(
        "SELECT name, kind, dataset, groups, slots, trajectories_started, trajectories_finished,"
        " steps, policy_version, resource_declarations FROM runs"
    ) == [("lab", "train", "micro", 1, 2, 2, 1, 2, 5, 1)]


def test_tasks_have_their_newest_validation(ask: Ask) -> None:
    assert ask("SELECT task_id, stratum, valid, gold_passes, groups, slots FROM tasks") == [
        ("fix-1", "easy", True, True, 1, 2)
    ]


def test_trajectories_have_the_newest_reward_and_pass_by_the_run_s_threshold(ask: Ask) -> None:
    assert ask(
        "SELECT slot, state, stop_reason, reward, passed, verifier_version, outcome, trainable,"
        " wall_s, queue_s, turns, turns_failed, tool_calls, turns_declared, prompt_tokens,"
        " cached_tokens, completion_tokens, longest_context_tokens, model_s, tool_s"
        " FROM trajectories ORDER BY slot"
    ) == [
        (0, "finished", "submitted", 1.0, True, "2", "completed", True, 12.0, 0.5, 2, 1, 1, 2,
         260, 110, 30, 180, 3.5, 0.75),
        (1, "in_flight", None, None, None, None, None, None, None, 0.0, 0, 0, 0, None, None, None,
         None, None, None, None),
    ]  # fmt: skip


def test_turns_that_failed_stand_beside_those_that_did_not(ask: Ask) -> None:
    assert ask(
        "SELECT turn_no, state, prefilled_tokens, oldest_version, newest_version, client_s,"
        " failed_stage, error_type FROM turns ORDER BY ended_at"
    ) == [
        (0, "completed", 100, 3, 4, 1.5, None, None),
        (1, "failed", None, None, None, 2.0, "queue", "Timeout"),
        (1, "completed", 50, None, None, 2.0, None, None),
    ]


def test_tool_calls_tell_the_tunnel_apart(ask: Ask) -> None:
    assert ask(
        "SELECT name, arguments, wall_s, sandbox_s, tunnel_s, exit_code, output_size"
        " FROM tool_calls"
    ) == [("bash", "make test", 0.75, 0.5, 0.25, 1, 2)]


def test_sandboxes_have_a_row_per_try(ask: Ask) -> None:
    assert ask(
        "SELECT try_no, state, sandbox_id, start_s, setup_s, failed_stage, error_type, stop_reason,"
        " lifetime_s FROM sandboxes ORDER BY try_no"
    ) == [
        (0, "failed", None, None, None, "sandbox_start", "RateLimit", None, None),
        (1, "stopped", "sb-1", 1.9, 0.8, None, None, "finished", 12.0),
    ]


def test_steps_show_what_no_phase_accounts_for(ask: Ask) -> None:
    assert ask(
        "SELECT step, wall_s, waiting_s, forward_backward_s, optimizer_s, publishing_s,"
        " unattributed_s FROM steps ORDER BY step"
    ) == [(1, 30.0, 13.0, 9.5, 0.5, 0.0, 7.0), (2, 1.0, None, None, None, None, 1.0)]


def test_weight_updates_have_a_row_per_engine_and_one_where_none_took_it(ask: Ask) -> None:
    assert ask(
        "SELECT policy_version, engine, success, pause_mode, publish_s, orphaned, error_type"
        " FROM weight_updates ORDER BY policy_version, engine"
    ) == [
        (5, "engine-0", True, "retract", 0.25, False, None),
        (5, "engine-1", False, None, 0.25, False, "ConnectError"),
        (6, None, None, None, None, True, None),
    ]


def test_producers_say_until_when_something_may_be_unseen(ask: Ask) -> None:
    assert ask("SELECT state, accepted, last_seq, lost, unseen_until FROM producers") == [
        ("open", 20, 24, 3, at(60))
    ]


def test_facts_has_every_envelope(ask: Ask) -> None:
    assert ask("SELECT count(*), count(DISTINCT event_id), max(producer_seq) FROM facts") == [
        (len(SMALL_RUN), len(SMALL_RUN), len(SMALL_RUN) - 1)
    ]


def test_losses_are_problems_of_the_book(ask: Ask) -> None:
    assert ask("FROM book_problems") == [("lost: queue_full", 3)]


@pytest.mark.parametrize(
    ("value", "passed"), [(0.5, True), (math.nan, None), (math.inf, None), (1e101, None)]
)
def test_what_is_no_reward_passes_nothing(
    value: float, passed: bool | None, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    facts = [
        fact("run_declared", 0, kind=RunKind.TRAIN, name="lab", pass_threshold=0.5),
        one("trajectory_started", 2, task_id="t"),
        one("reward_assigned", 5, value=value, verifier="pytest"),
    ]
    with open_log(url) as log:
        append(log, numbered([replace(x, event_id=an_id("f", i)) for i, x in enumerate(facts)]))
    projected(url, tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT passed FROM trajectories") == [(passed,)]


def test_numbers_at_the_edge_of_their_type_break_no_view(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    edge = 2**63 - 1
    facts = [
        fact("run_declared", 0, kind=RunKind.TRAIN, name="lab", pass_threshold=0.5),
        fact("group_opened", 1, task_id="t", expected_size=edge),
        one("trajectory_started", 2, task_id="t"),
        one("turn_completed", 3, turn_no=0, prompt_tokens=edge, completion_tokens=edge,
            cached_tokens=-edge),
        one("turn_completed", 4, turn_no=1, prompt_tokens=edge, completion_tokens=7),
        one("reward_assigned", 5, value=float("nan"), verifier="pytest"),
        fact("producer_lost", 6, count=edge, reason=LossReason.QUEUE_FULL),
        fact("producer_lost", 7, count=edge, reason=LossReason.QUEUE_FULL),
        fact("producer_alive", 8, accepted=edge, last_seq=edge, interval_s=float("inf")),
        fact("facts_erased", 9, erased_incarnation=an_id("i"), first_seq=1, last_seq=edge),
    ]  # fmt: skip
    with open_log(url) as log:
        append(log, numbered([replace(x, event_id=an_id("f", i)) for i, x in enumerate(facts)]))
    assert projected(url, tmp_path / "book").facts == len(facts)
    with connect(tmp_path / "book", read_only=True) as book:
        for view in VIEWS:
            book.execute(f"FROM {view}").fetchall()
    assert rows(tmp_path / "book", "SELECT passed FROM trajectories") == [(None,)]
    with connect(tmp_path / "book", read_only=True) as book:
        assert {each.check for each in audit(book)} == {"lost", "sequence_holes", "conservation"}
    # No more slots than a machine can list, and what is left out is told.
    assert rows(
        tmp_path / "book",
        "SELECT DISTINCT identity, expected, found FROM conservation WHERE identity = 'slots'",
    ) == [("slots", str(edge), "10000")]
