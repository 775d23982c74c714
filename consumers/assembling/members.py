"""Who of a group votes, and what becomes of it when it is closed. Pure.

Invariants:

1. A member votes if its attempt is the first valid one of its slot. Who doesn't vote is in neither
   mean nor std nor the zero-variance test.
2. A masked member votes, and none of its tokens is trained on.
3. Of a group that is dropped no member has an advantage.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from consumers.advantages import advantages, mean_and_std, usable_reward, zero_variance
from consumers.assembling.context import Context, Judged, Verdict, Versions
from consumers.assembling.group_state import GroupState
from consumers.assembling.settings import (
    AssemblerSettings,
    OnFailure,
    Orphaned,
    Overlong,
    OverSampling,
)
from consumers.assembling.token_index import TokenIndex
from ledger.attempt import Abandonment, Attempt
from ledger.facts import Member
from ledger.facts.lists import DropReason, ExclusionReason, GroupDecision, Outcome, RunKind
from ledger.judgement import judge


def verdict(
    group: GroupState,
    slots: Sequence[Sequence[Attempt]],
    judged: Sequence[Sequence[Judged | None]],
    context: Context,
) -> Verdict:
    """What becomes of a closed group. `judged` has null for attempts that still run."""
    members = [
        member
        for attempts, verdicts in zip(slots, judged, strict=True)
        for member in _members(attempts, verdicts, context)
    ]
    rewards = [each.reward for each in members if each.votes and each.reward is not None]
    mean, std = mean_and_std(rewards)
    decision, reason = GroupDecision.EVALUATED, None
    if context.kind is RunKind.TRAIN:
        reason = _drop_reason(group, members, rewards, context)
        decision = GroupDecision.BATCH if reason is None else GroupDecision.DROPPED
    if decision is GroupDecision.BATCH:
        scores = iter(advantages(context.settings.algorithm, rewards))
        members = [
            replace(each, advantage=next(scores)) if each.votes else each for each in members
        ]
    ended = tuple(each for verdicts in judged for each in verdicts if each is not None)
    return Verdict(decision, reason, tuple(members), mean, std, ended)


def refused(group: GroupState, detail: str) -> Verdict:
    """A group that can never be trained on. Nobody votes."""
    members = [
        _member(attempt, None, ExclusionReason.UNKNOWN, masked=False)
        for attempt in sorted(
            group.attempts.values(), key=lambda each: (each.slot, each.trajectory_id)
        )
    ]
    return Verdict(
        GroupDecision.DROPPED, DropReason.REFUSED, tuple(members), None, None, detail=detail
    )


def _members(
    attempts: Sequence[Attempt], verdicts: Sequence[Judged | None], context: Context
) -> list[Member]:
    """Members of one slot."""
    members: list[Member] = []
    voted = False
    for attempt, judged in zip(attempts, verdicts, strict=True):
        exclusion = ExclusionReason.LATE if judged is None else judged.exclusion
        if exclusion is None and voted:
            exclusion = ExclusionReason.SUPERSEDED
        voted = voted or exclusion is None
        masked = (
            exclusion is None
            and judged is not None
            and context.kind is RunKind.TRAIN
            and context.settings.overlong is Overlong.MASK
            and judged.judgement.outcome is Outcome.TRUNCATED
        )
        members.append(_member(attempt, judged, exclusion, masked=masked))
    return members


def _member(
    attempt: Attempt, judged: Judged | None, exclusion: ExclusionReason | None, *, masked: bool
) -> Member:
    reward = attempt.reward
    return Member(
        slot=attempt.slot,
        trajectory_id=attempt.trajectory_id,
        reward_event_id=None if reward is None else reward.event_id,
        reward=reward.value if reward is not None and usable_reward(reward.value) else None,
        votes=exclusion is None,
        exclusion_reason=exclusion,
        masked=masked,
        advantage=None,
        tokens_verified=judged is not None and judged.tokens_verified,
    )


def _drop_reason(
    group: GroupState, members: Sequence[Member], rewards: Sequence[float], context: Context
) -> DropReason | None:
    """Why a training run can't use the group; null when it can. What was never of use comes before
    what has only become too old."""
    settings, opened = context.settings, group.opened
    assert opened is not None
    size = opened.expected_size
    if settings.on_infra_failure is OnFailure.DROP_GROUP and len(rewards) < size:
        return DropReason.GROUP_POLICY
    if len(rewards) < settings.votes_due(size):
        return DropReason.TOO_FEW_VALID
    if zero_variance(rewards):
        return DropReason.ZERO_VARIANCE
    if all(each.masked for each in members if each.votes):
        return DropReason.GROUP_POLICY
    step = opened.target_step
    if settings.over_sampling is OverSampling.FIRST_K and step and step <= context.last_step:
        return DropReason.OVER_SAMPLED
    versions = versions_of(group, members)
    return outdated(versions, context.policy_version, context.orphaned, settings)


def outdated(
    versions: Versions | None,
    policy_version: int | None,
    orphaned: Set[int],
    settings: AssemblerSettings,
) -> DropReason | None:
    """Why tokens of these versions aren't fit for training, or not any more; null when they are."""
    if versions is None:
        return None
    if settings.orphaned is Orphaned.DROP and not versions.all.isdisjoint(orphaned):
        return DropReason.ORPHANED_VERSION
    # The step trains from the newest version or from a later one: whoever takes it looks again.
    lag = 0 if policy_version is None else policy_version - versions.oldest
    return DropReason.STALE if lag > settings.staleness_bound else None


