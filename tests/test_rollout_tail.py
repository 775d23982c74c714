"""The tail of rollouts: what came after 90% of a step's attempts had ended, and who was in it."""

from __future__ import annotations

import pytest

from ledger.facts.lists import StopReason
from tests.account_logs import Ask, Stories, Story, at

STORIES = Stories()
QUANTILES = "trajectories, t50_s, t90_s, t99_s, t_end_s, tail_share"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    return STORIES.book(tmp_path_factory.mktemp("book"))


# A published run: 32% of rollout time came after 90% of the attempts had ended. Step 2 goes faster.
@STORIES.told
def published(story: Story) -> None:
    story.group(1, 10, step=1)
    for slot in range(9):
        story.attempt(1, slot, 0, 7.5556 * (slot + 1))
    story.attempt(1, 9, 0, 100)
    story.group(2, 10, step=2)
    for slot in range(10):
        story.attempt(2, slot, 100, 101 + slot)


def test_a_third_of_a_published_rollout_was_tail(ask: Ask) -> None:
    (row,) = ask(published, "rollout_tail", f"{QUANTILES}, tail_s", "AND step = 1")
    assert row == (10, 37.778, 68.0004, None, 100.0, 0.319996, 31.9996)
    assert round(row[2]) == 68
    assert round(row[5], 2) == 0.32


def test_over_a_run_there_are_two_means(ask: Ask) -> None:
    # Step 2: from 9 to 10 of 10 seconds.
    assert ask(
        published,
        "rollout_tail_totals",
        "rule_set, steps, steps_with_tail, tail_s, rollout_s, tail_share_of_sums, tail_share_mean,"
        " trainable_tail_share_mean",
    ) == [(1, 2, 2, 32.9996, 110.0, 0.299996, 0.209998, 0.209998)]


def a_count(number: int, step: int, story: Story) -> None:
    story.group(step, number, step=step)
    for slot in range(number):
        story.attempt(step, slot, 0, slot + 1)


@STORIES.told
def counts(story: Story) -> None:
    for number in (1, 2, 9, 10, 11, 100, 101):
        a_count(number, number, story)


def test_a_quantile_is_the_end_of_a_whole_attempt_and_never_the_last(ask: Ask) -> None:
    assert ask(counts, "rollout_tail", QUANTILES, "ORDER BY step") == [
        (1, None, None, None, 1.0, None),
        (2, 1.0, None, None, 2.0, None),
        (9, 5.0, None, None, 9.0, None),
        (10, 5.0, 9.0, None, 10.0, 0.1),
        (11, 6.0, 10.0, None, 11.0, round(1 / 11, 6)),
        (100, 50.0, 90.0, 99.0, 100.0, 0.1),
        (101, 51.0, 91.0, 100.0, 101.0, round(10 / 101, 6)),
    ]


# Of ten two are aborted when the other eight have ended, one of them early; of ten others one falls
# silent and is given up at 60; of the last ten one goes on.
@STORIES.told
def censored(story: Story) -> None:
    for step in (1, 2, 3):
        story.group(step, 10, step=step)
        for slot in range(8):
            story.attempt(step, slot, 0, slot + 1)
    story.attempt(1, 8, 0, 3, stop=StopReason.CANCELLED)
    story.attempt(1, 9, 0, 20, stop=StopReason.CANCELLED)
    story.attempt(2, 8, 0, 9)
    story.attempt(2, 9, 0, None)
    story.decide(2, 60, 10, excluded=[9])
    story.attempt(3, 8, 0, 9)
    story.attempt(3, 9, 0, None)


def test_aborted_attempts_have_not_ended(ask: Ask) -> None:
    # Aborted, they take their places behind all that ended: nobody knows when the 9th would have.
    columns = "ended, censored, in_flight, t50_s, t90_s, t_end_s, tail_share"
    assert ask(censored, "rollout_tail", columns, "ORDER BY step") == [
        (8, 2, 0, 5.0, None, 20.0, None),
        (9, 1, 0, 5.0, 9.0, 60.0, 0.85),
        (9, 0, 1, 5.0, 9.0, None, None),
    ]


def test_stragglers_say_how_they_ended(ask: Ask) -> None:
    assert ask(censored, "stragglers", "step, slot, state, alive_s", "ORDER BY step, slot") == [
        (2, 9, "abandoned", 60.0),
    ]


def test_a_tail_of_what_is_excluded_is_a_failed_tail(ask: Ask) -> None:
    assert ask(censored, "rollout_tail", "failed_tail_s", "AND step = 2") == [51.0]


