"""How old what was trained on was, what the choice favoured, who was excluded under which version,
and how much data a run consumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ledger.facts import VersionSpan
from ledger.facts.lists import ExclusionReason, GroupDecision
from ledger.open_log import open_log
from tests.books import append, numbered, projected, rows
from tests.builders import an_id
from tests.decided_runs import Slot, TellRun, at

LAG, CHOICE, VERSIONS = an_id("lag"), an_id("choice"), an_id("versions")
SFT, RL, EVALUATION = an_id("sft"), an_id("rl"), an_id("evaluation")
INFRASTRUCTURE = ExclusionReason.INFRASTRUCTURE
Ask = Callable[[str], list[Any]]


def turn(end_s: float, *versions: int, cached: int | None = 0, engine: str = "e0") -> Any:
    """A request of a second; its answer has a token of each version."""
    spans = [VersionSpan(version, n, n + 1) for n, version in enumerate(versions)]
    return {
        "end_s": end_s,
        "client_s": 1.0,
        "cached_tokens": cached,
        "engine": engine,
        "completion_tokens": len(versions),
        "version_spans": spans,
    }


def a_run_that_lags() -> list[Any]:
    run = TellRun(LAG, seed=1)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    applied = {"engine": "e0", "success": True}
    run.say("weights_applied", **applied, policy_version=2, cache_flushed=True, occurred_at=at(0))
    run.say("weights_applied", **applied, policy_version=4, cache_flushed=False, occurred_at=at(5))
    run.say("weights_applied", **applied, policy_version=5, cache_flushed=True, occurred_at=at(20))
    slots = [
        # Its second prompt was cached since version 2; the third request comes after a flush.
        Slot(1.0, turns=[turn(3, 3, 4), turn(8, 4, cached=7), turn(25, 5, 5, cached=9)]),
        # After the flush only.
        Slot(0.0, turns=[turn(22, 5, cached=7), turn(30, 6, cached=9)]),
        # Of an engine that was never flushed, which the run saw at version 4 first.
        Slot(0.0, turns=[turn(4, 4, engine="e1"), turn(31, 5, cached=5, engine="e1")]),
        # Nobody told what was cached, nor by which version the last turn was sampled.
        Slot(0.0, turns=[turn(4, 4, cached=None), turn(6)]),
        # Nothing was cached.
        Slot(0.0, turns=[turn(40, 6)]),
        Slot(None, INFRASTRUCTURE, turns=[turn(4, 1)]),
    ]
    run.group(0, None, slots)
    run.group(1, None, [Slot(1.0)])
    run.batch(1, [0])
    run.step(1, from_version=7, to_version=8)
    return run.facts


def a_run_that_chooses() -> list[Any]:
    run = TellRun(CHOICE, seed=2)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    short, long = [turn(5, 3)], [turn(5, 3), turn(9, 3, 3, 3, 3)]
    run.group(0, None, [Slot(1.0, turns=short), Slot(0.0, turns=short, end_s=20)])
    run.group(1, "over_sampled", [Slot(0.0, turns=long, end_s=60), Slot(0.0, end_s=60)])
    run.group(2, "stale", [Slot(1.0, turns=long, end_s=30), Slot(0.5, INFRASTRUCTURE)])
    run.group(3, None, [Slot(1.0, turns=short, end_s=30), Slot(1.0, late=True, end_s=90)])
    run.group(4, "zero_variance", [Slot(1.0)])
    run.say("trajectory_started", group_id=an_id("open"), slot=0, trajectory_id=an_id("open"),
            task_id="task")  # fmt: skip
    run.batch(1, [0, 3])
    run.step(1)
    return run.facts


def a_run_that_excludes() -> list[Any]:
    """Version 4 ends more attempts than version 3 for reasons that aren't its own."""
    run = TellRun(VERSIONS, seed=3)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    three, four = [turn(5, 3)], [turn(5, 4)]
    run.group(0, None, [Slot(1.0, turns=three), Slot(0.0, turns=three)], policy_version=3)
    lost = Slot(None, INFRASTRUCTURE, turns=four)
    null = Slot(None, ExclusionReason.REWARD_MISSING, turns=four)
    run.group(1, None, [Slot(1.0, turns=four), lost, null], policy_version=3)
    never = Slot(None, INFRASTRUCTURE)
    run.group(2, None, [Slot(1.0, turns=four), never], policy_version=4)
    return run.facts


