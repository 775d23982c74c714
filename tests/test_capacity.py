"""Capacity: what is used and waited for by the minute, and contexts that crowd others out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.facts import PhaseSpan, PoolUse
from ledger.facts.lists import Phase, StopReason
from tests.account_logs import Ask, Stories, Story, at
from tests.builders import an_id

STORIES = Stories()


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    return STORIES.book(tmp_path_factory.mktemp("book"))


def engine(story: Story, seconds: float, name: str, **state: Any) -> None:
    """A sample, which belongs to the cluster's own run."""
    story.tell(
        "engine_sampled", seconds, run_id=an_id("cluster"), engine=f"{story.name}/{name}", **state
    )


def turn(story: Story, seconds: float, slot: int = 0, name: str = "e0", **fields: Any) -> None:
    usual: dict[str, Any] = {"turn_no": 0, "engine": f"{story.name}/{name}"}
    story.tell("turn_completed", seconds, **story.ids(1, slot), **(usual | fields))


# Ten requests of 150K tokens fill a cache of 1.5M while 90 wait; a minute later there is room in
# it, and they still wait.
@STORIES.told
def crowded(story: Story) -> None:
    for second in range(0, 120, 10):
        used = 1_500_000 if second < 60 else 300_000
        state = {"kv_used_tokens": used, "kv_capacity_tokens": 1_500_000}
        engine(story, second, "e0", running=10, queued=90, **state)
    story.attempt(1, 0, 0, 119)
    turn(story, 100)


def test_a_full_cache_binds_and_with_room_in_it_the_running_limit(ask: Ask) -> None:
    assert ask(
        crowded,
        "capacity",
        "minute, kind, waits_for, binding, used, capacity, used_share, running, queued, waiter_s,"
        " samples, covered_s",
        "AND kind = 'engine' ORDER BY minute",
    ) == [
        (at(0), "engine", "kv", "kv", 1.5e6, 1.5e6, 1.0, 10.0, 90.0, 5400.0, 6, 60.0),
        (at(60), "engine", "running_limit", "running_limit", 3e5, 1.5e6, 0.2, 10.0, 90.0, 5400.0,
         6, 60.0),
    ]  # fmt: skip


def test_samples_of_an_engine_are_the_cluster_s_too(ask: Ask) -> None:
    cluster = Story("of its own")
    cluster.run_id = an_id("cluster")
    of_engine = "AND engine = 'crowded/e0' ORDER BY minute"
    columns = "minute, kv_share, kv_waiter_s, running_limit_waiter_s"
    said = [(at(0), 1.0, 5400.0, None), (at(60), 0.2, None, 5400.0)]
    assert ask(cluster, "engine_minutes", columns, of_engine) == said
    assert ask(crowded, "engine_minutes", columns, of_engine) == said


# 384 attempts hold all slots, 23% of the KV cache is used, and others wait for a slot.
@STORIES.told
def slotless(story: Story) -> None:
    story.resources(0, trajectory_concurrency=400)
    for second in range(0, 60, 10):
        engine(story, second, "e0", kv_used_tokens=23, kv_capacity_tokens=100, running=9, queued=0)
        pools = [PoolUse("sandbox_slots", 384, 384, 16), PoolUse("connections", 384, None, 0)]
        story.tell(
            "pool_sampled",
            second,
            pools=pools,
            in_sandbox_start=16,
            in_setup=4,
            in_model=300,
            in_tool=70,
            in_verify=10,
        )
    story.attempt(1, 0, 0, 59)
    turn(story, 30)


def test_full_slots_bind(ask: Ask) -> None:
    assert ask(
        slotless,
        "capacity",
        "kind, split(resource, '/')[-1], used, capacity, used_share, waiter_s, waits_for, binding",
        "ORDER BY kind, resource",
    ) == [
        ("engine", "e0", 23.0, 100.0, 0.23, 0.0, None, "sandbox_slots"),
        ("pool", "connections", 384.0, None, None, 0.0, None, "sandbox_slots"),
        ("pool", "sandbox_slots", 384.0, 384.0, 1.0, 960.0, "sandbox_slots", "sandbox_slots"),
        ("trajectories", "trajectory_concurrency", 400.0, 400.0, 1.0, None, None, "sandbox_slots"),
    ]


def test_attempts_in_flight_are_told_by_stage(ask: Ask) -> None:
    columns = "in_sandbox_start, in_setup, in_model, in_tool, in_verify"
    assert ask(slotless, "capacity", columns, "AND kind = 'trajectories'") == [
        (16.0, 4.0, 300.0, 70.0, 10.0)
    ]


# Nobody waits in the first minute. From 60 on an attempt waits 90 s to start, and a batch is held
# for 100 s from 150 on. One wait for a connection is shorter than either.
@STORIES.told
def held_back(story: Story) -> None:
    for second in range(0, 300, 10):
        pool = PoolUse("connections", 8, 8, 1 if second == 70 else 0)
        story.tell("pool_sampled", second, pools=[pool])
    story.attempt(1, 0, 150, 160, queue_s=90)
    story.batch(1, [1], ready=150, held_s=100)


