"""Rule set 1, who can cause it: each way out of a bad score that the policy could learn is shut."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from ledger.attempt import Abandonment
from tests.attempts import (
    a_trial,
    an_attempt,
    fact,
    finished,
    judged,
    lost,
    request,
    reward,
    said,
    sandbox_failed,
    turn_failed,
)
from tests.builders import AT


def crash(error_type: str, **fields: Any) -> Any:
    return an_attempt(
        finished("submitted", "verify"), reward(None, error_type=error_type, **fields)
    )


# ---- endings ----


def test_a_scored_attempt_is_trained_on() -> None:
    judgement = judged(an_attempt(finished("submitted", "verify"), reward(0.0)))
    assert judgement.outcome == "completed"
    assert (judgement.cause_class, judgement.blame, judgement.cause_stage) == (None, None, None)
    assert (judgement.trainable, judgement.exclusion_reason) == (True, None)
    assert (judgement.errors, judgement.evidence) == ((), ())


@pytest.mark.parametrize("cap", ["turn_cap", "output_cap", "context_cap", "clock_cap"])
def test_a_cap_is_the_policys_and_its_reward_counts_as_scored(cap: str) -> None:
    attempt = an_attempt(finished(cap, "model"), reward(1.0))
    judgement = judged(attempt)
    assert (judgement.outcome, judgement.blame, judgement.trainable) == (
        "truncated",
        "policy",
        True,
    )
    assert (judgement.cause_class, judgement.cause_stage) == (cap, "model")


def test_a_scored_attempt_without_a_reward_is_never_a_zero() -> None:
    assert said(an_attempt(finished("submitted"))) == (None, None, "reward_missing")
    assert said(an_attempt(finished("turn_cap", "model"), reward(None))) == (
        "turn_cap",
        "policy",
        "reward_missing",
    )


def test_a_cancelled_attempt_is_the_schedulers() -> None:
    attempt = an_attempt(finished("cancelled", "model"), reward(0.0))
    assert judged(attempt).outcome == "cancelled"
    assert said(attempt) == ("cancelled", "scheduler", "scheduler")


def test_a_clock_that_was_short_of_its_cap_was_starved() -> None:
    waited = finished("clock_cap", "model", clock_cap_s=600.0, policy_clock_s=350.0)
    assert said(an_attempt(waited, reward(0.0))) == ("starved", "scheduler", "scheduler")
    worked = finished("clock_cap", "model", clock_cap_s=600.0, policy_clock_s=599.9)
    assert said(an_attempt(worked, reward(0.0))) == ("clock_cap", "policy", None)


def test_the_request_that_the_clock_cut_off_is_no_failure_of_the_engine() -> None:
    attempt = an_attempt(
        finished("clock_cap", "model", clock_cap_s=600.0, policy_clock_s=600.0, turns_failed=2),
        turn_failed("TimeoutError", "unknown", seed=1),
        turn_failed("TimeoutError", "unknown", seed=2, occurred_at=AT + timedelta(seconds=9)),
        reward(0.0),
    )
    errors = judged(attempt).errors
    assert [(each.error_class, each.blame) for each in errors] == [
        ("engine_timeout", "infrastructure"),
        ("clock_cap", "policy"),
    ]


@pytest.mark.parametrize("stop", ["submitted", "turn_cap", "clock_cap", "output_cap"])
def test_an_attempt_without_one_token_has_nothing_to_score(stop: str) -> None:
    attempt = an_attempt(finished(stop, "model", turns_completed=0), reward(0.0), tokens=False)
    assert said(attempt) == ("no_activity", "infrastructure", "no_activity")


def test_writing_nothing_that_can_be_used_is_scored() -> None:
    """An empty patch is an answer: a reward of 0 that the verifier gave counts."""
    assert said(an_attempt(finished("submitted"), reward(0.0, tests_failed=3))) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("whole_producer", "tokens", "blame", "reason"),
    [
        (True, True, "infrastructure", "infrastructure"),
        (False, True, "policy", "reward_missing"),
        (False, False, "infrastructure", "infrastructure"),
    ],
)
def test_an_abandoned_attempt(whole_producer: bool, tokens: bool, blame: str, reason: str) -> None:
    attempt = an_attempt(tokens=tokens).abandon(Abandonment(300.0, whole_producer))
    judgement = judged(attempt)
    assert judgement.outcome == "abandoned"
    assert (judgement.blame, judgement.exclusion_reason) == (blame, reason)
    assert "300.0" in judgement.evidence[0]


def test_an_attempt_that_runs_is_not_judged() -> None:
    with pytest.raises(ValueError, match="judged when it has ended"):
        judged(an_attempt())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_never_trained_on(value: float) -> None:
    attempt = an_attempt(finished("submitted", "verify"), reward(value))
    assert said(attempt) == ("reward_not_finite", "verifier", "verifier")


def test_the_best_of_several_rewards_is_not_picked() -> None:
    later = reward(1.0, seed=1, occurred_at=AT + timedelta(hours=1), verifier_version="2")
    crashed = reward(None, seed=2, occurred_at=AT - timedelta(hours=1), error_type="parse_error")
    attempt = an_attempt(finished("submitted"), later, reward(0.0), crashed)
    assert attempt.reward == reward(0.0)
    assert said(attempt) == (None, None, None)


# ---- nothing before the policy's first token is its fault ----


@pytest.mark.parametrize(
    ("error_type", "stage"),
    [
        ("SandboxNotRunningException", "tool"),
        ("SandboxUnreachableException", "setup"),
        ("CommandExitException", "setup"),
        ("RuntimeError", "sandbox_start"),
        ("ValueError", "model"),
        ("TimeoutException", "tool"),
        ("BadRequestError", "model"),
    ],
)
def test_before_the_first_token_the_policy_is_never_to_blame(error_type: str, stage: str) -> None:
    end = finished("error", stage, error_type=error_type, turns_completed=0)
    judgement = judged(an_attempt(end, tokens=False))
    assert (judgement.blame, judgement.trainable) == ("infrastructure", False)


def test_a_prompt_that_never_fitted_is_the_tasks() -> None:
    end = finished("context_cap", "model", turns_completed=0, turns_failed=1)
    attempt = an_attempt(end, turn_failed("ContextTooLong", turn_no=0), tokens=False)
    assert said(attempt) == ("prompt_too_long", "task", "task")


def test_a_setup_that_fails_in_the_tasks_own_trial_too_is_the_tasks() -> None:
    end = finished("error", "setup", error_type="CommandExitException", turns_completed=0)
    attempt = an_attempt(end, tokens=False)
    assert said(attempt, a_trial("CommandExitException")) == ("task_not_prepared", "task", "task")


# ---- the verifier ----


@pytest.mark.parametrize(
    "error_type", ["VerifierOutputParseError", "VerifierTimeoutError", "ValueError", "TimeoutError"]
)
def test_a_verifier_that_the_patch_broke_is_no_way_out(error_type: str) -> None:
    judgement = judged(crash(error_type))
    assert (judgement.outcome, judgement.cause_stage) == ("completed", "verify")
    assert (judgement.blame, judgement.exclusion_reason) == ("policy", "reward_missing")


def test_a_verifier_that_crashes_on_the_gold_or_empty_patch_too_is_to_blame() -> None:
    trial = a_trial("VerifierTimeoutError")
    assert said(crash("VerifierOutputParseError"), trial) == (
        "verifier_crashed",
        "verifier",
        "verifier",
    )
    (line,) = judged(crash("VerifierOutputParseError"), trial).evidence
    assert json.loads(line) == {
        "baseline": {"event_id": trial.event_id, "error_type": "VerifierTimeoutError"}
    }


@pytest.mark.parametrize(
    "trial",
    [
        a_trial(None),
        a_trial("SandboxNotRunningException"),
        a_trial("VerifierTimeoutError", task_checksum="of another version of the task"),
    ],
    ids=["it got a verdict", "its sandbox was lost", "of another task"],
)
def test_a_trial_that_says_nothing_about_the_tests_excuses_nobody(trial: Any) -> None:
    attempt = crash("VerifierOutputParseError", task_checksum="of this one")
    assert judged(attempt, trial).blame == "policy"


def test_the_newest_trial_counts() -> None:
    repaired = a_trial(None, seed=1, occurred_at=AT + timedelta(hours=1))
    attempt = crash("VerifierOutputParseError")
    assert judged(attempt, repaired, a_trial("VerifierOutputParseError")).blame == "policy"


def test_an_unknown_crash_stays_unknown_and_an_unknown_crash_of_the_trial_is_a_crash() -> None:
    assert said(crash("XmlBomb")) == ("unknown", "unknown", "unknown")
    assert judged(crash("VerifierOutputParseError"), a_trial("XmlBomb")).blame == "verifier"


def test_a_harness_that_fails_on_what_the_policy_wrote_is_the_policys() -> None:
    end = finished("error", "tool", error_type="UnicodeDecodeError")
    attempt = an_attempt(end, reward(0.0))
    assert said(attempt) == ("harness_crashed", "policy", None)


def test_a_fresh_sandbox_that_never_came_up_for_the_tests_is_infrastructure() -> None:
    attempt = an_attempt(
        finished("error", "verify", error_type="SandboxException"),
        fact("sandbox_started", sandbox_id="s1", try_no=0),
        sandbox_failed("SandboxException", "sandbox_start", try_no=1, sandbox_id=None),
        reward(None, error_type="SandboxException"),
    )
    assert judged(attempt).blame == "infrastructure"
    ran = attempt.with_fact(fact("sandbox_started", 1, sandbox_id="s2", try_no=2))
    assert said(ran) == ("sandbox_unreachable", "policy", "reward_missing")


# ---- errors that it outlived, and which of two causes decides ----


def test_an_error_that_was_outlived_is_named_and_decides_nothing() -> None:
    attempt = an_attempt(
        finished("submitted", "verify", turns_failed=1),
        sandbox_failed("ServiceBusyException", "sandbox_start", sandbox_id=None),
        turn_failed("Http503", http_status=503, occurred_at=AT + timedelta(seconds=1)),
        reward(1.0),
    )
    judgement = judged(attempt)
    assert (judgement.cause_class, judgement.trainable) == (None, True)
    assert [(each.stage, each.error_class, each.blame) for each in judgement.errors] == [
        ("sandbox_start", "sandbox_busy", "infrastructure"),
        ("model", "engine_unavailable", "infrastructure"),
    ]
    assert judgement.errors[0].error_event_id == attempt.sandbox_failed[0].event_id


def test_a_cap_does_not_hide_that_the_verifier_is_broken() -> None:
    attempt = an_attempt(finished("clock_cap", "tool"), reward(None, error_type="parse_error"))
    assert said(attempt)[:2] == ("clock_cap", "policy")
    assert said(attempt, a_trial("parse_error")) == ("verifier_crashed", "verifier", "verifier")


def test_infrastructure_that_ended_an_attempt_excludes_it_whatever_its_reward() -> None:
    attempt = an_attempt(
        finished("error", "model", error_type="Http503", turns_failed=1),
        turn_failed("Http503", http_status=503),
        reward(1.0),
    )
    assert said(attempt) == ("engine_unavailable", "infrastructure", "infrastructure")


def test_what_no_rule_names_is_unknown_and_never_votes() -> None:
    assert said(an_attempt(finished("error", "tool", error_type="Gremlin"), reward(1.0))) == (
        "unknown",
        "unknown",
        "unknown",
    )
    assert said(an_attempt(finished("error", "tool"), reward(1.0))) == (
        "unknown",
        "unknown",
        "unknown",
    )


def test_a_leaderboard_blames_the_policy_for_everything_but_fabricates_no_reward() -> None:
    attempt = lost(in_command=False)
    assert said(attempt, rules=2) == ("sandbox_lost", "policy", "reward_missing")
    assert said(request("Http503", http_status=503), rules=2) == (
        "engine_unavailable",
        "policy",
        None,
    )
