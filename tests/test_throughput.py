"""Throughput: completed attempts by span of declared resources, and what they were bought with."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ledger.book import Book
from ledger.facts.lists import RunKind, StopReason
from tests.account_logs import Ask, Stories, Story, at

STORIES = Stories()


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    return STORIES.book(tmp_path_factory.mktemp("book"))


# A tenth of an hour on one node at 860 an hour, and one on three nodes at 3,480.
@STORIES.told
def tripled(story: Story) -> None:
    story.resources(0, engine_nodes=1, engine_gpus_per_node=8, sandbox_slots=128)
    story.resources(360, engine_nodes=3, engine_gpus_per_node=8, sandbox_slots=384)
    for slot in range(86):
        story.attempt(1, slot, 0, 359)
    for slot in range(348):
        story.attempt(2, slot, 360, 720)


def test_a_published_speedup_was_bought_with_nodes(ask: Ask) -> None:
    (one, three) = ask(
        tripled,
        "throughput",
        "engine_nodes, completed, wall_s, completed_per_hour, equivalents_per_engine_node_hour,"
        " equivalents_per_engine_gpu_hour, equivalents_per_sandbox_slot_hour,"
        " equivalents_per_gpu_hour",
        "ORDER BY span",
    )
    assert one == (1, 86, 360.0, 860.0, 860.0, 107.5, 6.71875, None)
    assert three == (3, 348, 360.0, 3480.0, 1160.0, 145.0, 9.0625, None)
    raw, per_node = three[3] / one[3], three[4] / one[4]
    assert (round(raw, 2), round(per_node, 2)) == (4.05, 1.35)


# Four attempts of ten seconds around a change at 100 s: before, across (4 s and 6 s of it), after;
# and one that ends at the very change.
@STORIES.told
def straddling(story: Story) -> None:
    story.resources(80, engine_nodes=1)
    story.resources(100, engine_nodes=3)
    story.attempt(1, 0, 85, 95)
    story.attempt(1, 1, 96, 106)
    story.attempt(1, 2, 110, 120)
    story.attempt(1, 3, 90, 100)


def test_an_attempt_counts_in_each_span_for_its_seconds_there(ask: Ask) -> None:
    assert ask(
        straddling,
        "throughput",
        "span, attempted, completed, attempted_equivalents, equivalents, straddled, wall_s,"
        " rollout_s, started_at, ended_at, observed_until",
        "ORDER BY span",
    ) == [
        (1, 1, 1, 2.4, 2.4, 2, 20.0, 15.0, at(80), at(100), at(100)),
        (2, 3, 3, 1.6, 1.6, 2, 20.0, 16.0, at(100), None, at(120)),
    ]


@STORIES.told
def outcomes(story: Story) -> None:
    story.resources(0, engine_nodes=0, engine_gpus_per_node=0)
    story.attempt(1, 0, 0, 3600)
    story.attempt(1, 1, 0, 1800, reward=0.0)
    story.attempt(1, 2, 0, 1800, reward=None)
    story.attempt(1, 3, 0, 1800, reward=float("nan"))
    story.attempt(1, 4, 0, 1800, trainable=False)
    story.attempt(1, 5, 0, 1800, stop=StopReason.CANCELLED, rule_set=None)
    story.attempt(1, 6, 0, None)
    # Other rules find another attempt untrainable, and have changed their mind about the first.
    story.judge(story.ids(1, 0), 4000, rule_set=2, trainable=False)
    story.judge(story.ids(1, 0), 4001, rule_set=2, trainable=True)
    story.judge(story.ids(1, 1), 4000, rule_set=2, trainable=False)
    story.judge(story.ids(1, 4), 4000, rule_set=2, trainable=True)


def test_completed_is_scored_and_trainable_by_each_rule_set(ask: Ask) -> None:
    assert ask(
        outcomes,
        "throughput",
        "rule_set, attempted, completed, completed_per_hour, attempted_per_hour, kind",
        "ORDER BY rule_set",
    ) == [(1, 6, 2, 2.0, 6.0, "train"), (2, 6, 2, 2.0, 6.0, "train")]


def test_nothing_is_divided_by_zero_or_by_what_is_undeclared(ask: Ask) -> None:
    columns = ", ".join(
        f"equivalents_per_{each}_hour"
        for each in ("engine_node", "engine_gpu", "gpu", "sandbox_slot")
    )
    assert ask(outcomes, "throughput", columns, "AND rule_set = 1") == [(None, None, None, None)]


@STORIES.told
def idle(story: Story) -> None:
    story.resources(0, engine_nodes=1)
    story.resources(200, engine_nodes=2)
    story.attempt(1, 0, 10, 30)
    story.attempt(1, 1, 20, 40)
    story.attempt(1, 2, 90, 100)
    story.attempt(1, 3, 190, None)
    story.attempt(1, 4, 230, 300)


def test_hours_with_rollouts_in_flight_are_a_union(ask: Ask) -> None:
    # 10 to 40, 90 to 100, and from 190 on one that goes on.
    assert ask(idle, "throughput", "span, wall_s, rollout_s", "ORDER BY span") == [
        (1, 200.0, 50.0),
        (2, 100.0, 100.0),
    ]


# In a log of whole seconds many attempts start at one moment; of so many rows DuckDB's threads hand
# such on in any order. Ten waves, a hundred seconds apart; the longest of each takes fifty.
WAVES = """
SELECT
    0 AS log_partition, i AS log_offset, now() AS log_time,
    event_id AS incarnation, event_id AS run_id, event_id AS group_id,
    event_id, trajectory_id, 'waves' AS producer, i AS producer_seq, 'measured' AS time_quality,
    i AS slot,
    make_timestamptz(1700000000000000 + (i % 10 * 100 + {seconds}) * 1000000) AS occurred_at
