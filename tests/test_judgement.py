"""Rule set 1, who can cause it: each way out of a bad score that the policy could learn is shut."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from ledger.attempt import Abandonment
from tests.attempts import (
    GIB,
    a_trial,
    an_attempt,
    fact,
    finished,
    judged,
    peers,
    reward,
    said,
    sandbox_failed,
    turn_failed,
)
from tests.builders import AT

LOST: Any = finished("error", "tool", error_type="SandboxNotRunningException", reward_due=False)


def crash(error_type: str, **fields: Any) -> Any:
    return an_attempt(
        finished("submitted", "verify"), reward(None, error_type=error_type, **fields)
    )


def lost(**evidence: Any) -> Any:
    return an_attempt(LOST, sandbox_failed(**evidence))


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


# ---- the sandbox ----


def test_a_sandbox_lost_in_a_command_is_scored_and_an_idle_one_is_not() -> None:
    assert said(lost(in_command=True)) == ("sandbox_lost_in_command", "policy", "reward_missing")
    assert said(lost(in_command=False)) == (
        "sandbox_lost_idle",
        "infrastructure",
        "infrastructure",
    )


def test_where_nobody_knows_whether_a_command_ran_the_stage_says_it() -> None:
    assert said(lost())[1] == "policy"
    idle = an_attempt(
        finished("error", "model", error_type="SandboxNotRunningException"),
        sandbox_failed(stage="model"),
    )
    assert said(idle)[1] == "infrastructure"


@pytest.mark.parametrize(
    "metrics",
    [
        {"memory_used_bytes": int(7.5 * GIB), "memory_limit_bytes": 8 * GIB},
        {"disk_used_bytes": 10 * GIB, "disk_limit_bytes": 10 * GIB},
    ],
)
def test_a_sandbox_that_was_nearly_full_is_the_policys_even_if_peers_were_lost(
    metrics: dict[str, int],
) -> None:
    attempt = lost(in_command=False, **metrics)
    around = peers("sandbox_failed", "task-1", "task-2")
    assert said(attempt, *around)[:2] == ("sandbox_exhausted", "policy")


def test_a_template_that_runs_out_of_memory_under_the_gold_patch_is_the_tasks() -> None:
    full = {"memory_used_bytes": 8 * GIB, "memory_limit_bytes": 8 * GIB}
    trial = a_trial("SandboxLikelyOutOfMemoryError")
    assert said(lost(**full), trial) == ("template_out_of_memory", "task", "task")
    told = an_attempt(finished("error", "tool", error_type="SandboxLikelyOutOfMemoryError"))
    assert said(told, trial) == ("template_out_of_memory", "task", "task")
    assert said(told)[:2] == ("out_of_memory", "policy")


def test_a_sandbox_at_its_declared_end_is_the_policys_unless_it_was_starved() -> None:
    end = {"backend_end_at": AT, "in_command": False}
    assert said(lost(**end))[:2] == ("sandbox_expired", "policy")
    starved = an_attempt(
        finished(
            "error",
            "tool",
            error_type="SandboxNotRunningException",
            clock_cap_s=600.0,
            policy_clock_s=60.0,
        ),
        sandbox_failed(**end),
    )
    assert said(starved) == ("starved", "scheduler", "scheduler")
    early = {"backend_end_at": AT + timedelta(seconds=60), "in_command": True}
    assert said(lost(**early))[:2] == ("sandbox_lost_in_command", "policy")


def test_three_losses_across_tasks_within_30_s_are_infrastructure() -> None:
    attempt = lost(in_command=True)
    around = peers("sandbox_failed", "task-1", "task-2", in_command=True)
    assert said(attempt, *around) == ("sandbox_lost", "infrastructure", "infrastructure")
    assert len(judged(attempt, *around).evidence) == 2


@pytest.mark.parametrize(
    "around",
    [
        peers("sandbox_failed", "task-1"),
        peers("sandbox_failed", "task-1", "task-1"),
        peers("sandbox_failed", "task", "task"),
        peers("sandbox_failed", "task-1", "task-2", every_s=26.0),
        peers("sandbox_failed", "task-1", "task-2", after_s=-20.0, every_s=31.0),
        peers("sandbox_failed", "task-1", "task-2", occurred_at=None, time_quality="none"),
        peers("sandbox_failed", "task-1", "task-2", backend="another"),
        peers("sandbox_failed", "task-1", "task-2", error_type="CommandExitException"),
        peers("sandbox_failed", "task-1", "task-2", stage="sandbox_start"),
        peers("sandbox_failed", "task-1", "task-2", memory_used_bytes=9, memory_limit_bytes=9),
        peers("sandbox_failed", "task-1", "task-2", backend_end_at=AT),
    ],
    ids=[
        "two are no three",
        "of one other task",
        "of the same task",
        "too late",
        "on both sides, but not within 30 s",
        "nobody knows when",
        "of another backend",
        "not lost",
        "never started",
        "which filled up their own",
        "which had come to their end",
    ],
)
def test_what_peers_did_to_themselves_excuses_nobody(around: Any) -> None:
    assert judged(lost(in_command=True), *around).blame == "policy"


def test_losses_before_and_behind_count_together_within_one_window() -> None:
    around = peers("sandbox_failed", "task-1", "task-2", after_s=-14.0, every_s=28.0)
    assert judged(lost(in_command=True), *around).blame == "infrastructure"


@pytest.mark.parametrize("error_type", ["SandboxUnreachableException", "ReadError", "NoAnswer"])
def test_a_dead_tunnel_is_excused_only_if_its_peers_died_too(error_type: str) -> None:
    attempt = an_attempt(
        finished("error", "tool", error_type=error_type),
        sandbox_failed(error_type, in_command=False),
    )
    assert said(attempt)[:2] == ("sandbox_unreachable", "policy")
    around = peers("sandbox_failed", "task-1", "task-2", error_type="TunnelError")
    assert judged(attempt, *around).blame == "infrastructure"


def test_a_stream_without_an_end_is_a_dead_tunnel() -> None:
    text = "Command ended without an end event"
    attempt = an_attempt(
        finished("error", "tool", error_type="Exception", error=text),
        sandbox_failed("Exception", error=text),
    )
    assert said(attempt)[:2] == ("sandbox_unreachable", "policy")


@pytest.mark.parametrize(
    "error_type", ["TimeoutException", "CommandExitException", "NotEnoughSpaceException"]
)
def test_a_command_that_hangs_fails_or_fills_up_is_the_policys(error_type: str) -> None:
    attempt = an_attempt(finished("error", "tool", error_type=error_type), reward(0.0))
    around = peers("sandbox_failed", "task-1", "task-2", error_type=error_type)
    assert said(attempt, *around)[1:] == ("policy", None)


# ---- the engine ----


def request(error_type: str, stage: str = "queue", **fields: Any) -> Any:
    end = finished("error", "model", error_type=error_type, turns_failed=1)
    return an_attempt(end, turn_failed(error_type, stage, **fields), reward(0.0))


def test_a_400_for_length_is_the_policys_and_a_503_is_not() -> None:
    text = "The input (300 tokens) is longer than the model's context length (256 tokens)."
    told = request("EngineError", http_status=400, error=text)
    assert said(told) == ("context_too_long", "policy", None)
    assert said(request("ContextTooLong", http_status=400)) == ("context_too_long", "policy", None)
    for status in (429, 500, 502, 503):
        busy = request("EngineError", http_status=status)
        assert said(busy) == ("engine_unavailable", "infrastructure", "infrastructure")
        assert judged(request(f"Http{status}", http_status=status)).blame == "infrastructure"


def test_another_400_is_about_what_the_policy_wrote() -> None:
    assert said(request("Http400", http_status=400))[:2] == ("request_refused", "policy")
    assert said(request("ClientResponseError", http_status=422))[:2] == (
        "request_refused",
        "policy",
    )


def test_a_slow_answer_is_the_policys_unless_the_engine_failed_others_too() -> None:
    slow = request("Timeout", "decode", tokens_so_far=9_000)
    assert said(slow)[:2] == ("answer_too_slow", "policy")
    around = peers("turn_failed", "task-1", "task-2", error_type="Timeout")
    assert said(slow, *around)[:2] == ("engine_timeout", "infrastructure")
    elsewhere = peers("turn_failed", "task-1", "task-2", error_type="Timeout", engine="engine-1")
    assert said(slow, *elsewhere)[:2] == ("answer_too_slow", "policy")
    assert said(request("Timeout", "prefill"))[:2] == ("engine_timeout", "infrastructure")


def test_a_connection_to_the_engine_is_not_one_to_the_sandbox() -> None:
    assert said(request("ServerDisconnectedError", "unknown"))[:2] == (
        "engine_unreachable",
        "infrastructure",
    )


def test_an_answer_that_the_client_cannot_read_is_not_the_policys() -> None:
    assert judged(request("ValueError", "decode", http_status=200)).blame == "infrastructure"


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


def test_the_sandboxs_own_account_speaks_for_the_command_that_met_the_loss() -> None:
    failed_call = fact(
        "tool_call_completed",
        turn_no=0,
        tool_call_no=0,
        name="bash",
        sandbox_id="s1",
        error_type="SandboxNotRunningException",
    )
    attempt = an_attempt(LOST, failed_call, sandbox_failed(in_command=False))
    judgement = judged(attempt)
    assert {each.error_class for each in judgement.errors} == {"sandbox_lost_idle"}
    assert len(judgement.errors) == 2


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