def runs_that_consume() -> list[Any]:
    """Fine-tuning on 4,000 traces of another run, then 1,350 tasks; and an evaluation of that."""
    sft, rl, evaluation = TellRun(SFT, seed=4), TellRun(RL, seed=5), TellRun(EVALUATION, seed=6)
    sft.say("run_declared", kind="sft", pass_threshold=0.5, dataset="traces")
    # Written without hyphens, which is the same id.
    known = [UUID(rl.trajectory_id(group, 0)).hex for group in range(2)]
    traces = [*known, *(an_id("trace", n) for n in range(3_998))]
    for step in range(4):
        sft.batch(step + 1, [], trace_ids=traces[1_000 * step : 1_000 * (step + 1)])
        sft.step(step + 1)
    sft.batch(5, [], trace_ids=traces[:1])
    sft.step(5)
    sft.batch(6, [], trace_ids=[an_id("trace", 9_999)])  # not trained on
    rl.say("run_declared", kind="train", pass_threshold=0.5, dataset="tasks", tasks=1_400,
           parent_run_id=SFT, parent_policy_version=5)  # fmt: skip
    for number in range(1_350):
        ids = {"group_id": rl.group_id(number), "slot": 0}
        rl.say("group_opened", group_id=ids["group_id"], task_id=f"task {number}", expected_size=1)
    for number in (0, 1):
        rl.group(2_000 + number, None, [Slot(1.0)], task_id=f"task {number}")
    rl.group(3_000, "stale", [Slot(1.0)], task_id="task 2")
    rl.say("trajectory_started", **ids_of(rl, 0), task_id="task 0")
    rl.say("trajectory_started", **ids_of(rl, 1), task_id="task 0")
    rl.batch(1, [2_000, 2_001])
    rl.step(1)
    evaluation.say("run_declared", kind="eval", pass_threshold=0.5, parent_run_id=RL)
    evaluation.group(0, None, [Slot(1.0)], GroupDecision.EVALUATED)
    return [*sft.facts, *rl.facts, *evaluation.facts]


def ids_of(run: TellRun, group: int) -> dict[str, Any]:
    return {
        "group_id": run.group_id(group),
        "slot": 0,
        "trajectory_id": run.trajectory_id(group, 0),
    }


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    folder = tmp_path_factory.mktemp("provenance")
    facts = [
        *a_run_that_lags(),
        *a_run_that_chooses(),
        *a_run_that_excludes(),
        *runs_that_consume(),
    ]
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        append(log, numbered(facts))
    inserted = projected(url, folder / "book")
    assert (inserted.facts, inserted.quarantined) == (len(facts), 0)
    return lambda query: rows(folder / "book", query)


def test_policy_lag_has_a_row_per_attempt_that_was_trained_on(ask: Ask) -> None:
    assert ask(
        "SELECT slot, step, submitted_version, first_token_version, last_token_version,"
        " oldest_version, oldest_kv_version, consumed_version, turns, turns_unversioned"
        f" FROM policy_lag WHERE run_id = '{LAG}' ORDER BY slot"
    ) == [
        (0, 1, 3, 3, 5, 3, 2, 7, 3, 0),
        (1, 1, 3, 5, 6, 5, 5, 7, 2, 0),
        (2, 1, 3, 4, 5, 4, 4, 7, 2, 0),
        (3, 1, 3, 4, 4, 4, None, 7, 2, 1),
        (4, 1, 3, 6, 6, 6, 6, 7, 1, 0),
    ]


def test_a_lag_is_what_passed_in_flight_and_what_passed_in_the_queue(ask: Ask) -> None:
    assert ask(
        "SELECT slot, lag, lag_in_flight, lag_in_queue, lag_since_submitted, kv_lag"
        f" FROM policy_lag WHERE run_id = '{LAG}' ORDER BY slot"
    ) == [
        (0, 4, 2, 2, 4, 5),
        (1, 2, 1, 1, 4, 2),
        (2, 3, 1, 2, 4, 3),
        (3, 3, 0, 3, 4, None),
        (4, 1, 0, 1, 4, 1),
    ]


