"""The simulator: raw facts of a run, the same for the same seed, and accounts that read what the
plans say, within the sampling error of a seed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from consumers.decode import decode_batches
from consumers.judge import judge_log
from ledger.attempt import NOTHING, Attempt
from ledger.avro import decode
from ledger.facts import Fact, TrajectoryFact
from ledger.facts.lists import RunKind
from ledger.judgement import load_rules
from ledger.log import Record
from ledger.open_log import open_log
from producers.simulator.copies import as_batch, copied
from producers.simulator.plan import BadPlan, LogNormal, RunPlan
from producers.simulator.published import (
    EVALUATIONS,
    NODES,
    RUNAWAY,
    STEPS_AFTER,
    STEPS_BEFORE,
    scenario,
)
from producers.simulator.run import SimulatedRun
from producers.simulator.write import Written, records_of, write
from tests.books import projected, rows
from tests.recorded import each_once, values_in

SEEDS = (1, 2)
STEPS = 12
LOG_TIME_US = 1_767_225_600_000_000


def few_turns(plan: RunPlan, turn_s: float) -> RunPlan:
    """The same lengths in fewer turns: cheaper to project."""
    return replace(plan, attempt=replace(plan.attempt, turn_s=turn_s))


def steps(plan: RunPlan, number: int) -> RunPlan:
    assert plan.training is not None
    short = replace(few_turns(plan, 100.0), tasks=50)
    return replace(short, training=replace(plan.training, steps=number))


def with_waiters(plan: RunPlan, number: int) -> RunPlan:
    """So many attempts more than there are sandbox slots."""
    spans = tuple(
        replace(
            span,
            resources=replace(
                span.resources, trajectory_concurrency=span.resources.sandbox_slots + number
            ),
        )
        for span in plan.spans
    )
    return replace(plan, spans=spans, tasks=50)


SMALL = replace(steps(STEPS_AFTER.scaled(0.125), 2), tasks=3)
NODES_SMALL = with_waiters(few_turns(NODES.scaled(1 / 16), 120.0), 16)
RUNAWAY_SMALL = replace(few_turns(RUNAWAY.scaled(1 / 8), 60.0), tasks=50)


def all_facts(run: SimulatedRun) -> list[Any]:
    return each_once([record.value for chunk in records_of(run) for record in chunk])


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of each kind of run, judged and projected."""
    folder = tmp_path_factory.mktemp("simulated")
    url = f"sqlite:///{folder / 'log.db'}"
    plans = [
        steps(STEPS_AFTER, STEPS),
        steps(STEPS_BEFORE, 2),
        NODES_SMALL,
        *(few_turns(plan, 1_000.0) for plan in EVALUATIONS),
    ]
    with open_log(url) as log:
        for seed in SEEDS:
            for plan in plans:
                write(log, SimulatedRun(plan, seed))
        write(log, SimulatedRun(RUNAWAY_SMALL, 1))
        judge_log(log, load_rules(1))
    projected(url, folder / "book")
    return folder / "book"


def test_the_same_seed_writes_nothing_twice_and_finishes_what_was_cut_off(tmp_path: Path) -> None:
    run = SimulatedRun(SMALL, 7)
    whole = [record for chunk in records_of(run) for record in chunk]
    with open_log(f"sqlite:///{tmp_path / 'log.db'}") as log:
        log.append("events", whole[:60] + whole[80:110])  # as a kill between partitions leaves it
        assert write(log, run) == Written(len(whole), len(whole) - 90)
        assert write(log, run) == Written(len(whole), 0)
        assert sorted(values_in(log, "events")) == sorted(record.value for record in whole)
        other = write(log, SimulatedRun(SMALL, 8))
        assert other.new == other.facts
        assert len({fact.event_id for fact in each_once(values_in(log, "events"))}) == (
            len(whole) + other.facts
        )


def test_it_says_raw_facts_only_and_marks_them_as_simulated() -> None:
    facts = [*all_facts(SimulatedRun(SMALL, 1)), *all_facts(SimulatedRun(RUNAWAY.scaled(0.1), 1))]
    told = {type(fact).__name__ for fact in facts}
    assert told & {"TrajectoryJudged", "GroupDecided", "BatchAssembled", "BatchRefused"} == set()
    assert {"TurnCompleted", "TurnFailed", "SandboxFailed", "StepCompleted", "PoolSampled"} <= told
    assert all(fact.source_ref.startswith("simulated: ") for fact in facts)
    assert {fact.time_quality for fact in facts} == {"derived"}
    assert {fact.batch_id for fact in facts if type(fact).__name__ == "StepCompleted"} == {None}