def test_concurrency_and_back_pressure_bind_too(ask: Ask) -> None:
    columns = "minute, binding, max(waiter_s), count(*)"
    assert ask(held_back, "capacity", columns, "GROUP BY ALL ORDER BY minute") == [
        (at(0), "none", 0.0, 2),
        (at(60), "trajectory_concurrency", 60.0, 2),
        (at(120), "trajectory_concurrency", 30.0, 3),
        (at(180), "back_pressure", 60.0, 3),
        (at(240), "back_pressure", 10.0, 3),
    ]


# Two producers have a pool each; one was restarted within the minute.
@STORIES.told
def shared(story: Story) -> None:
    for life, seconds in ((0, range(0, 60, 10)), (1, range(0, 30, 10)), (2, range(30, 60, 10))):
        for second in seconds:
            story.tell(
                "pool_sampled",
                second,
                incarnation=an_id("agent", life),
                pools=[PoolUse("slots", 4, 8, 1)],
            )


def test_pools_of_several_producers_add_up(ask: Ask) -> None:
    assert ask(shared, "capacity", "used, capacity, waiting_max", "AND kind = 'pool'") == [
        (8.0, 16.0, 1)
    ]


# Contexts of 113K and 186K against a cap of 64K, while others queue behind the second.
@STORIES.told
def runaway(story: Story) -> None:
    story.resources(0, engine_context_cap_tokens=64_000, kv_tokens_per_engine=400_000)
    engine(story, 65, "e0", kv_used_tokens=372_000, kv_capacity_tokens=400_000, running=4, queued=6)
    turn(story, 70, 0, prompt_tokens=112_000, completion_tokens=1_000, client_s=5.0)
    turn(story, 100, 1, prompt_tokens=185_000, completion_tokens=1_000, client_s=50.0)
    turn(story, 71, 2, prompt_tokens=63_000, completion_tokens=1_000, client_s=2.0)
    # Asked at 55 and at 95, and on another engine; one that didn't queue, and one from before.
    turn(story, 90, 3, prompt_tokens=10, completion_tokens=1, client_s=35.0, queue_s=20.0)
    turn(story, 130, 4, prompt_tokens=10, completion_tokens=1, client_s=35.0, queue_s=5.0)
    turn(story, 130, 5, "e1", prompt_tokens=10, completion_tokens=1, client_s=35.0, queue_s=5.0)
    turn(story, 99, 6, prompt_tokens=10, completion_tokens=1, client_s=9.0, queue_s=0.0)
    turn(story, 52, 7, prompt_tokens=10, completion_tokens=1, client_s=9.0, queue_s=8.0)
    failed: dict[str, Any] = {"engine": "runaway/e0", "turn_no": 0, "seconds": 30.0}
    story.tell("turn_failed", 99, **story.ids(1, 8), **failed, stage="queue", error_type="Full")
    story.tell("turn_failed", 99, **story.ids(1, 9), **failed, stage="decode", error_type="Reset")
    for slot in range(10):
        story.attempt(1, slot, 0, 140)


def test_a_runaway_context_is_over_the_cap_and_others_wait_behind_it(ask: Ask) -> None:
    assert ask(
        runaway,
        "runaway_contexts",
        "slot, context_tokens, limit_tokens, limited_by, kv_capacity_share, kv_used_share,"
        " queued_behind, timed_out_behind",
        "ORDER BY slot",
    ) == [
        (0, 113_000.0, 64_000.0, "cap", 0.2825, round(113 / 372, 6), 0, 1),
        (1, 186_000.0, 64_000.0, "cap", 0.465, 0.5, 2, 1),
    ]


# No cap is declared: a context may have four even shares of the cache, 4 x 100,000 / 10.
@STORIES.told
def uncapped(story: Story) -> None:
    engine(story, 5, "e0", kv_used_tokens=90_000, kv_capacity_tokens=100_000, running=8, queued=2)
    for slot, tokens in enumerate((40_000, 40_001)):
        turn(story, 10, slot, prompt_tokens=tokens, completion_tokens=0, client_s=1.0)
        turn(story, 70, slot, turn_no=1, prompt_tokens=tokens, completion_tokens=0, client_s=1.0)
        story.attempt(1, slot, 0, 80)


def test_without_a_cap_a_runaway_has_four_even_shares(ask: Ask) -> None:
    # Of the second minute there is no sample, so nothing is known.
    columns = "slot, turn_no, context_tokens, limit_tokens, limited_by"
    assert ask(uncapped, "runaway_contexts", columns) == [(1, 0, 40_001.0, 40_000.0, "share")]


@STORIES.told
def growing(story: Story) -> None:
    for slot, sizes in enumerate([(1000, 1150, 1400), (1200, 1400), (None, 1100)]):
        for turn_no, prompt in enumerate(sizes):
            turn(story, turn_no, slot, turn_no=turn_no, prompt_tokens=prompt, completion_tokens=50)
    # A context that was edited: 700 tokens begin a segment.
    turn(story, 9, 0, turn_no=3, segment=1, prompt_tokens=700, completion_tokens=10)


