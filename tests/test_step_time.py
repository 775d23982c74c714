"""Step time: where it went, what of the rollouts was waited for, and why a step was slow."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.facts.lists import Phase, StopReason
from tests.account_logs import Ask, Stories, Story, at
from tests.builders import an_id

STORIES = Stories()
WAITING, TRAINING, PUBLISHING = Phase.WAITING, Phase.FORWARD_BACKWARD, Phase.PUBLISHING


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    return STORIES.book(tmp_path_factory.mktemp("book"))


def a_rollout(story: Story, step: int, *ends: tuple[float, float], held_s: float = 0.0) -> str:
    """A group of attempts from second to second, decided a second after the last of them."""
    story.group(step, len(ends), step=step)
    for slot, (start, end) in enumerate(ends):
        story.attempt(step, slot, start, end)
    ready = max(end for _, end in ends) + 1
    story.decide(step, ready, len(ends))
    return story.batch(step, [step], ready, held_s)


# A published run: 388.5 s a step, of which rollout 152.79, training 95.30, weight update 33.85.
@STORIES.told
def published(story: Story) -> None:
    story.step(1, 0, 388.5, [
        (WAITING, 0, 152.79), (TRAINING, 152.79, 248.09), (PUBLISHING, 248.09, 281.94),
    ])  # fmt: skip


def test_time_without_a_name_is_shown(ask: Ask) -> None:
    assert ask(
        published,
        "step_time",
        "wall_s, waiting_s, forward_backward_s, publishing_s, optimizer_s, unattributed_s",
    ) == [(388.5, 152.79, 95.3, 33.85, 0.0, 106.56)]


@STORIES.told
def untold(story: Story) -> None:
    story.step(1, 0, 10)


def test_phases_nobody_told_of_are_unknown(ask: Ask) -> None:
    assert ask(
        untold,
        "step_time",
        "wall_s, waiting_s, checkpoint_s, unattributed_s, rollout_s, exposed_s, assembly_s,"
        " backpressure_s, releasing_trajectory, why_slow, truncated_share",
    ) == [(10.0, None, None, 10.0, None, None, None, None, None, None, None)]


# It waits from 0 to 30 and from 32 to 40. Attempts run from 5 to 25 and from 8 to 28; the batch is
# ready at 29 and held until 33.
@STORIES.told
def waits(story: Story) -> None:
    batch = a_rollout(story, 1, (5, 25), (8, 28), held_s=4)
    story.step(1, 0, 50, [(WAITING, 0, 30), (WAITING, 32, 40), (TRAINING, 40, 50)], batch_id=batch)


def test_a_wait_is_for_rollouts_or_for_room_or_for_assembly(ask: Ask) -> None:
    assert ask(
        waits,
        "step_time",
        "waiting_s, rollout_s, exposed_s, overlapped_s, backpressure_s, assembly_s, members,"
        " releasing_trajectory, releasing_stop_reason, rollout_started_at, rollout_ended_at",
    ) == [
        (38.0, 23.0, 23.0, 0.0, 5.0 + 1.0 + 1.0, 1.0 + 7.0, 2, waits.trajectory_id(1, 1),
         "submitted", at(5), at(28)),
    ]  # fmt: skip


@STORIES.told
def overlapping(story: Story) -> None:
    first = a_rollout(story, 1, (0, 10))
    second = a_rollout(story, 2, (2, 24))
    third = a_rollout(story, 3, (4, 26))
    story.step(1, 0, 20, [(WAITING, 0, 12), (TRAINING, 12, 20)], batch_id=first)
    story.step(2, 20, 34, [(WAITING, 20, 26), (TRAINING, 26, 34)], batch_id=second)
    story.step(3, 34, 44, [(TRAINING, 34, 44)], batch_id=third)


def test_rollouts_that_ran_during_the_steps_before_overlap(ask: Ask) -> None:
    assert ask(
        overlapping,
        "step_time",
        "step, rollout_s, exposed_s, overlapped_s, assembly_s, backpressure_s",
        "ORDER BY step",
    ) == [
        (1, 10.0, 10.0, 0.0, 2.0, 0.0),
        (2, 22.0, 4.0, 18.0, 2.0, 0.0),
        (3, 22.0, 0.0, 22.0, 0.0, 0.0),
    ]


def test_rollouts_of_several_steps_are_a_union(ask: Ask) -> None:
    # From 0 to 26, which is not 10 + 22 + 22.
    assert ask(
        overlapping,
        "step_time_totals",
        "steps, wall_s, waiting_s, rollout_union_s, exposed_s, overlapped_union_s",
    ) == [(3, 44.0, 18.0, 26.0, 14.0, 12.0)]


@STORIES.told
def late(story: Story) -> None:
    story.group(1, 3, step=1)
    story.attempt(1, 0, 0, 10)
    story.attempt(1, 1, 0, 12, stop=StopReason.CLOCK_CAP)
    story.decide(1, 20, 3, excluded=[2])
    story.attempt(1, 2, 0, 90)
    batch = story.batch(1, [1], 20)
    story.step(1, 0, 30, [(WAITING, 0, 20)], batch_id=batch, trajectories=2, trained_tokens=700)


def test_an_attempt_that_ended_after_the_decision_held_nothing_up(ask: Ask) -> None:
    assert ask(late, "step_time", "rollout_s, releasing_trajectory, exposed_s, assembly_s") == [
        (12.0, late.trajectory_id(1, 1), 12.0, 8.0)
    ]


def test_work_stands_beside_the_time(ask: Ask) -> None:
    assert ask(
        late,
        "step_time",
        "trajectories, trained_tokens, members, members_truncated, truncated_share",
    ) == [(2, 700, 2, 1, 0.5)]


# The first 13 waits are long: most of the 24 before step 25, but not of the last 20.
@STORIES.told
def slow(story: Story) -> None:
    for step in range(1, 26):
        start, waited = 1000.0 * step, 500.0 if step < 14 else 10.0
        phases = [(WAITING, start, start + waited), (TRAINING, start + 600, start + 605)]
        if step == 25:
            phases = [(WAITING, start, start + 40), (TRAINING, start + 600, start + 606)]
        story.group(step, 1, step=step)
        lost: dict[str, Any] = {
            "cause_stage": "tool",
            "cause_class": "sandbox_lost",
            "blame": "infrastructure",
        }
        story.attempt(step, 0, start, start + waited - 1, **(lost if step == 25 else {}))
        story.decide(step, start + waited, 1)
        batch = story.batch(step, [step], start + waited)
        story.step(step, start, start + 610, phases, batch_id=batch)


def test_a_slow_step_names_the_phase_and_the_cause_of_who_released_it(ask: Ask) -> None:
    assert ask(
        slow,
        "step_time",
        "step, why_slow, why_slow_s, releasing_cause_stage, releasing_cause_class,"
        " releasing_blame, rule_set",
        "AND step IN (1, 14, 25) ORDER BY step",
    ) == [
        (1, None, None, None, None, None, 1),
        # Waits fell, so what has no name grew most.
        (14, "unattributed", 490.0, None, None, None, 1),
        (25, "waiting", 30.0, "tool", "sandbox_lost", "infrastructure", 1),
    ]


# Killed during step 4, it goes on from step 1; then a life ends before it has done a step.
@STORIES.told
def restarted(story: Story) -> None:
    lives = [an_id("trainer", life) for life in range(3)]
    story.tell("trainer_started", 4, incarnation=lives[0], startup_s=4.0)
    for step, (start, end) in enumerate([(5, 15), (15, 30), (30, 42)], start=1):
        story.step(step, start, end, [(TRAINING, start, end)])
    story.tell("trainer_started", 60, incarnation=lives[1], startup_s=8.0, resumed_step=1)
    story.step(2, 61, 71, [(TRAINING, 61, 71)], life=1)
    story.tell("trainer_started", 80, incarnation=lives[2], startup_s=7.0, resumed_step=2)


def test_steps_that_a_restart_does_again_are_marked(ask: Ask) -> None:
    assert ask(restarted, "step_time", "step, wall_s, retrained", "ORDER BY started_at") == [
        (1, 10.0, False),
        (2, 15.0, True),
        (3, 12.0, True),
        (2, 10.0, False),
    ]


def test_a_restart_is_downtime(ask: Ask) -> None:
    lives = [restarted.trainer(life) for life in range(3)]
    assert ask(
        restarted,
        "downtime",
        "started_at, ended_at, seconds, startup_s, after_incarnation, after_step,"
        " next_incarnation, resumed_step",
        "ORDER BY started_at",
    ) == [
        (at(42), at(61), 19.0, 8.0, lives[0], 3, lives[1], 1),
        (at(71), at(80), 9.0, 7.0, lives[1], 2, lives[2], 2),
    ]


def test_steps_and_downtime_are_the_whole_run(ask: Ask) -> None:
    # From 5 to 80.
    assert ask(
        restarted, "step_time_totals", "steps, retrained_steps, wall_s, retrained_s, downtime_s"
    ) == [(4, 2, 47.0, 27.0, 28.0)]


@STORIES.told
def declared(story: Story) -> None:
    story.resources(10, engine_nodes=1)
    story.resources(15, engine_nodes=1)
    story.resources(30, engine_nodes=3)
    for step, start in enumerate([0, 10, 20, 30], start=1):
        story.step(step, start, start + 10)


def test_a_step_stands_beside_what_was_declared_when_it_began(ask: Ask) -> None:
    assert ask(declared, "step_time", "step, resource_span", "ORDER BY step") == [
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 2),
    ]


@STORIES.told
def phases_only(story: Story) -> None:
    batch = a_rollout(story, 1, (5, 25))
    story.step(1, 0, 50, [(WAITING, 0, 30)], batch_id=batch, time_quality="phase_only")


def test_a_time_that_is_none_is_not_compared_with_others(ask: Ask) -> None:
    assert ask(phases_only, "step_time", "waiting_s, rollout_s, exposed_s, overlapped_s") == [
        (30.0, 20.0, None, None)
    ]


@STORIES.told
def without_batch(story: Story) -> None:
    story.group(1, 2, step=7)
    story.attempt(1, 0, 1, 4)
    story.attempt(1, 1, 2, 9)
    story.step(7, 0, 12, [(WAITING, 0, 10)])


def test_a_step_of_an_unknown_batch_has_the_attempts_sampled_for_it(ask: Ask) -> None:
    assert ask(without_batch, "step_time", "rollout_s, exposed_s, members, rule_set") == [
        (8.0, 8.0, 2, None)
    ]