# Twenty of two groups: the 18th ends at 12. Two that don't vote go on until 14 and 20, of which the
# last began at 4.
@STORIES.told
def tails(story: Story) -> None:
    for group, size in ((1, 18), (2, 2)):
        story.group(group, size, step=5)
        story.decide(group, 30, size, excluded=[17] if group == 1 else [1])
    for slot in range(16):
        story.attempt(1, slot, 0, 8)
    story.attempt(1, 16, 0, 10)
    story.attempt(1, 17, 0, 14, trainable=False, blame="infrastructure")
    story.attempt(2, 0, 0, 12)
    story.attempt(2, 1, 4, 20, trainable=False, blame="infrastructure")
    # Other rules find these two trainable, and have judged no other.
    for group, slot in ((1, 17), (2, 1)):
        story.judge(story.ids(group, slot), 40, rule_set=2)


def test_the_tail_is_told_apart_by_who_was_alive(ask: Ask) -> None:
    # N = 20: the 18th ended at 12, then two were alive until 14, and one until 20.
    assert ask(
        tails,
        "rollout_tail",
        "rule_set, t90_s, t_end_s, tail_s, tail_in_flight_mean, failed_tail_s, late_start_s,"
        " last_start_s",
        "ORDER BY rule_set",
    ) == [
        (1, 12.0, 20.0, 8.0, 1.25, 8.0, 4.0, 4.0),
        (2, 12.0, 20.0, 8.0, 1.25, 8.0, 4.0, 4.0),
    ]


def test_trainable_attempts_have_a_tail_of_their_own(ask: Ask) -> None:
    # Of 18: the 17th ended at 10, the last at 12.
    assert ask(
        tails,
        "rollout_tail",
        "rule_set, trainable, trainable_t90_s, trainable_t_end_s, trainable_tail_share",
        "ORDER BY rule_set",
    ) == [(1, 18, 10.0, 12.0, round(2 / 12, 6)), (2, 2, None, 20.0, None)]


def test_members_wait_for_the_last_of_their_group(ask: Ask) -> None:
    # 16 x (14 - 8) + (14 - 10), and 20 - 12.
    assert ask(tails, "rollout_tail", "group_wait_s", "AND rule_set = 1") == [108.0]


# One that votes is alive in the tail beside one that doesn't, and ends first; nobody is alive from
# 14 to 15.
@STORIES.told
def partly_failed(story: Story) -> None:
    story.group(1, 20, step=1)
    for slot in range(18):
        story.attempt(1, slot, 0, 10)
    story.attempt(1, 18, 0, 14, trainable=False)
    story.attempt(1, 19, 15, 21)
    story.group(2, 30, step=2)
    for slot in range(27):
        story.attempt(2, slot, 0, 10)
    story.attempt(2, 27, 0, 12)
    story.attempt(2, 28, 0, 15, trainable=False)
    story.attempt(2, 29, 11, 13)


def test_time_beside_one_that_votes_is_no_failed_tail(ask: Ask) -> None:
    # Nobody decided these groups, so who votes is who is trainable.
    columns = "step, tail_s, failed_tail_s, tail_in_flight_mean"
    assert ask(partly_failed, "rollout_tail", columns, "ORDER BY step") == [
        (1, 11.0, 4.0, round(10 / 11, 6)),
        (2, 5.0, 2.0, 1.8),
    ]


@STORIES.told
def asynchronous(story: Story) -> None:
    story.resources(0, trajectory_concurrency=20)
    story.group(1, 3)
    story.attempt(1, 0, 0, 600)
    story.attempt(1, 1, 0, 900)
    story.attempt(1, 2, 0, 400)
    # Two of twenty are 10%, three are more.
    story.resources(1200, trajectory_concurrency=5)
    story.group(2, 1)
    story.attempt(2, 0, 1000, 5400)


def test_without_a_target_step_there_is_no_tail_but_low_occupancy(ask: Ask) -> None:
    assert ask(asynchronous, "rollout_tail", "step") == []
    assert ask(
        asynchronous,
        "low_occupancy",
        "span, window_started_at, window_s, low_occupancy_s, low_occupancy_share,"
        " trajectory_concurrency, in_flight_mean, in_flight_max",
        "ORDER BY window_started_at, span",
    ) == [
        (1, at(0), 1200.0, 800.0, round(800 / 1200, 6), 20, 1.75, 3),
        (2, at(1200), 2400.0, 0.0, 0.0, 5, 1.0, 1),
        (2, at(3600), 1800.0, 0.0, 0.0, 5, 1.0, 1),
    ]


