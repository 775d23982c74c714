"""Run state -> what to append now. Pure, but for `GroupState.whole`, which remembers: looking
doesn't change the state.

Invariants:

1. A plan is about one cut: everything in it was decided by the same facts at the same time.
2. Groups that may not be decided for lack of room stay pending; nothing is lost by waiting.
3. Time alone ends something only while `now.settled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from consumers.assembling.batching import Dropped, NextBatch, Queued, next_batch, outdated_in
from consumers.assembling.context import Context, Hold, Refill, Verdict
from consumers.assembling.cut import Now
from consumers.assembling.decide import decide
from consumers.assembling.group_state import GroupState
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import Mode
from ledger.attempt import Attempt
from ledger.facts.lists import DropReason, GroupDecision, RunKind
from ledger.judgement import Evidence, RuleSet

DECISIONS_MAX = 500
"""Most groups decided at one cut, so that a transaction stays small."""


@dataclass(slots=True)
class Plan:
    """What to append at one cut."""

    verdicts: list[tuple[GroupState, Verdict]] = field(
        default_factory=list[tuple[GroupState, Verdict]]
    )
    """Groups that are closed."""
    refills: list[tuple[GroupState, Refill]] = field(
        default_factory=list[tuple[GroupState, Refill]]
    )
    """Attempts to ask for."""
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    """Groups that leave the queue for nothing."""
    batch: NextBatch | None = None
    unknown: list[str] = field(default_factory=list[str])
    """Groups that nobody opened before their deadline: forgotten, and nothing is recorded."""
    seen: list[str] = field(default_factory=list[str])
    """Groups that need no second look before something new comes."""
    unseen: list[str] = field(default_factory=list[str])
    """Groups that are due by the clock, and that the cut had no room to look at."""
    pending: list[str] = field(default_factory=list[str])
    """Groups that are complete, and that there is no room for."""
    timers: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """When to look again at which group."""

    def __bool__(self) -> bool:
        """Whether there is anything to append."""
        return bool(self.verdicts or self.refills or self.dropped or self.batch)


def context_of(
    state: RunState,
    rules: RuleSet,
    now: Now,
    silent: frozenset[str],
    evidence: Callable[[Attempt], Evidence] | None = None,
) -> Context:
    """What decisions at this moment depend on. Raises ValueError for a run without a kind."""
    if state.kind is None or state.kind is RunKind.SFT:
        raise ValueError(f"groups are decided in runs of kind train and eval, got {state.kind}")
    return Context(
        settings=state.settings,
        rules=rules,
        kind=state.kind,
        policy_version=state.versions.newest,
        orphaned=state.versions.orphaned,
        last_step=state.steps.last,
        now=now,
        silent=silent,
        last_seen_us=state.leases.last_seen_us,
        evidence=evidence or state.peers.evidence,
    )


def plan(state: RunState, context: Context, due: Iterable[str] = ()) -> Plan:
    """Look at the groups that something happened to, and at those that are `due` by the clock."""
    found, timed, room = Plan(), set(due), state.room
    sync = state.settings.mode is Mode.SYNC
    waiting = state.pending if room > 0 or sync else ()
    order = list(dict.fromkeys((*waiting, *state.touched, *sorted(timed))))
    for place, group_id in enumerate(order):
        if len(found.verdicts) >= DECISIONS_MAX:
            found.unseen = [each for each in order[place:] if each in timed]
            break
        group = state.groups.get(group_id)
        if group is None or group.opened is None:
            overdue = context.now.settled and (group is None or _overdue(group, context))
            if group_id in timed and overdue:
                found.unknown.append(group_id)
            found.seen.append(group_id)
            continue
        if group_id in state.queue:
            found.seen.append(group_id)
            continue
        answer = decide(group, state.tokens, context)
        if isinstance(answer, Hold):
            found.refills += [(group, refill) for refill in answer.refills]
            if answer.again_at_us is not None:
                found.timers.append((answer.again_at_us, group_id))
            found.seen.append(group_id)
        elif (
            answer.decision is not GroupDecision.BATCH
            or room > 0
            or (sync and _due_next(group, state.steps.last))
        ):
            room -= answer.decision is GroupDecision.BATCH
            found.verdicts.append((group, answer))
            found.seen.append(group_id)
        else:
            found.pending.append(group_id)
    found.batch, found.dropped = queue_at(state, context)
    if found.batch is not None:
        found.dropped += [Dropped(each, DropReason.OVER_SAMPLED) for each in found.batch.surplus]
    return found


def _overdue(group: GroupState, context: Context) -> bool:
    return context.now.us >= context.settings.deadline_us(group.first_log_time_us)


def _due_next(group: GroupState, last_step: int) -> bool:
    """Whether the next batch is for this group's step: there is always room for it, or groups of
    later steps could keep it out for ever."""
    step = group.opened.target_step if group.opened is not None else None
    return step is not None and step <= last_step + 1


def queue_at(state: RunState, context: Context) -> tuple[NextBatch | None, list[Dropped]]:
    """The batch that is next, and what leaves the queue before it as unfit for training."""
    queue, settings = sorted(state.queue.values(), key=_order), context.settings
    dropped = outdated_in(queue, context.policy_version, context.orphaned, settings)
    gone = {each.queued.group.group_id for each in dropped}
    left = [each for each in queue if each.group.group_id not in gone]
    untaken, counts = len(state.untaken), state.steps.counts
    return next_batch(left, state.steps.last, untaken, counts, settings), dropped


def _order(queued: Queued) -> tuple[object, str]:
    return queued.order


def refuse(found: Plan, group_id: str) -> None:
    """Drop a group of the planned batch, and plan no batch."""
    batch, found.batch = found.batch, None
    assert batch is not None
    found.dropped = [each for each in found.dropped if each.queued not in batch.surplus]
    found.dropped += [
        Dropped(each, DropReason.REFUSED)
        for each in batch.groups
        if each.group.group_id == group_id
    ]


def looked(state: RunState, found: Plan) -> None:
    """Note what need not be looked at again. What was decided takes effect when it is read."""
    for group_id in found.seen:
        state.touched.pop(group_id, None)
        state.pending.pop(group_id, None)
    for group_id in found.pending:
        state.touched.pop(group_id, None)
        state.pending[group_id] = None
    state.timers.due_again(found.unseen)
    for again_at_us, group_id in found.timers:
        state.timers.look(again_at_us, group_id)
    for group, verdict in found.verdicts:
        state.problems += [verdict.detail] if verdict.detail else group.strays()
    for group_id in found.unknown:
        state.problems.append(
            f"group {group_id} must be opened by a group_opened, got none before its deadline:"
            " its attempts are never trained on"
        )
        state.close(group_id)