FROM (
    SELECT
        i,
        '00000000-0000-0000-0000-000000000001'::UUID AS event_id,
        ('00000000-0000-0000-0000-' || lpad(i::TEXT, 12, '0'))::UUID AS trajectory_id
    FROM range(30000) AS numbers (i)
)
"""


def test_attempts_that_start_at_one_moment_are_in_flight_once(tmp_path: Path) -> None:
    with contextlib.closing(Book(tmp_path / "book", "a log")) as book:
        started, finished = WAVES.format(seconds="0"), WAVES.format(seconds="1 + i // 10 * 7 % 50")
        book.connection.execute(
            f"INSERT INTO trajectory_started BY NAME SELECT *, 'a task' AS task_id FROM ({started})"
        )
        book.connection.execute(
            "INSERT INTO trajectory_finished BY NAME"
            f" SELECT *, 'submitted' AS stop_reason, true AS reward_due FROM ({finished})"
        )
        query = "SELECT attempted, wall_s, rollout_s FROM throughput"
        told = {book.connection.execute(query).fetchone() for _ in range(20)}
    assert told == {(30_000, 950.0, 500.0)}


@STORIES.told
def unjudged(story: Story) -> None:
    story.attempt(1, 0, 0, 50, rule_set=None)


def test_without_declaration_and_judgement_little_is_known(ask: Ask) -> None:
    assert ask(
        unjudged,
        "throughput",
        "span, rule_set, attempted, completed, equivalents, straddled, completed_per_hour,"
        " engine_nodes, wall_s, started_at",
    ) == [(0, None, 1, None, None, None, None, None, 50.0, at(0))]


@STORIES.told
def talking(story: Story) -> None:
    story.resources(0, trainer_gpus=8, engine_nodes=1, engine_gpus_per_node=8, colocated=False)
    story.resources(10, trainer_gpus=8, engine_nodes=1, engine_gpus_per_node=8, colocated=True)
    story.resources(20, trainer_gpus=8, engine_nodes=1, engine_gpus_per_node=8)
    ids = story.attempt(1, 0, 0, 30)
    for turn_no, second in enumerate([5, 9, 15]):
        story.tell(
            "turn_completed",
            second,
            **ids,
            turn_no=turn_no,
            prompt_tokens=1000,
            cached_tokens=900 if turn_no else 0,
            completion_tokens=50,
        )
    story.tell("turn_completed", 16, **ids, turn_no=3, completion_tokens=7)


def test_tokens_are_of_the_span_in_which_a_turn_ended(ask: Ask) -> None:
    assert ask(
        talking,
        "throughput",
        "span, generated_tokens, prefilled_tokens, generated_tokens_per_s, prefilled_tokens_per_s",
        "ORDER BY span",
    ) == [(1, 100, 1100, 10.0, 110.0), (2, 57, 100, 5.7, 10.0), (3, None, None, None, None)]


def test_gpus_are_all_of_them_once(ask: Ask) -> None:
    assert ask(talking, "resource_spans", "engine_gpus, gpus", "ORDER BY span") == [
        (8, 16),
        (8, 8),
        (8, None),
    ]


def evaluation() -> Story:
    story = Story("evaluation", RunKind.EVAL)
    story.attempt(1, 0, 0, 10)
    return story


EVALUATION = STORIES.add(evaluation())


def test_an_evaluation_is_a_run_of_its_own(ask: Ask) -> None:
    assert ask(EVALUATION, "throughput", "kind, attempted, completed") == [("eval", 1, 1)]