@pytest.mark.parametrize("plan", [SMALL, NODES_SMALL, few_turns(EVALUATIONS[0], 1_000.0)])
def test_attempts_are_complete_and_never_more_than_their_room(plan: RunPlan) -> None:
    facts = all_facts(SimulatedRun(plan, 3))
    attempts: defaultdict[str, Attempt] = defaultdict(lambda: NOTHING)
    changes: list[tuple[Any, int]] = []
    for fact in facts:
        if isinstance(fact, TrajectoryFact):
            attempts[fact.trajectory_id] = attempts[fact.trajectory_id].with_fact(fact)
        if type(fact).__name__ == "SandboxStarted":
            changes.append((fact.occurred_at, 1))
        elif type(fact).__name__ == "SandboxStopped":
            changes.append((fact.occurred_at, -1))
    assert {attempt.missing for attempt in attempts.values()} == {()}
    up = most = 0
    for _, change in sorted(changes):
        up += change
        most = max(most, up)
    slots = plan.spans[-1].resources.sandbox_slots
    assert slots / 2 < most <= slots
    assert [fact.producer_seq for fact in facts] == list(range(len(facts)))


def test_facts_come_in_the_order_of_their_times() -> None:
    facts = all_facts(SimulatedRun(SMALL, 1))
    told = [
        fact.occurred_at
        for fact in facts
        if type(fact).__name__ not in ("EngineSampled", "PoolSampled", "ProducerClosed")
    ]
    assert told == sorted(told)


def test_steps_take_284_seconds_and_a_third_of_that_is_tail(book: Path) -> None:
    for seed in SEEDS:
        run_id = SimulatedRun(steps(STEPS_AFTER, STEPS), seed).run_id
        ((wall, unattributed, count),) = rows(
            book,
            "SELECT avg(wall_s), max(unattributed_s), count(*) FROM steps"
            f" WHERE run_id = '{run_id}'",
        )
        # One step varies by 35 s from seed to seed, so 12 of them by 10.
        assert count == STEPS
        assert 284 - 30 < wall < 284 + 30
        assert 0 < unattributed < 5
        ((tail,),) = rows(
            book, f"SELECT tail_share_of_sums FROM rollout_tail_totals WHERE run_id = '{run_id}'"
        )
        # One step varies by 0.19, so 12 of them by 0.055.
        assert 0.32 - 0.165 < tail < 0.32 + 0.165


def test_few_slots_and_a_slow_setup_make_the_same_work_three_times_as_long(book: Path) -> None:
    for seed in SEEDS:
        found = {
            plan.name: rows(
                book,
                "SELECT avg(wall_s), avg(trained_tokens) FROM steps"
                f" WHERE run_id = '{SimulatedRun(plan, seed).run_id}'",
            )[0]
            for plan in (steps(STEPS_BEFORE, 2), steps(STEPS_AFTER, STEPS))
        }
        before, after = found["steps-before"], found["steps-after"]
        assert 850 - 80 < before[0] < 850 + 80
        assert 2.99 - 0.35 < before[0] / after[0] < 2.99 + 0.35
        assert abs(before[1] / after[1] - 1) < 0.2


def test_three_nodes_complete_four_times_as_much_at_a_third_more_per_node(book: Path) -> None:
    for seed in SEEDS:
        run_id = SimulatedRun(NODES_SMALL, seed).run_id
        one, three = rows(
            book,
            "SELECT engine_nodes, 16 * completed_per_hour"
            f" FROM throughput WHERE run_id = '{run_id}' ORDER BY span",
        )
        assert (one[0], three[0]) == (1, 3)
        # 215 and 435 attempts, whose lengths vary by half their mean: 3.4% and 2.4%.
        assert 860 * 0.88 < one[1] < 860 * 1.12
        assert 3_480 * 0.92 < three[1] < 3_480 * 1.08
        assert 1.35 - 0.2 < three[1] / one[1] / 3 < 1.35 + 0.2


def test_slots_are_what_binds_at_23_percent_of_the_cache(book: Path) -> None:
    for seed in SEEDS:
        run_id = SimulatedRun(NODES_SMALL, seed).run_id
        minutes = rows(
            book,
            "SELECT kind, used_share, binding, waiting_max FROM capacity"
            f" WHERE run_id = '{run_id}' AND minute BETWEEN '2026-01-01 04:10:00+00'"
            " AND '2026-01-01 05:58:00+00' AND (kind = 'engine' OR resource = 'sandbox_slots')",
        )
        assert {binding for _, _, binding, _ in minutes} == {"sandbox_slots"}
        pools = [(share, waiting) for kind, share, _, waiting in minutes if kind != "engine"]
        assert set(pools) == {(1.0, 16)}
        shares = [share for kind, share, _, _ in minutes if kind == "engine"]
        assert len(shares) > 300
        assert 0 < sum(shares) / len(shares) < 0.85


def test_runaway_contexts_pass_the_cap(book: Path) -> None:
    longest = rows(
        book,
        "SELECT max(context_tokens), any_value(limit_tokens) FROM runaway_contexts"
        " GROUP BY trajectory_id",
    )
    assert {limit for _, limit in longest} == {65_536}
    runaway = [tokens for tokens, _ in longest if tokens > 100_000]
    assert len(runaway) >= 3
    assert all(105_000 < tokens < 195_000 for tokens in runaway)


