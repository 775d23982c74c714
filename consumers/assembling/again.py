"""Recorded decisions, decided again at their cuts: the same facts must give the same answers.

Reads the log once to collect what was recorded, and once more from its start, stopping at every
cut. What a cut can't say is taken from the records: the evidence that a judgement used, which its
`trajectory_judged` writes out.

Time is taken to be settled at every cut. A group that was complete is decided alike either way, and
one that was closed by time alone can't have been closed otherwise.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from consumers.assembling.batching import next_batch, outdated_in
from consumers.assembling.context import Context, Hold
from consumers.assembling.cut import Now, places_of
from consumers.assembling.decide import decide
from consumers.assembling.plan import context_of
from consumers.assembling.reading import feed
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings
from ledger.attempt import Attempt
from ledger.avro import DecodeError, decode, writer_schema_of
from ledger.facts import BatchAssembled, Cut, GroupDecided, TrajectoryJudged
from ledger.facts.lists import DropReason
from ledger.judgement import Evidence, Peers, load_rules
from ledger.log import EventLog, Positions, Reader, RecordBatch, TopicPartition
from ledger.wire.checks import to_micros

Recorded = GroupDecided | BatchAssembled


@dataclass(slots=True)
class Again:
    """What came of deciding again."""

    groups: int = 0
    """Decisions about groups that were made again."""
    batches: int = 0
    hashes: list[str] = field(default_factory=list[str])
    """(batches,) by step, as recomputed."""
    differences: list[str] = field(default_factory=list[str])
    """What came out otherwise: what, recorded and recomputed."""


@dataclass(slots=True)
class _AtCut:
    cut: Cut
    recorded: list[Recorded] = field(default_factory=list[Recorded])
    evidence: dict[str, Evidence] = field(default_factory=dict[str, Evidence])
    """Trajectory -> what its judgement used."""


def decide_again(log: EventLog, run_id: str) -> Again:
    """Decide everything that was recorded of a run again. Raises LogUnavailable."""
    again = Again()
    cuts = _recorded(log, run_id)
    if not cuts:
        return again
    settings = AssemblerSettings.of(json.loads(cuts[0].cut.configuration), "the first cut")
    state = RunState(run_id, settings, Peers())
    start = log.start_positions("events") | log.start_positions("tokens")
    with log.reader(start) as reader:
        feeder = _Feeder(reader)
        for at in cuts:
            state.settings = AssemblerSettings.of(json.loads(at.cut.configuration), "a cut")
            for batch in feeder.up_to(places_of(at.cut.positions)):
                feed(state, batch)
            _compare(state, at, again)
    return again


def _compare(state: RunState, at: _AtCut, again: Again) -> None:
    now = Now(to_micros(at.cut.log_time), settled=True)
    silent = state.leases.silent(now, state.settings.lease_s)

    def evidence(attempt: Attempt) -> Evidence:
        return at.evidence.get(attempt.trajectory_id, Evidence())

    context = context_of(state, load_rules(state.settings.rules), now, silent, evidence)
    dropped = [each for each in at.recorded if isinstance(each, GroupDecided)]
    for fact in dropped:
        again.groups += 1
        found, due = _group_again(state, fact, context), _said(fact)
        if found != due:
            again.differences.append(f"group {fact.group_id}: recorded {due}, again {found}")
    for fact in at.recorded:
        if isinstance(fact, BatchAssembled):
            again.batches += 1
            sha256 = _batch_again(state, context)
            again.hashes.append(sha256 or "")
            if sha256 != fact.batch_sha256:
                again.differences.append(
                    f"batch {fact.batch_id}: recorded {fact.batch_sha256}, again {sha256}"
                )


def _group_again(state: RunState, fact: GroupDecided, context: Context) -> tuple[Any, ...] | None:
    queued = state.queue.get(fact.group_id)
    if queued is not None:  # what was decided before, and is dropped now
        if fact.drop_reason in (DropReason.OVER_SAMPLED, DropReason.REFUSED):
            return _said(fact)  # by the batch that left it out, or for a payload that was removed
        dropped = outdated_in([queued], context.policy_version, context.orphaned, state.settings)
        reason = dropped[0].reason if dropped else None
        return ("dropped", reason, *_said(fact)[2:])
    group = state.groups.get(fact.group_id)
    if group is None:
        return None
    answer = decide(group, state.tokens, context)
    if isinstance(answer, Hold):
        return None
    return answer.decision, answer.drop_reason, list(answer.members), answer.mean, answer.std


def _said(fact: GroupDecided) -> tuple[Any, ...]:
    return fact.decision, fact.drop_reason, fact.members, fact.mean, fact.std


def _batch_again(state: RunState, context: Context) -> str | None:
    queue = sorted(state.queue.values(), key=lambda each: each.order)
    settings = state.settings
    out = outdated_in(queue, context.policy_version, context.orphaned, settings)
    gone = {each.queued.group.group_id for each in out}
    left = [each for each in queue if each.group.group_id not in gone]
    batch = next_batch(left, state.steps.last, len(state.untaken), state.steps.counts, settings)
    return None if batch is None else batch.sha256(settings.sha256)


class _Feeder:
    """Hands out the log's records up to given positions."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ahead: dict[TopicPartition, deque[RecordBatch]] = {}

    def up_to(self, positions: Positions) -> Iterator[RecordBatch]:
        """Records before `positions`, those handed out already left out."""
        for place, end in positions.items():
            ahead = self._ahead.setdefault(place, deque())
            while True:
                while not ahead and self._reader.positions[place] < end:
                    for batch in self._reader.poll(1.0, 2_000):
                        at = TopicPartition(batch.topic, batch.partition)
                        self._ahead.setdefault(at, deque()).append(batch)
                if not ahead or ahead[0].offsets[0] >= end:
                    break
                batch = ahead.popleft()
                keep = sum(offset < end for offset in batch.offsets)
                if keep < len(batch):
                    ahead.appendleft(_part(batch, keep, len(batch)))
                yield _part(batch, 0, keep)


