"""A judgement is a function of the attempt's facts, in any order, and of the evidence that it
writes out."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.attempt import MAX_NUMBER, NOTHING, Abandonment, Attempt, BadFact
from ledger.avro import decode, encode_fact
from ledger.facts import Fact, TimeQuality, TrajectoryJudged
from ledger.judgement import Evidence, Peers, judge, judgement_fact_fields, load_rules
from ledger.judging.evidence import abandonment_in, abandonment_line
from ledger.judging.peers import MAX_PEERS
from tests.attempts import (
    a_trial,
    an_attempt,
    evidence,
    fact,
    finished,
    judged,
    peers,
    reward,
    sandbox_failed,
    turn_failed,
)
from tests.builders import ANY_SPEED, AT, a_fact, a_turn, an_id

LATER = AT + timedelta(seconds=2)
STORY: list[Fact] = [
    fact("trajectory_started"),
    fact("sandbox_started", sandbox_id="s1"),
    fact("sandbox_prepared", sandbox_id="s1"),
    a_turn(0),
    a_turn(1, occurred_at=LATER),
    turn_failed("Timeout", "decode", turn_no=1, tokens_so_far=5),
    fact("tool_call_completed", turn_no=0, tool_call_no=0, name="bash", exit_code=0),
    fact("tool_call_completed", 1, turn_no=1, tool_call_no=1, name="bash", sandbox_id="s1",
         error_type="SandboxNotRunningException"),
    sandbox_failed(in_command=True, occurred_at=LATER),
    reward(None, error_type="SandboxNotRunningException"),
    reward(None, 1, error_type="parse_error", occurred_at=LATER),
    finished("error", "tool", error_type="SandboxNotRunningException", turns_completed=2,
             turns_failed=1, tool_calls=2),
    fact("sandbox_stopped", sandbox_id="s1", reason="finished"),
]  # fmt: skip
AROUND: list[Fact] = [
    *peers("sandbox_failed", "task-1", "task-2", "task-3", every_s=9.0),
    *peers("turn_failed", "task-1", "task-2", error_type="Timeout"),
    a_trial("VerifierTimeoutError"),
    a_trial(None, 1, occurred_at=AT - timedelta(hours=1)),
]


def told(facts: list[Fact]) -> Attempt:
    attempt = NOTHING
    for each in facts:
        attempt = attempt.with_fact(each)
    return attempt


@ANY_SPEED
@given(st.permutations(STORY + STORY[:5]), st.permutations(AROUND + AROUND[:4]))
def test_neither_order_nor_repetition_of_facts_matters(
    story: list[Fact], around: list[Fact]
) -> None:
    expected = judged(told(STORY), *AROUND)
    assert (expected.cause_class, expected.blame) == ("sandbox_lost", "infrastructure")
    assert len(expected.errors) == 5
    assert judged(told(story), *around) == expected


@ANY_SPEED
@given(st.lists(st.sampled_from(AROUND), unique_by=id), st.sampled_from([1, 2]))
def test_the_written_evidence_is_enough_to_judge_again(around: list[Fact], number: int) -> None:
    rules, attempt = load_rules(number), told(STORY)
    judgement = judge(rules, attempt, evidence(attempt, *around))
    recorded = encode_fact(
        a_fact("trajectory_judged", **judgement_fact_fields(rules, attempt, judgement))
    )
    read = decode(recorded)
    assert isinstance(read, TrajectoryJudged)
    assert judge(rules, attempt, Evidence.read(read.evidence)) == judgement


def test_what_is_kept_of_an_attempt() -> None:
    attempt = told(STORY)
    assert attempt.complete
    assert [turn.turn_no for turn in attempt.turns] == [0, 1]
    assert (attempt.turns[0].segment, attempt.turns[0].completion_tokens) == (0, 117)
    assert (attempt.turns_seen, attempt.tool_calls_seen) == (0b11, 0b11)
    assert [each.tool_call_no for each in attempt.tool_errors] == [1]
    assert (attempt.first_token_turn, attempt.last_occurred_at) == (0, LATER)


@pytest.mark.parametrize(
    ("left_out", "missing"),
    [(4, "turn_completed"), (5, "turn_failed"), (6, "tool_call_completed"),
     (11, "trajectory_finished")],
)  # fmt: skip
def test_an_attempt_names_what_it_still_misses(left_out: int, missing: str) -> None:
    attempt = told(STORY[:left_out] + STORY[left_out + 1 :])
    assert (attempt.complete, attempt.missing) == (False, (missing,))


def test_an_importer_that_knows_no_counts_is_complete_with_its_reward() -> None:
    end = finished("submitted", turns_completed=None)
    assert told([end]).missing == ("reward_assigned",)
    assert told([end, reward(1.0)]).complete
    assert told([end]).first_token_seen
    started = finished("error", "setup", turns_completed=None)
    assert not told([started]).first_token_seen


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (fact("trajectory_started", trajectory_id=an_id("other")), "trajectory_id must be"),
        (a_turn(-1), "turn_completed.turn_no must be 0 to 65535, got -1"),
        (a_turn(MAX_NUMBER + 1), "got 65536"),
        (turn_failed("x", turn_no=2**62), "turn_failed.turn_no must be"),
        (fact("tool_call_completed", turn_no=0, tool_call_no=-1, name="x"), "tool_call_no must be"),
    ],
)
def test_a_fact_that_cannot_be_is_refused_by_name(bad: Any, message: str) -> None:
    with pytest.raises(BadFact, match=message):
        an_attempt().with_fact(bad)


def test_a_fact_that_adds_nothing_gives_the_same_attempt() -> None:
    attempt = told(STORY)
    for each in STORY:
        assert attempt.with_fact(each, 7) is attempt
    assert attempt.with_fact(fact("trajectory_judged", rule_set=1, trainable=True)) is attempt
    assert attempt.with_fact(fact("group_opened", task_id="task", expected_size=8)) is attempt


def test_of_two_ends_the_earlier_one_counts() -> None:
    first = finished("submitted")
    second = finished("error", event_id=an_id("another end"), occurred_at=LATER)
    assert told([first, second]).finished == told([second, first]).finished == first


def test_an_abandoned_attempt_is_told_from_its_judgement() -> None:
    rules, why = load_rules(1), Abandonment(412.5, producer_silent=True)
    attempt = an_attempt(sandbox_failed()).abandon(why)
    judgement = judge(rules, attempt, evidence(attempt))
    recorded = a_fact("trajectory_judged", **judgement_fact_fields(rules, attempt, judgement))
    again = an_attempt(sandbox_failed(), recorded)
    assert (again.abandoned, again.ended) == (why, True)
    assert judge(rules, again, evidence(again)) == judgement
    assert abandonment_in([abandonment_line(why)]) == why


def test_an_end_that_comes_behind_a_lease_counts_more() -> None:
    attempt = an_attempt(finished("submitted"), reward(1.0)).abandon(Abandonment(412.5, True))
    assert (judged(attempt).outcome, judged(attempt).trainable) == ("completed", True)


def test_a_judgements_fact_takes_time_and_ids_from_the_attempt() -> None:
    rules, attempt = load_rules(1), told(STORY)
    given = judgement_fact_fields(rules, attempt, judged(attempt))
    assert {field.name for field in fields(TrajectoryJudged)} - given.keys() == {
        "producer", "incarnation", "producer_seq", "source_ref",
    }  # fmt: skip
    assert (given["occurred_at"], given["time_quality"]) == (AT, TimeQuality.DERIVED)
    assert given["trajectory_id"] == an_id("trajectory")
    timeless = told([finished("submitted", occurred_at=None, time_quality="none")])
    assert judgement_fact_fields(rules, timeless, judged(timeless))["time_quality"] == "none"


def test_a_judgements_id_is_derived_from_what_it_says() -> None:
    def an_event_id(attempt: Attempt, rules: int = 1, previous: str | None = None) -> str:
        judgement = judged(attempt, rules=rules)
        return judgement_fact_fields(load_rules(rules), attempt, judgement, previous)["event_id"]

    one = an_attempt(finished("submitted"), reward(1.0))
    other = an_attempt(finished("submitted"))
    assert an_event_id(one) == an_event_id(one.with_fact(a_turn(1)))
    assert uuid.UUID(an_event_id(one)).version == 5
    ids = [
        an_event_id(one),
        an_event_id(other),
        an_event_id(one, rules=2),
        an_event_id(one, previous=an_event_id(other)),
    ]
    assert len(set(ids)) == 4


def test_evidence_is_bounded_and_the_nearest_is_kept() -> None:
    attempt = an_attempt(sandbox_failed())
    many = peers("sandbox_failed", *[f"task-{i}" for i in range(1, 31)], every_s=1.0)
    found = evidence(attempt, *many).peers
    assert [each.task_id for each in found] == [f"task-{i}" for i in range(1, MAX_PEERS + 1)]
    assert not evidence(attempt, *peers("sandbox_failed", "task-1", after_s=61.0)).peers


def test_an_attempt_without_errors_needs_no_evidence() -> None:
    assert evidence(an_attempt(finished("submitted"), reward(0.0)), *AROUND) == Evidence()


def test_what_was_forgotten_is_no_evidence() -> None:
    seen, attempt = Peers(), an_attempt(sandbox_failed())
    for each in peers("sandbox_failed", "task-1", "task-2", "task-3", every_s=9.0):
        seen.see(each)
    seen.forget_before(AT + timedelta(seconds=6))
    assert [each.task_id for each in seen.evidence(attempt).peers] == ["task-2", "task-3"]
    seen.forget_group(an_id("peer group", 2))
    assert [each.task_id for each in seen.evidence(attempt).peers] == ["task-3"]


def test_lines_of_other_kinds_are_no_evidence() -> None:
    lines = ["a human's note", "[1]", json.dumps({"weather": "fine"})]
    assert Evidence.read(lines) == Evidence()


def test_judging_is_fast() -> None:
    """100,000 attempts take well under 10 s of CPU; here a share of them, with a wide margin."""
    rules, attempt = load_rules(1), told(STORY)
    around = evidence(attempt, *AROUND)
    plain = an_attempt(finished("submitted"), reward(1.0))
    began = time.process_time()
    for _ in range(1_000):
        judge(rules, plain, Evidence())
    for _ in range(250):
        judge(rules, attempt, around)
    assert time.process_time() - began < 2.0