def test_selection_sets_what_was_taken_against_what_was_dropped(ask: Ask) -> None:
    of = f"FROM selection WHERE run_id = '{CHOICE}' ORDER BY selection, reason"
    assert ask(
        "SELECT selection, reason, trajectories, round(share * 9, 9), with_tokens, mean_tokens,"
        f" timed, mean_s, scored, passed {of}"
    ) == [
        ("dropped", "infrastructure", 1, 1.0, 0, None, 1, 10.0, 1, 1),
        ("dropped", "late", 1, 1.0, 0, None, 1, 90.0, 1, 1),
        ("dropped", "over_sampled", 2, 2.0, 1, 5.0, 2, 60.0, 2, 0),
        ("dropped", "stale", 1, 1.0, 1, 5.0, 1, 30.0, 1, 1),
        ("dropped", "zero_variance", 1, 1.0, 0, None, 1, 10.0, 1, 1),
        ("taken", "taken", 3, 3.0, 3, 1.0, 3, 20.0, 3, 2),
    ]
    assert ask(
        "SELECT reason, tokens_against_taken, seconds_against_taken, round(pass_rate, 3),"
        f" round(pass_rate_against_taken, 3) {of}"
    ) == [
        ("infrastructure", None, 0.5, 1.0, 0.333),
        ("late", None, 4.5, 1.0, 0.333),
        ("over_sampled", 5.0, 3.0, 0.0, -0.667),
        ("stale", 5.0, 1.5, 1.0, 0.333),
        ("zero_variance", None, 0.5, 1.0, 0.333),
        ("taken", 1.0, 1.0, 0.667, 0.0),
    ]


def test_of_a_run_that_never_said_what_passes_nobody_knows_how_many_did(
    sqlite_url: str, tmp_path: Path
) -> None:
    run = TellRun(CHOICE, seed=9)
    run.group(0, None, [Slot(1.0), Slot(0.0)])
    run.group(1, "stale", [Slot(None, INFRASTRUCTURE)])
    with open_log(sqlite_url) as log:
        append(log, numbered(run.facts))
    projected(sqlite_url, tmp_path / "book")
    assert rows(
        tmp_path / "book",
        "SELECT reason, scored, passed, pass_rate, pass_rate_against_taken FROM selection"
        " ORDER BY reason",
    ) == [("infrastructure", 0, None, None, None), ("taken", 2, None, None, None)]


def test_exclusions_by_the_version_when_submitted_and_by_that_of_the_first_token(ask: Ask) -> None:
    assert ask(
        "SELECT version_when, policy_version, judged, excluded, excluded_share, infrastructure,"
        f" reward_missing, excluded_after_first_token FROM exclusions_by_version"
        f" WHERE run_id = '{VERSIONS}' ORDER BY version_when DESC, policy_version"
    ) == [
        ("submitted", 3, 5, 2, 0.4, 1, 1, 2),
        ("submitted", 4, 2, 1, 0.5, 1, 0, 0),
        ("first_token", 3, 2, 0, 0.0, 0, 0, 0),
        ("first_token", 4, 4, 2, 0.5, 1, 1, 2),
        ("first_token", None, 1, 1, 1.0, 1, 0, 0),
    ]


def test_data_consumed_by_fine_tuning_and_then_by_training(ask: Ask) -> None:
    assert ask(
        "SELECT kind, parent_run_id, parent_kind, tasks_declared, steps, tasks_tried,"
        " groups_opened, tasks_trained, groups_trained, trajectories_trained, traces_trained,"
        " trace_uses, trace_tasks, traces_unknown, trace_run_ids FROM dataset_use"
        f" WHERE run_id IN ('{SFT}', '{RL}', '{EVALUATION}') ORDER BY kind DESC"
    ) == [
        ("train", UUID(SFT), "sft", 1_400, 1, 1_350, 1_353, 2, 2, 2, 0, 0, 0, 0, None),
        ("sft", None, None, None, 5, 0, 0, 0, 0, 0, 4_000, 4_001, 1, 3_998, [UUID(RL)]),
        ("eval", UUID(RL), "train", None, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, None),
    ]
