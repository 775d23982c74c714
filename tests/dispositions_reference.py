"""What each slot of a group has come to: exactly one disposition, after every prefix of its facts.

The reference for `dispositions.sql`, from facts alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from ledger.facts import (
    BatchAssembled,
    BatchRefused,
    Fact,
    GroupDecided,
    GroupOpened,
    Member,
    StepCompleted,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
)
from ledger.facts.lists import GroupDecision, Outcome


class Disposition(StrEnum):
    """What a slot has come to."""

    NEVER_STARTED = "never_started"
    IN_FLIGHT = "in_flight"
    PENDING = "pending"  # its newest attempt has ended, and the group isn't decided
    DECIDED = "decided"  # for a batch that isn't trained on yet
    TRAINED = "trained"
    MASKED = "masked"
    EVALUATED = "evaluated"
    EXCLUDED = "excluded"
    DROPPED = "dropped"
    ABANDONED = "abandoned"


def dispositions(facts: Iterable[Fact]) -> list[Disposition]:
    """(expected_size,) of one group, from its facts and those about batches and steps, in the
    order read. Empty until the group is opened."""
    opened: GroupOpened | None = None
    decided: GroupDecided | None = None
    attempts: dict[int, list[str]] = {}
    ended: set[str] = set()
    abandoned: set[str] = set()
    groups: dict[str, list[str]] = {}
    trained: set[str] = set()
    refused: set[str] = set()
    for fact in facts:
        if isinstance(fact, GroupOpened):
            opened = opened or fact
        elif isinstance(fact, GroupDecided):
            decided = fact
        elif isinstance(fact, TrajectoryStarted):
            attempts.setdefault(fact.slot, []).append(fact.trajectory_id)
        elif isinstance(fact, TrajectoryFinished):
            ended.add(fact.trajectory_id)
        elif isinstance(fact, TrajectoryJudged):
            ended.add(fact.trajectory_id)
            if fact.outcome is Outcome.ABANDONED:
                abandoned.add(fact.trajectory_id)
        elif isinstance(fact, BatchAssembled):
            groups[fact.batch_id] = fact.group_ids
        elif isinstance(fact, StepCompleted):
            trained.update(groups.get(fact.batch_id or "", ()))
        elif isinstance(fact, BatchRefused):
            refused.update(groups.get(fact.batch_id, ()))
    if opened is None:
        return []
    slots = range(opened.expected_size)
    if decided is None:
        return [_undecided(attempts.get(slot, []), ended) for slot in slots]
    found: list[Disposition] = []
    for slot in slots:
        members = [member for member in decided.members if member.slot == slot]
        if not members and slot in attempts:
            found.append(Disposition.EXCLUDED)  # it began when the group had been decided
            continue
        group_id = decided.group_id
        found.append(
            _decided(decided, members, abandoned, group_id in trained, group_id in refused)
        )
    return found


def _undecided(attempts: list[str], ended: set[str]) -> Disposition:
    if not attempts:
        return Disposition.NEVER_STARTED
    return Disposition.PENDING if attempts[-1] in ended else Disposition.IN_FLIGHT


def _decided(
    decided: GroupDecided,
    members: list[Member],
    abandoned: set[str],
    trained: bool,
    refused: bool,
) -> Disposition:
    voter = next((member for member in members if member.votes), None)
    if voter is None:
        return _without_vote(members, abandoned)
    if decided.decision is GroupDecision.EVALUATED:
        return Disposition.EVALUATED
    if decided.decision is GroupDecision.DROPPED or refused:
        return Disposition.DROPPED
    if voter.masked:
        return Disposition.MASKED
    return Disposition.TRAINED if trained else Disposition.DECIDED


def _without_vote(members: list[Member], abandoned: set[str]) -> Disposition:
    if not members:
        return Disposition.NEVER_STARTED
    lost = members[-1].trajectory_id in abandoned
    return Disposition.ABANDONED if lost else Disposition.EXCLUDED
