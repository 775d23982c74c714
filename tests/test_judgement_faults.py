"""Rule set 1 on sandboxes and engines that fail: what the policy can bring about is scored, and
what it can't is excused only by evidence that lies outside its reach."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.attempts import (
    GIB,
    LOST,
    a_trial,
    an_attempt,
    fact,
    finished,
    judged,
    lost,
    peers,
    request,
    reward,
    said,
    sandbox_failed,
    turn_failed,
)
from tests.builders import AT

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


def test_an_error_that_was_outlived_elsewhere_is_not_taken_for_the_one_that_ended_it() -> None:
    attempt = an_attempt(
        finished("error", "tool", error_type="Timeout", turns_failed=1),
        turn_failed("Timeout", "prefill", seed=1),
        reward(0.0),
    )
    assert said(attempt) == ("timeout", "policy", None)


def test_a_loss_that_was_met_in_another_stage_is_judged_by_the_sandboxs_own_account() -> None:
    end = finished("error", "model", error_type="SandboxNotRunningException")
    attempt = an_attempt(end, sandbox_failed(in_command=True))
    assert said(attempt)[:2] == ("sandbox_lost_in_command", "policy")