def test_contexts_grow_by_the_policy_and_by_tools(ask: Ask) -> None:
    assert ask(
        growing,
        "context_growth",
        "turn_no, trajectories, with_tokens, prompt_tokens_mean, prompt_tokens_max,"
        " policy_tokens_mean, tool_tokens_mean, policy_tokens, tool_tokens, segments_begun",
        "ORDER BY turn_no",
    ) == [
        (0, 3, 2, 1100.0, 1200, 50.0, None, 150, None, 3),
        (1, 3, 3, round(3650 / 3, 6), 1400, 50.0, 125.0, 150, 250.0, 0),
        (2, 1, 1, 1400.0, 1400, 50.0, 200.0, 50, 200.0, 0),
        (3, 1, 1, 700.0, 700, 10.0, None, 10, None, 1),
    ]


@STORIES.told
def stopping(story: Story) -> None:
    stops = [StopReason.SUBMITTED, StopReason.SUBMITTED, StopReason.TURN_CAP, StopReason.ERROR]
    for slot, stop in enumerate(stops):
        story.attempt(1, slot, 0, 10, stop=stop)
    story.attempt(1, 4, 0, None)


def test_stop_reasons_are_shares_of_what_ended(ask: Ask) -> None:
    columns = "stop_reason, trajectories, ended, share"
    assert ask(stopping, "stop_reasons", columns, "ORDER BY stop_reason") == [
        ("error", 1, 4, 0.25),
        ("submitted", 2, 4, 0.5),
        ("turn_cap", 1, 4, 0.25),
    ]


ACCOUNTS = [
    "resource_spans", "downtime", "step_time", "step_time_totals", "throughput", "step_attempts",
    "rollout_quantiles", "rollout_tail", "rollout_tail_totals", "single_sequence", "low_occupancy",
    "stragglers", "engine_minutes", "capacity", "runaway_contexts", "context_growth",
    "stop_reasons",
]  # fmt: skip


# What foreign writers say: the largest numbers, times that are none, and the first and last year.
@STORIES.told
def mistaken(story: Story) -> None:
    most, endless = 2**63 - 1, float("inf")
    ages = (
        {"occurred_at": datetime(1, 1, 1, tzinfo=UTC)},
        {"occurred_at": datetime(9999, 12, 31, tzinfo=UTC)},
    )
    declared = {"engine_nodes": most, "engine_gpus_per_node": most, "trainer_gpus": most}
    story.resources(0, **declared, trajectory_concurrency=most, sandbox_slots=most)
    story.group(1, 12, step=most)
    for slot in range(12):
        ids = story.attempt(1, slot, 0, slot, queue_s=(-endless, endless, 1e300)[slot % 3])
        tokens: dict[str, Any] = {
            "prompt_tokens": most,
            "completion_tokens": most,
            "cached_tokens": -most,
        }
        for turn_no, seconds in enumerate([endless, -endless, float("nan"), 1e300]):
            turn(story, 5, slot, turn_no=turn_no, client_s=seconds, queue_s=seconds, **tokens)
            failed = {"turn_no": turn_no, "stage": "queue", "error_type": "E", "seconds": seconds}
            story.tell("turn_failed", 5, **ids, **failed, engine="mistaken/e0")
            story.tell(
                "tool_call_completed", 5, **ids, turn_no=0, tool_call_no=turn_no, wall_s=seconds
            )
    story.tell("trajectory_started", 0, **story.ids(1, 12), task_id="t", **ages[0])
    story.tell("trajectory_finished", 0, **story.ids(1, 12), stop_reason="error", **ages[1])
    story.tell("trajectory_finished", 0, **story.ids(1, 13), stop_reason="error", occurred_at=None)
    batch = story.batch(1, [1], 5, held_s=0)
    for step, seconds in ((1, endless), (most, float("nan"))):
        phases = [PhaseSpan(Phase.WAITING, seconds, -seconds)]
        told = {"step": step, "batch_id": batch, "wall_s": seconds, "phases": phases}
        story.tell("step_completed", 9, **told, started_at=at(0), trained_tokens=most)
    engine(story, 3, "e0", kv_used_tokens=most, kv_capacity_tokens=0, running=most, queued=most)
    engine(story, 4, "e0", kv_used_tokens=most, kv_capacity_tokens=most, running=0, queued=most)
    pools = [PoolUse("slots", most, most, most), PoolUse("slots", -most, None, -most)]
    story.tell("pool_sampled", 3, pools=pools, in_queue=most, in_model=most, in_tool=most)
    story.tell("pool_sampled", 3, pools=pools, occurred_at=None)


@pytest.mark.parametrize("view", ACCOUNTS)
def test_mistaken_numbers_and_times_break_no_account(ask: Ask, view: str) -> None:
    ask(mistaken, view, "*")