@STORIES.told
def undeclared(story: Story) -> None:
    story.attempt(1, 0, 0, 10)


def test_low_occupancy_is_unknown_without_a_declared_concurrency(ask: Ask) -> None:
    columns = "window_s, low_occupancy_s, low_occupancy_share, in_flight_mean"
    assert ask(undeclared, "low_occupancy", columns) == [(10.0, None, None, 1.0)]


# Nine end at 5. The tenth waited 2 s to start and, from 0 on, 3 s for a slot; a start failed after
# 4 s and another took 5 s; then set-up, a failed and a good request, and two commands at once.
@STORIES.told
def straggling(story: Story) -> None:
    story.group(1, 10, step=1)
    for slot in range(9):
        story.attempt(1, slot, 0, 5)
    ids = story.attempt(1, 9, 2, 60, queue_s=2.0)
    sandbox = {**ids, "sandbox_id": "s"}
    story.tell("sandbox_failed", 9, **ids, try_no=0, stage="sandbox_start", seconds=4.0)
    story.tell("sandbox_started", 14, **sandbox, try_no=1, queue_s=3.0, start_s=5.0)
    story.tell("sandbox_prepared", 16, **sandbox, try_no=1, setup_s=2.0)
    story.tell("turn_failed", 20, **ids, turn_no=0, stage="decode", seconds=3.0)
    story.tell("turn_completed", 30, **ids, turn_no=0, client_s=8.0)
    story.tell("tool_call_completed", 40, **ids, turn_no=0, tool_call_no=0, wall_s=6.0)
    story.tell("tool_call_completed", 42, **ids, turn_no=0, tool_call_no=1, wall_s=6.0)
    story.tell("reward_assigned", 58, **ids, value=1.0, verifier="tests", verify_s=10.0)


def test_a_straggler_s_seconds_are_unions_and_the_rest_has_no_name(ask: Ask) -> None:
    # Asked for at 0. Slot waits: 6 to 9 by the start at 14, of which a try took 5 to 9.
    assert ask(
        straggling,
        "stragglers",
        "slot, alive_s, late_start_s, queue_s, sandbox_start_s, setup_s, model_s, tool_s, verify_s,"
        " unattributed_s, longest_stage",
    ) == [(9, 58.0, 2.0, 5.0, 9.0, 2.0, 11.0, 8.0, 10.0, 18.0, "model")]


# Ten attempts; one starts at 50 for lack of a slot and takes as long as the others.
@STORIES.told
def late_slot(story: Story) -> None:
    story.group(1, 10, step=1)
    for slot in range(9):
        story.attempt(1, slot, 0, 30)
    story.attempt(1, 9, 50, 70)


def test_a_late_slot_is_told_from_a_slow_attempt(ask: Ask) -> None:
    columns = "slot, late_start_s, alive_s, only_late"
    assert ask(late_slot, "stragglers", columns) == [(9, 50.0, 20.0, True)]
    assert ask(straggling, "stragglers", "only_late") == [False]


# Two attempts on one engine: one decodes from 2 to 10, the other from 6 to 12 and, for another
# step, a third from 11 to 15. On the other engine nothing is known of first tokens.
@STORIES.told
def decoding(story: Story) -> None:
    def turn(second: float, group: int, slot: int, **fields: object) -> None:
        story.tell("turn_completed", second, **story.ids(group, slot), turn_no=0, **fields)

    for group, step in ((1, 1), (2, 2), (3, None)):
        story.group(group, 2, step=step)
        for slot in range(2):
            story.attempt(group, slot, 0, 30)
    turn(10, 1, 0, engine="e0", engine_s=10.0, first_token_s=2.0, client_s=11.0)
    turn(12, 1, 1, engine="e0", engine_s=7.0, first_token_s=1.0, client_s=8.0)
    turn(15, 2, 0, engine="e0", engine_s=5.0, first_token_s=1.0, client_s=6.0)
    turn(20, 2, 1, engine="e1", client_s=4.0)
    turn(25, 3, 0, engine="e1", client_s=2.0)


def test_an_engine_is_held_up_for_a_single_sequence(ask: Ask) -> None:
    assert ask(
        decoding,
        "single_sequence",
        "step, engine, single_sequence_s, turns, turns_without_first_token",
        "ORDER BY engine, step NULLS LAST",
    ) == [
        (1, "e0", 5.0, 2, 0),  # 2 to 6 and 10 to 11
        (2, "e0", 3.0, 1, 0),  # 12 to 15
        (2, "e1", 4.0, 1, 1),
        (None, "e1", 2.0, 1, 1),
    ]