def versions_of(group: GroupState, members: Sequence[Member]) -> Versions | None:
    """Versions of the tokens that would be trained on; null: there is no token.

    A turn whose versions nobody told is taken for as old as it can be: the version when the group
    was submitted, or 0."""
    opened = group.opened
    submitted = (opened.policy_version if opened is not None else None) or 0
    found: set[int] = set()
    for member in members:
        attempt = group.attempts.get(member.trajectory_id)
        if attempt is None or not member.votes or member.masked:
            continue
        spans = group.spans.get(member.trajectory_id, {})
        for turn in attempt.turns:
            if turn.completion_tokens != 0:
                told = spans.get(turn.turn_no, ())
                found.update([version for version, _, _ in told] or [submitted])
    return Versions(min(found), max(found), frozenset(found)) if found else None


def gone(group: GroupState, attempt: Attempt, context: Context) -> bool:
    """Whether everybody who wrote of an attempt has fallen silent."""
    return all(writer in context.silent for writer in group.writers[attempt.trajectory_id])


def judge_attempt(
    group: GroupState, attempt: Attempt, tokens: TokenIndex, context: Context
) -> Judged | None:
    """What the rules say of an attempt; null while it runs (at the group's deadline)."""
    if not attempt.ended:
        if not gone(group, attempt, context):
            return None
        seen = max(
            context.last_seen_us.get(each, 0) for each in group.writers[attempt.trajectory_id]
        )
        silent_s = (context.now.us - max(seen, attempt.last_log_time_us)) / 1e6
        attempt = attempt.abandon(Abandonment(silent_s, producer_silent=True))
    judgement = judge(context.rules, attempt, context.evidence(attempt))
    verified = all(
        turn.tokens_sha256 is not None and tokens.verified(group.group_id, turn.tokens_sha256)
        for turn in attempt.turns
    )
    exclusion = judgement.exclusion_reason
    if exclusion is None:
        reward = attempt.reward
        training = context.kind is RunKind.TRAIN
        if reward is None or not usable_reward(reward.value):
            exclusion = ExclusionReason.REWARD_MISSING
        elif not attempt.complete or (training and not (verified and attempt.turns)):
            exclusion = ExclusionReason.TOKENS_MISSING
    return Judged(attempt, judgement, exclusion, verified)
