"""When a group is decided, who votes, and what becomes of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from consumers.assembling.cut import Now
from consumers.assembling.settings import AssemblerSettings
from ledger.facts import (
    GroupDecided,
    GroupOpened,
    RefillRequested,
    RewardAssigned,
    ToolCallCompleted,
    TrajectoryFinished,
    TrajectoryJudged,
    TurnCompleted,
)
from ledger.facts.lists import RunKind, StopReason
from ledger.tokens import TurnTokens
from tests.assembled import (
    Desk,
    Teller,
    a_group,
    a_payload,
    an_attempt,
    changed,
    group_id,
    members_of,
    opened,
    the_run,
    trajectory_id,
    without,
)
from tests.builders import an_id


def desk(**settings: Any) -> Desk:
    return Desk(AssemblerSettings(groups_per_batch=2, **settings)).read(*the_run())


def test_a_group_is_decided_when_its_last_member_is_complete() -> None:
    told = a_group(0, [1, 0, 1])
    at = desk().read(*told[:-1])
    assert at.decide() == []
    decided = at.read(told[-1]).decide()
    assert [type(fact).__name__ for fact in decided] == ["TrajectoryJudged"] * 3 + ["GroupDecided"]
    assert members_of(decided, 0) == [
        (0, "votes", 0.5773),
        (1, "votes", -1.1547),
        (2, "votes", 0.5773),
    ]
    fact = decided[-1]
    assert (fact.decision, fact.drop_reason, fact.algorithm) == ("batch", None, "grpo")
    assert (round(fact.mean, 6), round(fact.std, 6)) == (0.666667, 0.57735)
    assert fact.cut.policy_version == 3
    assert all(member.tokens_verified for member in fact.members)


@pytest.mark.parametrize("kind", [TurnCompleted, ToolCallCompleted, RewardAssigned, TurnTokens])
def test_a_member_is_incomplete_until_all_that_it_declares_has_come(kind: type) -> None:
    told = a_group(0, [1, 0])
    missing = [each for each in told if isinstance(each, kind)][-1]
    at = desk().read(*[each for each in told if each is not missing])
    assert at.decide() == []
    at.read(missing).decide()
    assert at.decided() == {0: "batch"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TurnTokens, "tokens_missing"),
        (ToolCallCompleted, "tokens_missing"),
        (RewardAssigned, "reward_missing"),
    ],
)
def test_what_is_still_missing_at_the_deadline_excludes_its_member(kind: type, reason: str) -> None:
    told = a_group(0, [1, 0, 1, 0])
    missing = [each for each in told if isinstance(each, kind)][-1]
    at = desk(group_deadline_s=600).read(*[each for each in told if each is not missing])
    at.wait(601).decide()
    assert [member[1] for member in members_of(at.appended, 0)][:3] == ["votes"] * 3
    last = [fact for fact in at.appended if isinstance(fact, GroupDecided)][-1].members[3]
    assert not last.votes
    assert last.exclusion_reason == reason
    assert at.decided() == {0: "batch"}


def test_a_failure_of_the_infrastructure_does_not_vote() -> None:
    told = a_group(0, [1, 0, 1, 1])
    tell = Teller(seed=50)
    lost = {"group_id": group_id(0), "slot": 3, "trajectory_id": trajectory_id(0, 3)}
    told = [each for each in told if getattr(each, "slot", 0) != 3]
    told = [each for each in told if getattr(each, "trajectory_id", "") != trajectory_id(0, 3)]
    told += [
        tell("trajectory_started", **lost, task_id="task 0"),
        tell(
            "sandbox_failed", **lost, try_no=0, stage="sandbox_start", error_type="TimeoutException"
        ),
        tell(
            "trajectory_finished",
            **lost,
            stop_reason=StopReason.ERROR,
            stage="sandbox_start",
            error_type="TimeoutException",
            turns_completed=0,
            turns_failed=0,
            tool_calls=0,
            reward_due=False,
        ),
    ]
    at = desk().read(*told)
    at.decide()
    assert members_of(at.appended, 0)[3] == (3, "infrastructure", None)
    assert at.decided() == {0: "batch"}
    decision = at.appended[-1]
    assert round(decision.mean, 6) == 0.666667  # of three, not of four


@pytest.mark.parametrize(
    ("rewards", "settings", "expected"),
    [
        ([1, 1, 1, 1], {}, "dropped: zero_variance"),
        ([0.5, 0.5 + 9e-7], {}, "dropped: zero_variance"),
        ([1, None, None, None], {}, "dropped: too_few_valid"),
        ([1, 0, None, None], {}, "batch"),
        ([1, 0, None, None], {"min_valid": 3}, "dropped: too_few_valid"),
        ([1, 0, 1, None], {"on_infra_failure": "drop_group"}, "dropped: group_policy"),
        ([1, 0, 1, 0], {"on_infra_failure": "drop_group"}, "batch"),
        ([1, math.nan, math.inf, 0], {}, "batch"),
        ([1, math.nan, math.inf, -math.inf], {}, "dropped: too_few_valid"),
    ],
)
def test_what_becomes_of_a_group(
    rewards: list[float | None], settings: dict[str, Any], expected: str
) -> None:
    at = Desk(AssemblerSettings.of({"groups_per_batch": 2, **settings}, "here"))
    at.read(*the_run(), *a_group(0, rewards)).decide()
    assert at.decided() == {0: expected}
    voted = [each for each in members_of(at.appended, 0) if each[1] == "votes"]
    assert len(voted) == sum(value is not None and math.isfinite(value) for value in rewards)


def test_a_reward_that_is_no_number_is_no_vote() -> None:
    at = desk().read(*a_group(0, [1, 0, math.nan]))
    at.decide()
    assert members_of(at.appended, 0)[2] == (2, "verifier", None)
    assert at.appended[-1].members[2].reward is None
    assert "a reward must be a finite number, got nan" in at.state.problems[0]


def test_a_truncated_member_is_scored_or_votes_without_a_gradient() -> None:
    tell = Teller(seed=0)
    told = [opened(tell, 0, 3)]
    told += an_attempt(tell, 0, 0, 1.0)
    told += an_attempt(tell, 0, 1, 0.0)
    told += an_attempt(tell, 0, 2, 0.0, stop=StopReason.TURN_CAP)
    for overlong, expected in (("score", "votes"), ("mask", "masked")):
        at = Desk(AssemblerSettings.of({"overlong": overlong}, "here")).read(*the_run(), *told)
        at.decide()
        assert members_of(at.appended, 0) == [
            (0, "votes", 1.1547),
            (1, "votes", -0.5773),
            (2, expected, -0.5773),
        ]


def test_a_silent_producers_attempts_are_abandoned_by_the_logs_clock() -> None:
    tell = Teller(incarnation=an_id("dead"), seed=1)
    told = [opened(Teller(), 1, 3)]
    told += an_attempt(Teller(seed=2), 1, 0, 1.0) + an_attempt(Teller(seed=3), 1, 1, 0.0)
    told += an_attempt(tell, 1, 2, 1.0)[:-2]
    at = desk(lease_s=100).read(*told)
    assert at.decide() == []
    at.wait(90)
    at.read(Teller(seed=4)("producer_alive", accepted=1, last_seq=0, interval_s=10.0))
    assert at.decide() == []
    at.wait(20).decide()
    assert members_of(at.appended, 1)[2] == (2, "infrastructure", None)
    (abandoned,) = [f for f in at.appended if isinstance(f, TrajectoryJudged) and f.slot == 2]
    assert abandoned.outcome == "abandoned"


def test_an_outage_abandons_nothing_before_the_log_was_read_to_its_end_for_a_lease() -> None:
    told = a_group(1, [1, 0])
    at = desk(lease_s=100).read(*told[:-1])
    at.wait(5_000)
    at.settled = False
    assert at.decide() == []
    at.read(told[-1]).decide()
    assert at.decided() == {1: "batch"}


def test_a_closed_producers_open_attempts_and_empty_slots_are_not_waited_for() -> None:
    told = a_group(1, [1, 0, 1])
    last = [f for f in told if getattr(f, "trajectory_id", "") == trajectory_id(1, 2)]
    at = desk().read(*[each for each in told if each not in last])
    at.read(Teller(seed=5)("producer_closed", accepted=1, last_seq=0))
    assert at.decide() == []
    at.wait(0).decide()
    assert [member[0] for member in members_of(at.appended, 1)] == [0, 1]
    assert at.decided() == {1: "batch"}


def test_a_member_that_runs_at_the_deadline_is_late() -> None:
    told = a_group(1, [1, 0, 1])
    at = desk(group_deadline_s=500, lease_s=10_000).read(*told[:-1])
    at.wait(501).decide()
    assert members_of(at.appended, 1)[2] == (2, "late", None)
    assert at.read(told[-1]).decide() == []
    assert at.state.late == 1


def test_what_comes_about_a_decided_group_is_late_and_changes_nothing() -> None:
    at = desk().read(*a_group(0, [1, 0]))
    at.decide()
    before = dict(at.state.queue[group_id(0)].group.attempts)
    tell = Teller(seed=60)
    at.read(*an_attempt(tell, 0, 0, 0.0, turns=4), *an_attempt(tell, 0, 1, 1.0, refill=1))
    assert at.decide() == []
    assert at.state.queue[group_id(0)].group.attempts == before
    assert at.state.late == 11 + 7


def test_an_evaluation_is_decided_by_the_same_code_and_gets_no_advantages() -> None:
    at = Desk().read(*the_run(RunKind.EVAL), *a_group(0, [1, 1, None]), *a_group(1, [1.0]))
    at.decide()
    assert at.decided() == {0: "evaluated", 1: "evaluated"}
    assert members_of(at.appended, 0) == [
        (0, "votes", None),
        (1, "votes", None),
        (2, members_of(at.appended, 0)[2][1], None),
    ]
    assert not at.state.queue


# Refills


def test_a_slot_that_fell_away_asks_for_another_attempt_which_then_votes() -> None:
    at = Desk(AssemblerSettings.of({"on_infra_failure": "refill", "max_refills": 1}, "here"))
    tell = Teller(seed=0)
    at.read(*the_run(), opened(tell, 0, 2), *an_attempt(tell, 0, 0, None))
    (judged, request) = at.decide()
    assert isinstance(judged, TrajectoryJudged)
    assert isinstance(request, RefillRequested)
    assert (request.slot, request.trajectory_id, request.refill_no) == (0, trajectory_id(0, 0), 1)
    assert at.decide() == []
    at.read(*an_attempt(tell, 0, 1, 0.0))
    assert at.decide() == []
    at.read(*an_attempt(tell, 0, 0, 1.0, refill=1)).decide()
    assert [each[:2] for each in members_of(at.appended, 0)][1:] == [(0, "votes"), (1, "votes")]
    assert at.decided() == {0: "batch"}


def test_refills_are_capped() -> None:
    at = Desk(AssemblerSettings.of({"on_infra_failure": "refill", "max_refills": 1}, "here"))
    tell = Teller(seed=0)
    at.read(*the_run(), opened(tell, 0, 2), *an_attempt(tell, 0, 0, None))
    at.read(*an_attempt(tell, 0, 1, 0.0)).decide()
    at.read(*an_attempt(tell, 0, 0, None, refill=1)).decide()
    assert at.decided() == {0: "dropped: too_few_valid"}
    assert sum(isinstance(fact, RefillRequested) for fact in at.appended) == 1


def test_of_two_attempts_in_a_slot_the_first_valid_one_votes() -> None:
    tell = Teller(seed=0)
    told = [
        opened(tell, 0, 2),
        *an_attempt(tell, 0, 0, 0.0),
        *an_attempt(tell, 0, 0, 1.0, refill=1),
    ]
    told += an_attempt(tell, 0, 1, 1.0)
    at = desk().read(*told)
    at.decide()
    assert members_of(at.appended, 0) == [
        (0, "votes", -0.7071),
        (0, "superseded", None),
        (1, "votes", 0.7071),
    ]


# Versions


def test_tokens_older_than_the_bound_or_of_an_orphaned_version_are_not_trained_on() -> None:
    published = Teller(seed=70)("weights_published", policy_version=6)
    at = desk().read(published, *a_group(0, [1, 0], version=3), *a_group(1, [1, 0], version=4))
    at.decide()
    assert at.decided() == {0: "dropped: stale", 1: "batch"}
    orphaned = Teller(seed=71)("weights_orphaned", policy_version=6)
    at.read(orphaned, *a_group(2, [1, 0], version=6), *a_group(3, [1, 0], version=3)).decide()
    assert at.decided()[2] == "dropped: orphaned_version"
    assert at.decided()[3] == "batch"
    assert at.state.versions.newest == 3


def test_a_turn_whose_version_nobody_told_is_as_old_as_its_group() -> None:
    untold = changed(a_group(0, [1, 0]), TurnCompleted, version_spans=[])
    at = desk().read(Teller(seed=70)("weights_published", policy_version=6), *untold)
    at.decide()
    assert at.decided() == {0: "dropped: stale"}


# Bad input


@pytest.mark.parametrize(
    ("told", "settings", "detail"),
    [
        (a_group(0, [1.0]), {}, "group_size must be at least 2, got 1"),
        (
            a_group(0, [1, 0]),
            {"min_valid": 3},
            "min_valid must be at most the group's size 2, got 3",
        ),
        (a_group(0, [1, 0]), {"group_size": 4}, "group_size must be 4, got 2"),
        (
            [opened(Teller(seed=8), 0, 3), *a_group(0, [1, 0])],
            {},
            "must be opened with one size, got 2 and 3",
        ),
    ],
)
def test_a_group_that_can_not_be_is_refused_by_name(
    told: list[Any], settings: dict[str, Any], detail: str
) -> None:
    at = Desk(AssemblerSettings(**settings)).read(*the_run(), *told)
    at.decide()
    assert at.decided() == {0: "dropped: refused"}
    assert not any(member.votes for member in at.appended[-1].members)
    assert any(detail in problem for problem in at.state.problems)


def test_a_group_opened_twice_with_one_size_is_one_group() -> None:
    told = a_group(0, [1, 0])
    at = desk().read(*told, opened(Teller(seed=8), 0, 2))
    at.decide()
    assert at.decided() == {0: "batch"}


def test_attempts_of_an_unknown_group_are_named_and_never_trained_on() -> None:
    told = without(a_group(0, [1, 0]), GroupOpened)
    at = desk(group_deadline_s=100).read(*told)
    assert at.wait(200).decide() == []
    (problem,) = at.state.problems
    assert problem.startswith(f"group {group_id(0)} must be opened by a group_opened, got none")
    assert at.state.groups == {}
    assert at.read(*a_group(0, [1, 0])).decide() == []  # whoever opens it now is late


def test_payloads_of_an_unknown_group_hold_nothing_back_for_ever() -> None:
    at = desk(group_deadline_s=100).read(a_payload(0, 0, 0))
    assert at.wait(200).decide() == []
    at.wait(200).read(*the_run())
    low = at.state.low_water.positions(dict(at.ends), [])
    assert {place.topic: offset for place, offset in low.items()}["tokens"] == 1


def test_an_attempt_in_a_slot_that_the_group_does_not_have_is_no_member() -> None:
    tell = Teller(seed=6)
    at = desk().read(*an_attempt(tell, 0, 7, 1.0), *a_group(0, [1, 0]))
    at.decide()
    assert [member[0] for member in members_of(at.appended, 0)] == [0, 1]
    assert at.state.problems == [
        f"slot of trajectory {trajectory_id(0, 7)} must be 0 to 1, got 7 (group {group_id(0)})"
    ]


def test_a_payload_that_is_not_what_its_digest_says_is_waited_for() -> None:
    told = a_group(0, [1, 0])
    payload = next(each for each in told if isinstance(each, TurnTokens))
    damaged = changed([payload], TurnTokens, logprobs=bytes(20))
    at = desk().read(*[each for each in told if each is not payload], *damaged)
    assert at.decide() == []
    assert "must have digest" in at.state.problems[0]
    at.read(payload).decide()
    assert at.decided() == {0: "batch"}


def test_a_payload_with_tokens_out_of_the_vocabulary_excludes_its_member_at_once() -> None:
    told = a_group(0, [1, 0, 0])
    at = desk(vocabulary_size=6).read(*told)
    at.decide()
    assert {member[1] for member in members_of(at.appended, 0)} == {"tokens_missing"}
    assert "token ids must be below 6, got" in at.state.problems[0]


def test_a_turn_that_never_sent_its_tokens_is_not_trained_on() -> None:
    told = a_group(0, [1, 0, 0])
    bare = [
        changed([each], TurnCompleted, tokens_sha256=None)[0]
        if getattr(each, "trajectory_id", "") == trajectory_id(0, 2)
        else each
        for each in told
    ]
    at = desk().read(*bare)
    at.decide()
    assert members_of(at.appended, 0)[2] == (2, "tokens_missing", None)


def test_an_incomplete_declaration_is_believed() -> None:
    unknown = {"turns_completed": None, "turns_failed": None, "tool_calls": None}
    at = desk().read(*changed(a_group(0, [1, 0]), TrajectoryFinished, **unknown))
    at.decide()
    assert at.decided() == {0: "batch"}


def test_a_payload_names_its_place() -> None:
    payload = a_payload(0, 0, 0)
    at = desk().read(payload)
    assert at.state.tokens.places(group_id(0), payload.sha256) == (0, (0,))


def test_a_closed_group_gets_no_second_look_at_its_deadline() -> None:
    at = desk(group_deadline_s=100).read(*a_group(0, [1, 1]))
    at.decide()
    at.wait(200).decide()
    assert at.decided() == {0: "dropped: zero_variance"}
    assert at.state.problems == []


def test_groups_that_are_due_together_beyond_one_cut_are_all_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumers.assembling.plan.DECISIONS_MAX", 2)
    at = desk(group_deadline_s=1000, lease_s=10_000)
    for number in range(5):
        at.read(*a_group(number, [1, 0])[:-1])
    at.decide()
    at.wait(2000).decide()
    assert at.decided() == dict.fromkeys(range(5), "dropped: too_few_valid")


def test_what_was_due_and_not_looked_at_stays_due_while_time_ends_nothing() -> None:
    at = desk(group_deadline_s=1000, lease_s=10_000).read(*a_group(0, [1, 0])[:-1])
    at.decide()
    at.wait(2000)
    due = at.state.due(Now(at.state.clock.us, settled=True))
    at.state.timers.due_again(due)
    at.settled = False
    at.decide()
    assert (due, at.decided()) == ([group_id(0)], {})
    at.settled = True
    at.decide()
    assert at.decided() == {0: "dropped: too_few_valid"}
