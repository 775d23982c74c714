"""One group, now: hold it, or say who votes and what becomes of it. Pure, but for
`GroupState.whole`, which remembers.

A group is decided once each slot is settled, or at its deadline. A slot is settled when every
attempt in it has ended and is complete by the counts that `trajectory_finished` declares and by
its token payloads, or when nobody is left who could go on with it (its producers' leases ran out).
Under `refill`, a slot whose attempts all fell away through no fault of the policy asks for another
attempt first.

Invariants:

1. The answer depends on the group's facts and the context only, and not on the order in which
   the facts were read. The context is in the decision's cut.
2. A member votes if its attempt is the first valid one of its slot. Who doesn't vote is in neither
   mean nor std nor the zero-variance test.
3. A group with a problem of its own is refused by name, and never becomes part of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from consumers.assembling.context import Context, Hold, Judged, Refill, Verdict
from consumers.assembling.group_state import GroupState
from consumers.assembling.members import gone, judge_attempt, refused, verdict
from consumers.assembling.settings import OnFailure
from consumers.assembling.token_index import TokenIndex
from ledger.attempt import Attempt
from ledger.facts.lists import ExclusionReason, RunKind

REFILLABLE = frozenset(
    {
        ExclusionReason.INFRASTRUCTURE,
        ExclusionReason.SCHEDULER,
        ExclusionReason.VERIFIER,
        ExclusionReason.UNKNOWN,
        ExclusionReason.REWARD_MISSING,
        ExclusionReason.TOKENS_MISSING,
    }
)
"""Another attempt may do better. It would not where the task is at fault."""


def decide(group: GroupState, tokens: TokenIndex, context: Context) -> Verdict | Hold:
    """Decide a group, or say what it waits for."""
    if group.opened is None:
        return Hold()
    if (detail := problem_of(group, context)) is not None:
        return refused(group, detail)
    due = context.settings.deadline_us(group.first_log_time_us)
    overdue = context.now.settled and context.now.us >= due
    slots = group.in_slots()
    settled = [overdue or _settled(group, slot, tokens, context) for slot in slots]
    refilling = context.settings.on_infra_failure is OnFailure.REFILL and not overdue
    if not refilling and not all(settled):
        return Hold()
    judged = [
        [judge_attempt(group, attempt, tokens, context) for attempt in slot] if done else []
        for slot, done in zip(slots, settled, strict=True)
    ]
    again = _evidence_due(judged, context)
    if again is not None and not overdue:
        return Hold(again_at_us=again)
    if refilling:
        refills, waits = _refills(group, judged, settled, context)
        if refills or waits:
            return Hold(refills)
    return verdict(group, slots, judged, context)


def problem_of(group: GroupState, context: Context) -> str | None:
    """Why a group can never be trained on, whatever its attempts do; null when it can."""
    settings, opened = context.settings, group.opened
    assert opened is not None
    size, where = opened.expected_size, f"group {group.group_id}"
    if group.problem is not None:
        return group.problem
    training = context.kind is RunKind.TRAIN
    least = 2 if training else 1
    if size < least:
        return f"group_size must be at least {least}, got {size} ({where})"
    if settings.group_size is not None and size != settings.group_size:
        return f"group_size must be {settings.group_size}, got {size} ({where})"
    if training and settings.votes_due(size) > size:
        return (
            f"min_valid must be at most the group's size {size}, got {settings.min_valid} ({where})"
        )
    return None


def _settled(group: GroupState, slot: list[Attempt], tokens: TokenIndex, context: Context) -> bool:
    """Whether nothing more is to come for a slot."""
    if not slot:
        opened = group.opened
        return opened is not None and opened.incarnation in context.silent
    return all(
        _whole(group, attempt, tokens, context) or gone(group, attempt, context) for attempt in slot
    )


def _whole(group: GroupState, attempt: Attempt, tokens: TokenIndex, context: Context) -> bool:
    """Whether an attempt has ended and everything it declares has been read."""
    if attempt.trajectory_id in group.whole:
        return True
    if not attempt.complete:
        return False
    if context.kind is RunKind.TRAIN and not all(
        tokens.known(group.group_id, turn.tokens_sha256)
        for turn in attempt.turns
        if turn.tokens_sha256 is not None
    ):
        return False
    group.whole.add(attempt.trajectory_id)
    return True


def _evidence_due(judged: Sequence[Sequence[Judged | None]], context: Context) -> int | None:
    """When enough time has passed for what peers say of the members' errors; null: it has.
    Evidence only excuses, so an attempt that is excused already waits for nothing."""
    wait_us = int(context.settings.evidence_wait_s * 1e6)
    due = max(
        (
            each.attempt.last_log_time_us + wait_us
            for slot in judged
            for each in slot
            if each is not None
            and each.judgement.exclusion_reason is None
            and (each.attempt.sandbox_failed or each.attempt.turns_failed)
        ),
        default=0,
    )
    return due if due > context.now.us else None


def _refills(
    group: GroupState,
    judged: Sequence[Sequence[Judged | None]],
    settled: Sequence[bool],
    context: Context,
) -> tuple[tuple[Refill, ...], bool]:
    """Attempts to ask for, and whether any slot is waited for."""
    refills: list[Refill] = []
    waits = False
    opened = group.opened
    nobody = opened is None or opened.incarnation in context.silent
    for slot, done in zip(judged, settled, strict=True):
        if not done:
            waits = True
            continue
        last = slot[-1] if slot else None
        if last is None or nobody or len(slot) > context.settings.max_refills:
            continue
        if any(each is not None and each.exclusion is None for each in slot):
            continue
        if last.exclusion is None or last.exclusion not in REFILLABLE:
            continue
        waits = True
        if last.attempt.trajectory_id not in group.refills:
            refills.append(Refill(last, len(slot), last.exclusion))
    return tuple(refills), waits