def test_pass_at_1_is_what_was_published(book: Path) -> None:
    published = {"base": 29 / 400, "sft": 51 / 400, "rl": 110 / 400}
    for seed in SEEDS:
        runs = [SimulatedRun(few_turns(plan, 1_000.0), seed).run_id for plan in EVALUATIONS]
        found = dict(
            rows(
                book,
                "SELECT name, pass_at_1_pooled FROM pass_at_1"
                f" WHERE run_id IN ({', '.join(repr(run_id) for run_id in runs)})",
            )
        )
        assert found.keys() == published.keys()
        for name, rate in published.items():
            error = math.sqrt(rate * (1 - rate) / 400)
            assert abs(found[name] - rate) < 4 * error


def test_the_books_balance(book: Path) -> None:
    assert rows(book, "FROM conservation") == []
    assert rows(book, "FROM book_problems") == []


def test_copies_are_runs_of_their_own() -> None:
    run = SimulatedRun(SMALL, 1, for_copies=True)
    block = [record for chunk in records_of(run) for record in chunk]
    groups: list[set[str]] = []
    events: list[set[str]] = []
    for number in (0, 1, 255):
        facts: list[Fact] = [decode(value) for _, value in copied(block, number)]  # type: ignore[misc]
        attempts: defaultdict[str, Attempt] = defaultdict(lambda: NOTHING)
        for fact in facts:
            if isinstance(fact, TrajectoryFact):
                attempts[fact.trajectory_id] = attempts[fact.trajectory_id].with_fact(fact)
        assert {attempt.missing for attempt in attempts.values()} == {()}
        assert len({fact.incarnation for fact in facts}) == 1
        groups.append({attempt.group_id for attempt in attempts.values()})
        events.append({fact.event_id for fact in facts})
        assert len(events[-1]) == len(block)
        assert {event[14] for event in events[-1]} == {"7"}
        keys = Counter(record.key for record in copied(block, number))
        assert groups[-1] < keys.keys()
    for ids in (groups, events):
        assert len(set.union(*ids)) == sum(map(len, ids))


def test_a_copy_decodes_column_by_column() -> None:
    run = SimulatedRun(SMALL, 1, for_copies=True)
    block: list[Record] = [record for chunk in records_of(run) for record in chunk]
    decoded = decode_batches([as_batch(copied(block, 3), 100, LOG_TIME_US)])
    assert decoded.rejects == []
    assert sum(facts.table.num_rows for facts in decoded.facts) == len(block)
    with pytest.raises(ValueError, match="must be from 0"):
        copied(block, -1)


def test_a_plan_that_never_ends_is_refused() -> None:
    endless = tuple(replace(span, seconds=None) for span in NODES.spans)
    with pytest.raises(BadPlan, match="needs its seconds"):
        replace(NODES, spans=endless)
    with pytest.raises(BadPlan, match=r"pass_rate must be between 0 and 1, got 1.5"):
        replace(NODES, pass_rate=1.5)
    with pytest.raises(BadPlan, match=r"can only grow, got \[384, 95\]"):
        replace(NODES, spans=tuple(reversed(NODES.spans)))
    with pytest.raises(BadPlan, match=r"one of steps-before, .* got 'nothing'"):
        scenario("nothing")


def test_scale_changes_what_runs_side_by_side_and_no_seconds() -> None:
    small = NODES.scaled(0.25)
    assert [span.resources.sandbox_slots for span in small.spans] == [24, 96]
    assert [span.seconds for span in small.spans] == [span.seconds for span in NODES.spans]
    assert small.attempt == NODES.attempt
    assert EVALUATIONS[0].scaled(0.25) == EVALUATIONS[0]
    assert EVALUATIONS[0].kind is RunKind.EVAL


def test_a_lognormal_has_its_median_and_its_cut() -> None:
    chance = Random(1)
    draws = [LogNormal(10.0, 1.0, most=40.0).draw(chance) for _ in range(4_000)]
    assert sum(draw < 10.0 for draw in draws) == pytest.approx(2_000, abs=130)
    assert max(draws) == 40.0
    assert sum(draw == 40.0 for draw in draws) == pytest.approx(332, abs=60)  # above 1.386 sigma


def test_the_command_names_its_runs_and_refuses_an_unknown_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    command = ["simulate", "runaway-contexts", "--scale", "0.02", "--log", url, "--format", "csv"]
    first, second = (CliRunner().invoke(app, command) for _ in range(2))
    assert first.exit_code == 0
    name, kind, run_id, facts, new = first.stdout.splitlines()[1].split(",")
    assert (name, kind) == ("runaway-contexts", "train")
    assert facts == new != "0"
    assert second.stdout.splitlines()[1] == f"{name},{kind},{run_id},{facts},0"
    unknown = CliRunner().invoke(app, ["simulate", "nothing", "--log", url])
    assert isinstance(unknown.exception, BadPlan)
