"""Judgement: outcome x cause x blame of an ended attempt, from raw facts, by a numbered rule set.

    rules = load_rules(1)
    peers = Peers()                       # sees every fact that the caller reads
    judgement = judge(rules, attempt, peers.evidence(attempt))
    fields = judgement_fact_fields(rules, attempt, judgement)   # a trajectory_judged fact

Invariants:

1. `judge` is pure: what it says depends on the rule set, the attempt's facts in any order, and the
   evidence, which is written out in the fact.
2. `trainable` if and only if `exclusion_reason` is null.
3. What no rule names is `unknown`, and unknown never votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.attempt import Attempt
from ledger.facts import ErrorJudgement
from ledger.facts.lists import Blame, ExclusionReason, Outcome, Stage
from ledger.judging.evidence import Evidence

__all__ = [
    "Evidence",
    "Judgement",
    "Peers",
    "RuleSet",
    "judge",
    "judgement_fact_fields",
    "load_rules",
    "newest_rules",
]


class RuleSet:
    """A numbered rule set (`number`, `name`)."""

    number: int
    name: str


class Peers:
    """What other attempts and the tasks' own trials say; shown every fact."""

    def see(self, fact: Any) -> None:
        """Remember a fact that may be evidence; others are passed over. Order and repetition
        don't matter."""
        raise NotImplementedError

    def evidence(self, attempt: Attempt) -> Evidence:
        """What has been seen around this attempt's errors; empty when it had none."""
        raise NotImplementedError

    def forget_before(self, time_us: int) -> None:
        """Drop what happened before a time, in microseconds since the epoch."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule set says of one ended attempt."""

    outcome: Outcome
    """How it ended."""
    cause_stage: Stage | None
    """Where what ended or spoiled it happened; null when nothing failed."""
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


def load_rules(number: int) -> RuleSet:
    """The rule set of this number. Raises RulesError, which names file and key."""
    raise NotImplementedError


def newest_rules() -> RuleSet:
    """The rule set that is used where none is named."""
    raise NotImplementedError


def judge(rules: RuleSet, attempt: Attempt, evidence: Evidence) -> Judgement:
    """Judge an ended attempt. Raises ValueError for one that hasn't ended."""
    raise NotImplementedError


def judgement_fact_fields(
    rules: RuleSet, attempt: Attempt, judgement: Judgement, previous: str | None = None
) -> dict[str, Any]:
    """The fields of a trajectory_judged fact, with ids, occurred_at (of what it derives from) and
    a derived event_id.

    `previous` is the event_id of the newest judgement of this attempt by this rule set whose
    content differs; null for the first. The same arguments give the same event_id."""
    raise NotImplementedError
