"""What would have been trained on under other settings or another rule set: a simulation.

    recorded decision ─┐
    state at its cut ──┴─ decide by the other settings ─▶ a queue of its own ─▶ batches of its own

It has no recorded cut: groups are decided where they were decided, steps end when they ended, and
nothing of what was sampled depends on what would have been trained before. A group that the other
settings would have gone on waiting for (a refill, more time) is told as held and not trained on.

Invariants:

1. Nothing is appended.
2. With the recorded settings nothing comes out otherwise. For this the simulation puts batches
   together only where the recorded run did, as long as the two are the same; from where they part
   it does so whenever there are groups and room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from consumers.assembling.batching import NextBatch, Queued, next_batch, outdated_in
from consumers.assembling.context import Context, Hold
from consumers.assembling.decide import decide
from consumers.assembling.members import versions_of
from consumers.assembling.settings import BadSettings
from consumers.assembling.steps import Steps
from consumers.folded_cuts import Fold, Moment, settings_of
from consumers.recorded_cuts import AtCut, Ends
from consumers.replay_compare import member_differences
from consumers.what_if_rows import Fate, Fates, Other, WhatIf, batch_rows, group_rows, totals
from ledger.facts import (
    BatchAssembled,
    BatchRefused,
    Fact,
    GroupDecided,
    GroupOpened,
    StepCompleted,
)
from ledger.facts.lists import DropReason, GroupDecision
from ledger.log import EventLog

PLACE = "--what-if"
WITHOUT_EFFECT = frozenset({"vocabulary_size"})
"""Settings that count when payloads are read, and not when groups are decided."""


def parse_what_if(text: str) -> dict[str, Any]:
    """`on_infra_failure=drop_group,min_valid=6` as a table; `none` is null. Raises BadSettings, for
    `vocabulary_size` too: payloads were checked by it as they were read, before any decision."""
    over: dict[str, Any] = {}
    for each in text.split(","):
        name, equals, value = (part.strip() for part in each.partition("="))
        if not equals or not name:
            raise BadSettings(f"settings must be name=value with commas, got {each!r} ({PLACE})")
        if name in over:
            raise BadSettings(f"a setting must be given once, got {name} twice ({PLACE})")
        if name in WITHOUT_EFFECT:
            raise BadSettings(f"{name} can't be simulated: nothing is decided by it ({PLACE})")
        over[name] = None if value.lower() in ("null", "none") else value
    return over


def what_if(
    log: EventLog, run_id: str, over: Mapping[str, Any], ends: Ends | None = None
) -> WhatIf:
    """Simulate a run with some settings replaced, up to `ends` or to where the log ends now.

    Raises BadSettings, RulesError, LogError, LogUnavailable."""
    simulation = Simulation(run_id, over)
    last: Moment | None = None
    with Fold(log, run_id, ends or Ends.of(log), simulation.see) as fold:
        for found in fold.moments():
            if isinstance(found, Moment):
                last = found
                simulation.look(found)
            else:
                simulation.pass_over(*found)
        if last is None or not simulation.parted:
            return simulation.finish(None)
        return simulation.finish(fold.to_end(last))


class Simulation:
    """One run under other settings, without I/O: `see` every fact in the order of the fold, `look`
    at every cut, and `finish`."""

    def __init__(self, run_id: str, over: Mapping[str, Any]) -> None:
        self.parted = False
        """Whether anything came out otherwise that bears on later batches."""
        self._result = WhatIf(run_id)
        self._over = over
        self._queue: dict[str, Queued] = {}
        self._steps = Steps()
        self._opened: set[str] = set()
        self._read: set[str] = set()
        self._taken: set[str] = set()
        self._fates: dict[str, Fates] = {}
        self._members: list[Other] = []
        self._recorded: dict[int, list[str]] = {}
        self._simulated: dict[int, list[str]] = {}

    def see(self, fact: Fact) -> None:
        """A fact of the run was folded."""
        if isinstance(fact, GroupOpened):
            if fact.group_id not in self._opened:
                self._opened.add(fact.group_id)
                self._steps.opened(fact.target_step)
        elif isinstance(fact, BatchAssembled):
            self._read.add(fact.batch_id)
        elif isinstance(fact, StepCompleted | BatchRefused) and fact.batch_id in self._read:
            self._taken.add(fact.batch_id)

    def look(self, at: Moment) -> None:
        """Decide what was decided at a cut, and put a batch together. Raises BadSettings and
        RulesError for settings that can't be."""
        context = self._context(at)
        again = {each.group_id for each in at.recorded.decisions} & at.state.queue.keys()
        decided = [
            self._decide(at, fact, context)
            for fact in at.recorded.decisions
            if fact.group_id not in again
        ]
        self._look_at_queue(at, context)
        for queued in decided:  # what is decided at a cut is in the queue for the next one
            if queued is not None:
                self._queue[queued.group.group_id] = queued
        self._batch_on(context)

    def pass_over(self, recorded: AtCut, why: str) -> None:
        """A cut that nothing can be said of."""
        names = [each.group_id for each in recorded.decisions]
        names += [each.batch_id for each in recorded.batches]
        self._result.not_simulated += [(name, why) for name in names]

    def finish(self, at_end: Moment | None) -> WhatIf:
        """Put together what is left where the log ended, and compare."""
        if at_end is not None:
            context = self._context(at_end)
            self._drop_outdated(context)
            self._batch_on(context)
        sides = self._recorded, self._simulated
        result = self._result
        result.differences += batch_rows(self._fates, self._members, *sides)
        result.differences += group_rows(self._fates)
        result.differences += self._members
        result.totals += totals(self._fates, *sides)
        return result

    def _context(self, at: Moment) -> Context:
        settings = settings_of(at.recorded.cut, self._over, PLACE)
        return replace(at.context(settings), last_step=self._steps.last)

    def _decide(self, at: Moment, fact: GroupDecided, context: Context) -> Queued | None:
        """Decide a group; what joins the queue."""
        group_id, group = fact.group_id, at.state.groups.get(fact.group_id)
        if group is None:
            self._result.not_simulated.append((group_id, "it was closed before its decision"))
            return None
        task_id = None if group.opened is None else group.opened.task_id
        recorded = Fate.decided(fact.decision, fact.drop_reason, fact.members)
        answer = decide(group, at.state.tokens, context)
        if isinstance(answer, Hold):
            self._fates[group_id] = Fates(task_id, recorded, Fate.held(answer))
            self.parted = True
            return None
        simulated = Fate.decided(answer.decision, answer.drop_reason, answer.members)
        if answer.detail is not None:
            simulated.said = f"{simulated.said}: {answer.detail}"
        self._fates[group_id] = Fates(task_id, recorded, simulated)
        self._members += [
            Other("member", None, group_id, task_id, *each)
            for each in member_differences(fact.members, answer.members)
        ]
        self._steps.decided(None if group.opened is None else group.opened.target_step)
        joins = answer.decision is GroupDecision.BATCH
        self.parted |= joins != (fact.decision is GroupDecision.BATCH)
        if not joins:
            return None
        decided = replace(
            fact,
            decision=answer.decision,
            drop_reason=None,
            members=list(answer.members),
            mean=answer.mean,
            std=answer.std,
        )
        return Queued(group, decided, 0, versions_of(group, answer.members))

    def _look_at_queue(self, at: Moment, context: Context) -> None:
        """What happened to the recorded queue at a cut, and what happens to the simulated one."""
        recorded = [each for each in at.recorded.decisions if each.group_id in at.state.queue]
        dropped = self._drop_outdated(context)
        batch = self._next(context)
        for fact in recorded:
            if (fates := self._fates.get(fact.group_id)) is not None:
                after = Fate.decided(fact.decision, fact.drop_reason, fact.members)
                self._fates[fact.group_id] = fates._replace(recorded=after)
            if fact.drop_reason is DropReason.REFUSED and fact.group_id in self._queue:
                batch = None  # its payloads had left the log, whatever the settings
                dropped.append(self._drop(fact.group_id, DropReason.REFUSED))
        groups: list[list[str]] = []
        if batch is not None:
            groups.append([each.group.group_id for each in batch.groups])
            dropped += self._assemble(batch)
        for fact in at.recorded.batches:
            self._recorded[fact.step or 0] = fact.group_ids
            for group_id in fact.group_ids:
                if group_id in self._fates:
                    self._fates[group_id].recorded.step = fact.step
        if groups != [each.group_ids for each in at.recorded.batches]:
            self.parted = True
        if set(dropped) != {each.group_id for each in recorded}:
            self.parted = True

    def _batch_on(self, context: Context) -> None:
        """Further batches, which the recorded run had no cut for."""
        while self.parted and (batch := self._next(context)) is not None:
            self._assemble(batch)

    def _next(self, context: Context) -> NextBatch | None:
        queue = sorted(self._queue.values(), key=lambda each: each.order)
        untaken = max(0, len(self._simulated) - len(self._taken))
        return next_batch(queue, self._steps.last, untaken, self._steps.counts, context.settings)

    def _assemble(self, batch: NextBatch) -> list[str]:
        """A batch leaves the queue; the groups that are dropped for it."""
        self._simulated[batch.step] = [each.group.group_id for each in batch.groups]
        self._steps.batched(batch.step)
        for group_id in self._simulated[batch.step]:
            del self._queue[group_id]
            self._fates[group_id].simulated.step = batch.step
        return [self._drop(each.group.group_id, DropReason.OVER_SAMPLED) for each in batch.surplus]

    def _drop_outdated(self, context: Context) -> list[str]:
        dropped = outdated_in(
            list(self._queue.values()), context.policy_version, context.orphaned, context.settings
        )
        return [self._drop(each.queued.group.group_id, each.reason) for each in dropped]

    def _drop(self, group_id: str, reason: DropReason) -> str:
        members = self._queue.pop(group_id).decided.members
        after = Fate.decided(GroupDecision.DROPPED, reason, members)
        self._fates[group_id] = self._fates[group_id]._replace(simulated=after)
        return group_id