def _part(batch: RecordBatch, start: int, end: int) -> RecordBatch:
    return RecordBatch(
        batch.topic,
        batch.partition,
        batch.offsets[start:end],
        batch.log_times_us[start:end],
        batch.keys[start:end],
        batch.values[start:end],
        batch.next_offset,
    )


def _recorded(log: EventLog, run_id: str) -> list[_AtCut]:
    """What assemblers recorded, by cut, in order. Cuts only move forward: every assembler reads
    what those before it had read, and more, before it decides."""
    cuts: dict[tuple[int, int], _AtCut] = {}
    judged: dict[str, Evidence] = {}
    for fact in _facts(log, run_id):
        if isinstance(fact, TrajectoryJudged):
            judged[fact.trajectory_id] = Evidence.read(fact.evidence)
            continue
        key = (sum(fact.cut.positions.values()), to_micros(fact.cut.log_time))
        at = cuts.setdefault(key, _AtCut(fact.cut))
        at.recorded.append(fact)
        if isinstance(fact, GroupDecided):
            ids = [member.trajectory_id for member in fact.members]
            at.evidence |= {each: judged[each] for each in ids if each in judged}
    return [cuts[key] for key in sorted(cuts)]


_KINDS: Mapping[str, type] = {
    "trajectory_judged": TrajectoryJudged,
    "group_decided": GroupDecided,
    "batch_assembled": BatchAssembled,
}


def _facts(log: EventLog, run_id: str) -> Iterator[Recorded | TrajectoryJudged]:
    """In order within each partition; what is of one group lies in one."""
    end, needle = log.end_positions("events"), run_id.encode()
    with log.reader(log.start_positions("events")) as reader:
        while any(reader.positions[place] < end[place] for place in end):
            for batch in reader.poll(1.0):
                for value in batch.values:
                    try:
                        if needle in value and writer_schema_of(value).wire.name in _KINDS:
                            fact = cast(Recorded | TrajectoryJudged, decode(value))
                            if fact.run_id == run_id:
                                yield fact
                    except DecodeError:
                        continue
