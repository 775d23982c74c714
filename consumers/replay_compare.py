"""Recorded decisions against those that come out when they are made again at their cuts. Pure.

Invariant: everything that was recorded at a cut ends as equal, as differing with every field that
differs, or as not decided again with the reason. Nothing is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from consumers.assembling.batching import NextBatch
from consumers.assembling.context import Context, Hold
from consumers.assembling.decide import decide
from consumers.assembling.group_state import GroupState
from consumers.assembling.plan import queue_at
from consumers.assembling.publish import NO_ALGORITHM, batch_id_of
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import sha256_of
from consumers.folded_cuts import Moment
from consumers.recorded_cuts import AtCut
from ledger.facts import BatchAssembled, GroupDecided, Member
from ledger.facts.lists import DropReason, GroupDecision, RunKind
from ledger.log import TopicPartition

Starts = Mapping[TopicPartition, int]
"""Where topic `tokens` begins; above 0, payloads have left the log."""

HELD = "it is held"
NOTHING = "nothing"
"""In place of what one of two sides doesn't have."""

_TIMELESS = (
    "time ended it, and facts before its cut are dated after it here: a copy's times are its own"
)


class Difference(NamedTuple):
    """A field that came out otherwise."""

    step: int | None
    """Of the batch; null for groups and members."""
    group_id: str | None
    """Null for batches."""
    trajectory_id: str | None
    """The member; null for batches and groups."""
    field: str
    recorded: Any
    recomputed: Any


class Gone(NamedTuple):
    """What can't be decided again."""

    step: int | None
    group_id: str | None
    why: str


@dataclass(slots=True)
class Tally:
    """How many came out how."""

    equal: int = 0
    differing: int = 0
    gone: int = 0
    """Not decided again: what they depend on isn't there."""

    def count(self, differs: bool) -> None:
        """One more was decided again."""
        self.differing += differs
        self.equal += not differs


@dataclass(slots=True)
class Replayed:
    """What deciding a run again came to."""

    run_id: str
    batches: Tally = field(default_factory=Tally)
    groups: Tally = field(default_factory=Tally)
    """Decisions: a group that was decided, and dropped later, counts twice."""
    members: Tally = field(default_factory=Tally)
    differences: list[Difference] = field(default_factory=list[Difference])
    gone: list[Gone] = field(default_factory=list[Gone])

    @property
    def same(self) -> bool:
        """Whether all was decided again, and came out the same."""
        return not self.differences and not self.gone


def give_up(recorded: AtCut, why: str, replayed: Replayed) -> None:
    """Nothing of a cut can be decided again."""
    for fact in recorded.decisions:
        _group_gone(fact, why, replayed)
    for fact in recorded.batches:
        replayed.batches.gone += 1
        replayed.gone.append(Gone(fact.step, None, why))


def compare_groups(moment: Moment, starts: Starts, replayed: Replayed) -> None:
    """Decide the groups of a cut again."""
    context = moment.context(moment.settings)
    dropped = _dropped_again(moment, context)
    for fact in moment.recorded.decisions:
        found = _decided_again(moment.state, fact, context, dropped)
        if found == HELD and moment.timeless:
            _group_gone(fact, _TIMELESS, replayed)
            continue
        differences = [
            Difference(None, fact.group_id, trajectory_id, name, recorded, recomputed)
            for trajectory_id, name, recorded, recomputed in _differences(fact, found)
        ]
        group = moment.state.groups.get(fact.group_id)
        if differences and group is not None:
            lost = payload_gone(moment.state, group, starts)
            if lost is not None:
                _group_gone(fact, lost, replayed)
                continue
        differences += [
            Difference(None, fact.group_id, None, *each) for each in _cut_differences(moment, fact)
        ]
        replayed.differences += differences
        replayed.groups.count(bool(differences))
        differing = {each.trajectory_id for each in differences}
        for member in fact.members:
            replayed.members.count(member.trajectory_id in differing)


def batch_again(moment: Moment) -> NextBatch | None:
    """The batch that is next at a cut."""
    batch, _ = queue_at(moment.state, moment.context(moment.settings))
    return batch


def compare_batch(
    moment: Moment, fact: BatchAssembled, batch: NextBatch | None
) -> list[Difference]:
    """What `batch_assembled` says against the batch that is next at its cut."""
    if batch is None:
        return [Difference(fact.step, None, None, "batch", fact.batch_id, NOTHING)]
    configuration_sha256 = sha256_of(moment.recorded.cut.configuration)
    sha256 = batch.sha256(configuration_sha256)
    lag_min, lag_max = batch.lags(moment.state.versions.newest)
    found = {
        "batch_sha256": sha256,
        "batch_id": batch_id_of(fact.run_id, sha256),
        "step": batch.step,
        "group_ids": [each.group.group_id for each in batch.groups],
        "lag_min": lag_min,
        "lag_max": lag_max,
        "ready_at": batch.ready_at,
    }
    return [
        Difference(fact.step, None, None, name, recorded, again)
        for name, again in found.items()
        if (recorded := getattr(fact, name)) != again
    ]


