"""Attempts for tests of judgement, told as the facts that a producer records.

an_attempt(finished("error", ...), sandbox_failed(...))    one that had sampled tokens before
an_attempt(finished("error", ...), tokens=False)           one that hadn't
judged(attempt)                                            what rule set 1 says of it
peers("sandbox_failed", "task-1", "task-2")                other tasks' attempts that failed too
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ledger.attempt import NOTHING, Attempt
from ledger.avro import decode, encode_fact
from ledger.facts import Excerpt, Fact
from ledger.judgement import Evidence, Judgement, Peers, judge, load_rules
from tests.builders import AT, a_fact, a_turn, a_v7_id, an_id

GIB = 2**30


def fact(name: str, seed: int = 0, /, **fields: Any) -> Any:
    """A fact with its required fields and these, as a reader gets it; `error` may be a text."""
    if isinstance(fields.get("error"), str):
        fields["error"] = Excerpt.of(fields["error"])
    return decode(encode_fact(a_fact(name, seed=seed, only_required=True, **fields)))


def finished(stop_reason: str, stage: str | None = None, **fields: Any) -> Any:
    """How the attempt ended; it declares the turn that `an_attempt` has, and its reward."""
    usual = {"stop_reason": stop_reason, "stage": stage, "turns_completed": 1, "reward_due": True}
    return fact("trajectory_finished", **(usual | fields))


def reward(value: float | None, seed: int = 0, **fields: Any) -> Any:
    return fact("reward_assigned", seed, value=value, verifier="tests", **fields)


def sandbox_failed(
    error_type: str = "SandboxNotRunningException",
    stage: str = "tool",
    seed: int = 0,
    **fields: Any,
) -> Any:
    usual = {"error_type": error_type, "stage": stage, "sandbox_id": "s1", "backend": "e2b"}
    return fact("sandbox_failed", seed, **(usual | fields))


def turn_failed(error_type: str, stage: str = "queue", seed: int = 0, **fields: Any) -> Any:
    usual = {"error_type": error_type, "stage": stage, "turn_no": 1, "engine": "engine-0"}
    return fact("turn_failed", seed, **(usual | fields))


def an_attempt(*facts: Fact, tokens: bool = True) -> Attempt:
    """The fold of a start, one turn with tokens unless told otherwise, and `facts`."""
    attempt = NOTHING.with_fact(fact("trajectory_started"))
    if tokens:
        attempt = attempt.with_fact(a_turn(0))
    for each in facts:
        attempt = attempt.with_fact(each)
    return attempt


LOST: Any = finished("error", "tool", error_type="SandboxNotRunningException", reward_due=False)
"""The end of an attempt whose sandbox went away in the tool stage."""


def lost(**evidence: Any) -> Attempt:
    """An attempt whose sandbox went away, with the sandbox's own account of it."""
    return an_attempt(LOST, sandbox_failed(**evidence))


def request(error_type: str, stage: str = "queue", **fields: Any) -> Attempt:
    """An attempt that a request to the engine ended."""
    end = finished("error", "model", error_type=error_type, turns_failed=1)
    return an_attempt(end, turn_failed(error_type, stage, **fields), reward(0.0))


def peers(
    name: str, *tasks: str, after_s: float = 5.0, every_s: float = 5.0, **fields: Any
) -> list[Fact]:
    """The same error in attempts at other tasks, at AT + after_s, and on every `every_s`."""
    facts: list[Fact] = []
    make = {"sandbox_failed": sandbox_failed, "turn_failed": turn_failed}[name]
    for i, task in enumerate(tasks, 1):
        ids = {"group_id": an_id("peer group", i), "trajectory_id": an_id("peer", i)}
        facts.append(
            fact("group_opened", i, task_id=task, group_id=ids["group_id"], expected_size=8)
        )
        at = AT + timedelta(seconds=after_s + (i - 1) * every_s)
        usual = {"event_id": a_v7_id(f"peer {name}", i), "occurred_at": at, **ids}
        facts.append(make(seed=i, **(usual | fields)))
    return facts


def a_trial(error_type: str | None, seed: int = 0, **fields: Any) -> Any:
    """The task's tests were tried on the gold and the empty patch in fresh sandboxes."""
    return fact(
        "task_validated",
        seed,
        task_id="task",
        valid=not error_type,
        error_type=error_type,
        **fields,
    )


def evidence(attempt: Attempt, *around: Fact) -> Evidence:
    seen = Peers()
    for each in around:
        seen.see(each)
    return seen.evidence(attempt)


def judged(attempt: Attempt, *around: Fact, rules: int = 1) -> Judgement:
    """What a rule set says, with `around` in the log too."""
    return judge(load_rules(rules), attempt, evidence(attempt, *around))


def said(attempt: Attempt, *around: Fact, rules: int = 1) -> tuple[Any, ...]:
    """(class, blame, exclusion reason)"""
    judgement = judged(attempt, *around, rules=rules)
    return judgement.cause_class, judgement.blame, judgement.exclusion_reason
