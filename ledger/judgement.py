"""Judgement: outcome x cause x blame of an ended attempt, from raw facts, by a numbered rule set.

    rules = load_rules(1)
    peers = Peers()                       # shown every fact that the caller reads
    judgement = judge(rules, attempt, peers.evidence(attempt))
    fields = judgement_fact_fields(rules, attempt, judgement)   # of a trajectory_judged fact

Invariants:

1. `judge` is pure: what it says depends on the rule set, the attempt's facts in any order, and the
   evidence, which is written out in the fact.
2. `trainable` if and only if `exclusion_reason` is null.
3. What no rule names is `unknown`, and unknown never votes.
4. Status and reward are apart: an attempt that ran out of time with a reward of 1 counts as 1.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from ledger.attempt import Attempt
from ledger.facts import ErrorJudgement, TimeQuality
from ledger.facts.lists import Blame, ExclusionReason, Outcome, Stage, StopReason
from ledger.judging.evidence import Evidence, abandonment_line
from ledger.judging.observed import Observations, Observed, observe
from ledger.judging.peers import Peers
from ledger.judging.rule_set import RuleSet, Verdict, load_rules, newest_rules, rule_numbers
from ledger.judging.strict_toml import RulesError

__all__ = [
    "Evidence",
    "Judgement",
    "Peers",
    "RuleSet",
    "RulesError",
    "judge",
    "judgement_fact_fields",
    "load_rules",
    "newest_rules",
    "rule_numbers",
]

NO_ACTIVITY = "no_activity"
"""The class that excludes by the reason of the same name, whoever is to blame."""

_IDS = uuid.UUID("6a5c1a5e-53ac-5b0e-9d61-0a6f0c5c2f4e")
"""Namespace of the ids of derived judgements."""

_OUTCOMES = {
    StopReason.SUBMITTED: Outcome.COMPLETED,
    StopReason.TURN_CAP: Outcome.TRUNCATED,
    StopReason.OUTPUT_CAP: Outcome.TRUNCATED,
    StopReason.CONTEXT_CAP: Outcome.TRUNCATED,
    StopReason.CLOCK_CAP: Outcome.TRUNCATED,
    StopReason.CANCELLED: Outcome.CANCELLED,
    StopReason.ERROR: Outcome.ERRORED,
}
_EXCLUDED_FOR = {
    Blame.INFRASTRUCTURE: ExclusionReason.INFRASTRUCTURE,
    Blame.VERIFIER: ExclusionReason.VERIFIER,
    Blame.TASK: ExclusionReason.TASK,
    Blame.SCHEDULER: ExclusionReason.SCHEDULER,
    Blame.UNKNOWN: ExclusionReason.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule set says of one ended attempt."""

    outcome: Outcome
    """How it ended."""
    cause_stage: Stage | None
    """Where what ended or spoiled it happened; null when nothing failed, or unknown."""
    cause_class: str | None
    """The rule set's name for it; null when nothing failed."""
    blame: Blame | None
    """Who caused it; null when nothing failed."""
    trainable: bool
    """Whether it may vote and be trained on, as far as judgement goes."""
    exclusion_reason: ExclusionReason | None
    """Why it may not; null when it may. Of the closed list, judgement gives infrastructure,
    verifier, task, scheduler, unknown, reward_missing and no_activity."""
    errors: tuple[ErrorJudgement, ...]
    """Every error inside it, by time, also those that it outlived."""
    evidence: tuple[str, ...]
    """The evidence at hand, written out."""


def judge(rules: RuleSet, attempt: Attempt, evidence: Evidence) -> Judgement:
    """Judge an ended attempt. Raises ValueError for one that hasn't ended."""
    if not attempt.ended:
        raise ValueError(f"an attempt is judged when it has ended, got {attempt.trajectory_id!r}")
    seen = observe(attempt, evidence, rules.limits)
    cause, verdict = _cause(rules, seen)
    return Judgement(
        outcome=_OUTCOMES[attempt.finished.stop_reason] if attempt.finished else Outcome.ABANDONED,
        cause_stage=cause.stage if cause else None,
        cause_class=verdict.error_class if verdict else None,
        blame=verdict.blame if verdict else None,
        trainable=(reason := _exclusion(attempt, verdict)) is None,
        exclusion_reason=reason,
        errors=tuple(_error(rules, each) for each in seen.errors),
        evidence=_written(attempt, evidence),
    )


def _cause(rules: RuleSet, seen: Observations) -> tuple[Observed | None, Verdict | None]:
    """What decided about the attempt. An ending that wasn't the policy's comes before the lack of
    a verdict, and that, where it wasn't the policy's either, before an ending that was."""
    found = [(each, _decide(rules, each)) for each in (seen.ending, seen.verdict) if each]
    excused = [pair for pair in found if pair[1].blame is not Blame.POLICY]
    return next(iter(excused or found), (None, None))


def _exclusion(attempt: Attempt, verdict: Verdict | None) -> ExclusionReason | None:
    if verdict is not None and verdict.error_class == NO_ACTIVITY:
        return ExclusionReason.NO_ACTIVITY
    if verdict is not None and verdict.blame is not Blame.POLICY:
        return _EXCLUDED_FOR[verdict.blame]
    reward = attempt.reward
    if reward is None or reward.value is None:
        return ExclusionReason.REWARD_MISSING
    return None


def _decide(rules: RuleSet, observed: Observed) -> Verdict:
    return rules.verdict(observed.kind, observed.stage, observed.signs)


def _error(rules: RuleSet, observed: Observed) -> ErrorJudgement:
    assert observed.fact is not None, "an error has a fact"
    assert observed.stage is not None, "an error's fact says where it was"
    verdict = _decide(rules, observed)
    return ErrorJudgement(
        observed.fact.event_id, observed.stage, verdict.error_class, verdict.blame
    )


def _written(attempt: Attempt, evidence: Evidence) -> tuple[str, ...]:
    lines = evidence.lines()
    if attempt.finished is None and attempt.abandoned is not None:
        lines.append(abandonment_line(attempt.abandoned))
    return tuple(lines)


def judgement_fact_fields(
    rules: RuleSet, attempt: Attempt, judgement: Judgement, previous: str | None = None
) -> dict[str, Any]:
    """The fields of a trajectory_judged fact, with ids, occurred_at (of what it derives from) and
    a derived event_id.

    `previous` is the event_id of the newest judgement of this attempt by this rule set, which says
    something else; null for the first. The same arguments give the same event_id, so a second run
    writes nothing new; and a judgement that is taken back gets an id that it never had before."""
    content = {
        "rule_set": rules.number,
        "outcome": judgement.outcome,
        "cause_stage": judgement.cause_stage,
        "cause_class": judgement.cause_class,
        "blame": judgement.blame,
        "trainable": judgement.trainable,
        "errors": list(judgement.errors),
        "evidence": list(judgement.evidence),
    }
    errors = [
        (each.error_event_id, each.stage, each.error_class, each.blame) for each in judgement.errors
    ]
    name = json.dumps([attempt.trajectory_id, previous, content | {"errors": errors}])
    at = attempt.finished.occurred_at if attempt.finished else attempt.last_occurred_at
    return {
        "event_id": str(uuid.uuid5(_IDS, name)),
        "run_id": attempt.run_id,
        "group_id": attempt.group_id,
        "slot": attempt.slot,
        "trajectory_id": attempt.trajectory_id,
        "occurred_at": at,
        "time_quality": TimeQuality.NONE if at is None else TimeQuality.DERIVED,
        **content,
    }