def payload_gone(state: RunState, group: GroupState, starts: Starts) -> str | None:
    """Which payload of a group has left the log; null: none that its turns name."""
    place = TopicPartition("tokens", group.partition)
    if not starts.get(place):
        return None
    for attempt in group.attempts.values():
        for turn in attempt.turns:
            sha256 = turn.tokens_sha256
            if sha256 is not None and not state.tokens.known(group.group_id, sha256):
                return (
                    f"the payload of trajectory {attempt.trajectory_id} turn {turn.turn_no} is"
                    f" not in the log, where {place} begins at {starts[place]}"
                )
    return None


def _group_gone(fact: GroupDecided, why: str, replayed: Replayed) -> None:
    replayed.groups.gone += 1
    replayed.members.gone += len(fact.members)
    replayed.gone.append(Gone(None, fact.group_id, why))


def _decided_again(
    state: RunState, fact: GroupDecided, context: Context, dropped: Mapping[str, DropReason]
) -> dict[str, Any] | str:
    """What a decision says when it is made again, by field; or why there is none."""
    queued = state.queue.get(fact.group_id)
    if queued is not None:
        before = queued.decided
        reason = dropped.get(fact.group_id)
        if fact.drop_reason is DropReason.REFUSED:
            # Its payloads had left the log when its batch was put together: no cut says that.
            reason = fact.drop_reason
        if reason is None:
            return "it stays in the queue"
        members = [replace(member, advantage=None) for member in before.members]
        return _fields(GroupDecision.DROPPED, reason, members, before.mean, before.std)
    group = state.groups.get(fact.group_id)
    if group is None:
        return "the group was closed before"
    answer = decide(group, state.tokens, context)
    if isinstance(answer, Hold):
        return HELD
    return _fields(answer.decision, answer.drop_reason, answer.members, answer.mean, answer.std)


def _dropped_again(moment: Moment, context: Context) -> dict[str, DropReason]:
    """Queued group -> why it is dropped; looked for only where a queued group was decided again."""
    queue = moment.state.queue
    if not any(fact.group_id in queue for fact in moment.recorded.decisions):
        return {}
    batch, dropped = queue_at(moment.state, context)
    reasons = {each.queued.group.group_id: each.reason for each in dropped}
    surplus = () if batch is None else batch.surplus
    return reasons | {each.group.group_id: DropReason.OVER_SAMPLED for each in surplus}


def _fields(
    decision: GroupDecision,
    drop_reason: DropReason | None,
    members: Iterable[Member],
    mean: float | None,
    std: float | None,
) -> dict[str, Any]:
    return {
        "decision": decision,
        "drop_reason": drop_reason,
        "mean": mean,
        "std": std,
        "members": list(members),
    }


def _differences(
    fact: GroupDecided, found: dict[str, Any] | str
) -> Iterable[tuple[str | None, str, Any, Any]]:
    """(trajectory or null, field, recorded, recomputed)"""
    if isinstance(found, str):
        yield None, "decision", str(fact.decision), found
        return
    for name in ("decision", "drop_reason", "mean", "std"):
        if getattr(fact, name) != found[name]:
            yield None, name, getattr(fact, name), found[name]
    yield from member_differences(fact.members, found["members"])


def member_differences(
    recorded: Iterable[Member], found: Iterable[Member]
) -> Iterable[tuple[str | None, str, Any, Any]]:
    """(trajectory, field, recorded, recomputed) of members that differ."""
    before = {each.trajectory_id: each for each in recorded}
    after = {each.trajectory_id: each for each in found}
    for trajectory_id in dict.fromkeys((*before, *after)):
        one, other = before.get(trajectory_id), after.get(trajectory_id)
        if one is None or other is None:
            yield trajectory_id, "member", one and "a member", other and "a member"
            continue
        for each in fields(Member):
            if getattr(one, each.name) != getattr(other, each.name):
                yield trajectory_id, each.name, getattr(one, each.name), getattr(other, each.name)


def _cut_differences(moment: Moment, fact: GroupDecided) -> Iterable[tuple[str, Any, Any]]:
    """What the decision says of the rules it was made by."""
    cut, settings = fact.cut, moment.settings
    rule_set, algorithm = settings.rules, str(settings.algorithm)
    if moment.state.kind is RunKind.EVAL:
        algorithm = NO_ALGORITHM
    if (queued := moment.state.queue.get(fact.group_id)) is not None:
        rule_set, algorithm = queued.decided.rule_set, queued.decided.algorithm
    newest = moment.state.versions.newest
    for name, recorded, recomputed in (
        ("rule_set", fact.rule_set, rule_set),
        ("algorithm", fact.algorithm, algorithm),
        ("cut.policy_version", cut.policy_version, newest),
        ("cut.configuration_sha256", cut.configuration_sha256, sha256_of(cut.configuration)),
    ):
        if recorded != recomputed:
            yield name, recorded, recomputed
