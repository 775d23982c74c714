"""One run, as far as its log has been read: the fold behind every decision of the assembler.

Invariants:

1. The state changes by what is read from the log and by nothing else; what the assembler itself
   recorded counts once it is read back. So living through a run and reading it again after a
   restart are the same thing, and a recorded decision is never taken twice. The exception: groups
   that nobody opened are closed by the clock (`plan.looked`), of which nothing is recorded.
2. What comes about a group that is closed is late: it changes nothing.
3. Work for one fact doesn't grow with the number of open groups.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from consumers.assembling.batching import Queued
from consumers.assembling.cut import LogClock, Now, moment
from consumers.assembling.group_state import GroupState, problem_of_reward
from consumers.assembling.leases import Leases
from consumers.assembling.low_water import Assembled, LowWater
from consumers.assembling.members import versions_of
from consumers.assembling.settings import AssemblerSettings
from consumers.assembling.steps import Steps
from consumers.assembling.timers import Timers
from consumers.assembling.token_index import TokenIndex
from consumers.assembling.versions import PolicyVersions
from ledger.attempt import BadFact
from ledger.facts import (
    BatchAssembled,
    BatchRefused,
    Fact,
    GroupDecided,
    GroupFact,
    GroupOpened,
    ProducerClosed,
    RewardAssigned,
    RunDeclared,
    StepCompleted,
    TaskValidated,
    TrainerStarted,
    TrajectoryFact,
    WeightsOrphaned,
    WeightsPublished,
)
from ledger.facts.lists import GroupDecision, RunKind
from ledger.judgement import Peers
from ledger.log import Positions, TopicPartition
from ledger.tokens import TurnTokens
from ledger.wire.checks import to_micros

CLOSED_KEPT = 200_000
"""Groups remembered as closed, so that what comes late is known to be late."""
EVIDENCE_KEPT_US = 3600 * 1_000_000
"""How long errors are kept as evidence. By producers' clocks, which may differ from the log's."""


class RunState:
    """The fold of one run."""

    def __init__(self, run_id: str, settings: AssemblerSettings, peers: Peers) -> None:
        self.run_id = run_id
        self.settings = settings
        self.model: str | None = None
        self.kind: RunKind | None = None  # its declaration hasn't been read
        self.groups: dict[str, GroupState] = {}
        """Open and queued ones."""
        self.queue: dict[str, Queued] = {}
        """Decided for a batch, in none yet."""
        self.batches: dict[str, Assembled] = {}
        """By id, in the order of their steps; those that still matter."""
        self.steps = Steps()
        self.tokens = TokenIndex(settings.vocabulary_size)
        self.peers = peers
        self.leases = Leases()
        self.clock = LogClock()
        self.low_water = LowWater()
        self.touched: dict[str, None] = {}
        """Groups to look at, in the order in which something happened to them."""
        self.pending: dict[str, None] = {}
        """Groups that are complete and wait for room, in order."""
        self.timers = Timers()
        self.problems: list[str] = []
        """What was refused since this was last emptied: value, rule and place."""
        self.late = 0
        """Facts about groups that were closed already."""
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._done_at: deque[tuple[int, str]] = deque()
        self.versions = PolicyVersions()
        self._place, self._offset = TopicPartition("events", 0), 0

    @property
    def untaken(self) -> list[Assembled]:
        """Batches that the trainer hasn't trained on."""
        return [batch for batch in self.batches.values() if not batch.taken]

    @property
    def room(self) -> int:
        """How many further groups may be decided for a batch."""
        waiting = len(self.queue) + sum(len(batch.fact.group_ids) for batch in self.untaken)
        return self.settings.untaken_groups_bound - waiting

    def take_event(self, partition: int, offset: int, log_time_us: int, fact: Fact) -> None:
        """A fact was read; of other runs only that its producer lives."""
        self.clock.read(log_time_us)
        self._place, self._offset = TopicPartition("events", partition), offset
        self.leases.seen(fact.incarnation, log_time_us)
        if isinstance(fact, ProducerClosed):
            self.leases.closed(fact.incarnation)
        if fact.run_id != self.run_id:
            return
        self.peers.see(fact)
        if isinstance(fact, GroupFact):
            self._take_group_fact(fact, log_time_us)
        elif (take := _OF_RUN.get(type(fact))) is not None:
            take(self, fact)

    def take_tokens(
        self, partition: int, offset: int, log_time_us: int, payload: TurnTokens
    ) -> None:
        """A payload was read."""
        group_id = payload.group_id
        if payload.run_id != self.run_id or group_id in self._closed:
            return
        if group_id not in self.groups and self.tokens.first_offset(group_id) is None:
            self._look_at_deadline(group_id, log_time_us)
        if (problem := self.tokens.add(partition, offset, payload)) is not None:
            self.problems.append(f"{problem} (tokens/{partition} offset {offset})")
        self.low_water.hold(group_id, TopicPartition("tokens", partition), offset)
        if group_id in self.groups:
            self.touched[group_id] = None

    def close(self, group_id: str) -> None:
        """A group is done with: in a batch, dropped, evaluated, or never opened."""
        group = self.groups.pop(group_id, None)
        self.queue.pop(group_id, None)
        self.touched.pop(group_id, None)
        self.pending.pop(group_id, None)
        payload = self.tokens.first_offset(group_id)
        self.tokens.forget(group_id)
        self._closed[group_id] = None
        self._done_at.append((self.clock.us, group_id))
        while len(self._closed) > CLOSED_KEPT:
            self._closed.popitem(last=False)
        if group is not None:
            self.leases.release(group_id)
            self._release(group)
        elif payload is not None:
            self.low_water.release(group_id, payload[0])

    def _take_group_fact(self, fact: GroupFact, log_time_us: int) -> None:
        group_id = fact.group_id
        if group_id in self._closed:
            self._late(fact)
            return
        group = self.groups.get(group_id)
        if group is None:
            group = GroupState(group_id, self._place.partition, self._offset, log_time_us)
            self.groups[group_id] = group
            self.low_water.hold(group_id, self._place, self._offset)
            self._look_at_deadline(group_id, log_time_us)
        if isinstance(fact, GroupDecided):
            self._decided(group, fact)
            return
        if group_id in self.queue:
            self.late += 1
            return
        self.leases.seen(fact.incarnation, log_time_us, group_id)
        if isinstance(fact, RewardAssigned) and (problem := problem_of_reward(fact)):
            self.problems.append(f"{problem} ({self._place} offset {self._offset})")
        try:
            if isinstance(fact, GroupOpened):
                self._opened(group, fact)
            elif isinstance(fact, TrajectoryFact) and group.take(
                fact, log_time_us, self.settings.rules
            ):
                self.touched[group_id] = None
        except BadFact as error:
            self.problems.append(f"{error} ({self._place} offset {self._offset})")

    def _opened(self, group: GroupState, fact: GroupOpened) -> None:
        if group.opened is None:
            self.steps.opened(fact.target_step)
        group.open(fact)
        self.touched[group.group_id] = None

    def _decided(self, group: GroupState, fact: GroupDecided) -> None:
        self.clock.read(to_micros(fact.cut.log_time))
        if group.opened is not None and group.group_id not in self.queue:
            self.steps.decided(group.opened.target_step)
        if fact.decision is GroupDecision.BATCH:
            versions = versions_of(group, fact.members)
            self.queue.setdefault(group.group_id, Queued(group, fact, self._offset, versions))
            self.touched.pop(group.group_id, None)
            self.pending.pop(group.group_id, None)
        else:
            self.close(group.group_id)

    def _late(self, fact: GroupFact) -> None:
        """About a group that is done with. A restart may read its batch before its decision."""
        if not isinstance(fact, GroupDecided):
            self.late += 1
            return
        for batch in self.batches.values():
            if fact.group_id in batch.fact.group_ids:
                batch.decided_at(self._place.partition, self._offset)

    def _release(self, group: GroupState) -> None:
        """A restart needn't read a closed group, unless to see that its step gets no more."""
        step = group.opened.target_step if group.opened is not None else None
        kept = self.settings.short_batches and self.steps.keep(
            step, group.group_id, group.partition
        )
        if not kept:
            self.low_water.release(group.group_id, group.partition)

    def _look_at_deadline(self, group_id: str, since_us: int) -> None:
        self.timers.deadline(self.settings.deadline_us(since_us), group_id)

    def resume(self, newest: BatchAssembled) -> None:
        """What the newest batch says of all that came before it."""
        self.kind = self.kind or RunKind.TRAIN
        self.model = self.model or newest.model
        for group_id, partition in self.steps.batched(newest.step or 0):
            self.low_water.release(group_id, partition)
        self.clock.read(to_micros(newest.cut.log_time))
        if newest.cut.policy_version is not None:
            self.versions.published(newest.cut.policy_version)

    def _declared(self, fact: RunDeclared) -> None:
        self.kind, self.model = fact.kind, fact.model

    def _assembled(self, fact: BatchAssembled) -> None:
        self.resume(fact)
        batch = Assembled(fact, self._place, self._offset)
        for group_id in fact.group_ids:
            if (queued := self.queue.get(group_id)) is not None:
                batch.decided_at(queued.group.partition, queued.offset)
            self.close(group_id)
        self.batches[fact.batch_id] = batch

    def _taken(self, fact: StepCompleted | BatchRefused) -> None:
        if (batch := self.batches.get(fact.batch_id or "")) is not None:
            batch.taken = True

    def due(self, now: Now) -> list[str]:
        """Groups to look at because it is time. Closed ones need no look."""
        return [each for each in self.timers.due(now) if each not in self._closed]

    def forget_evidence(self) -> None:
        """Drop what is too old to say anything about attempts that are open."""
        before_us = self.clock.us - EVIDENCE_KEPT_US
        self.peers.forget_before(moment(max(0, before_us)))
        while self._done_at and self._done_at[0][0] < before_us:
            self.peers.forget_group(self._done_at.popleft()[1])

    def forget_batches(self, low_water: Positions) -> None:
        """Drop what a restart from `low_water` would not see of batches either."""
        for batch in [b for b in self.batches.values() if self.low_water.forgotten(low_water, b)]:
            del self.batches[batch.fact.batch_id]

    def _version(self, fact: WeightsPublished | TrainerStarted) -> None:
        if fact.policy_version is not None:
            self.versions.published(fact.policy_version)
            for version in self.versions.outlived(self.settings.staleness_bound):
                self.low_water.unpin(("orphaned", version))

    def _orphan(self, fact: WeightsOrphaned) -> None:
        self.versions.orphan(fact.policy_version)
        self.low_water.pin(("orphaned", fact.policy_version), self._place, self._offset)

    def _validated(self, fact: TaskValidated) -> None:
        if fact.error_type is not None:  # evidence that the verifier itself is broken
            self.low_water.pin(("task", fact.task_id), self._place, self._offset)


_OF_RUN: dict[type, Callable[[RunState, Any], None]] = {
    RunDeclared: RunState._declared,
    BatchAssembled: RunState._assembled,
    StepCompleted: RunState._taken,
    BatchRefused: RunState._taken,
    WeightsPublished: RunState._version,
    TrainerStarted: RunState._version,
    WeightsOrphaned: RunState._orphan,
    TaskValidated: RunState._validated,
}
