"""What assemblers recorded of a run, cut by cut, and the log's records up to given positions.

    decisions, partition by partition ─ merge by cut ─▶ AtCut, in the order of cuts

Invariants:

1. Cuts come in the order in which they were made: every assembler reads what those before it had
   read, and more, before it decides.
2. Nothing behind the ends that were given is read, so an assembler may go on meanwhile. No more is
   kept in memory than one poll of each partition.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self, cast

from ledger.avro import DecodeError, decode, writer_schema_of
from ledger.facts import BatchAssembled, Cut, GroupDecided, TrajectoryJudged
from ledger.judgement import Evidence
from ledger.log import EventLog, Positions, RecordBatch, TopicPartition
from ledger.wire.checks import to_micros

CHUNK = 2_000
"""Most records of one poll."""

_KINDS = ("trajectory_judged", "group_decided", "batch_assembled")


@dataclass(slots=True)
class AtCut:
    """What was recorded at one cut."""

    cut: Cut
    decisions: list[GroupDecided] = field(default_factory=list[GroupDecided])
    batches: list[BatchAssembled] = field(default_factory=list[BatchAssembled])
    evidence: dict[str, Evidence] = field(default_factory=dict[str, Evidence])
    """Trajectory -> what its judgement used beside the attempt's own facts."""

    @property
    def of_sft(self) -> bool:
        """Whether it is a cut of an SFT run, which has batches of traces and no groups."""
        return any(batch.trace_ids for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the log ends for a reader that must come to an end."""

    events: Positions
    tokens: Positions

    @classmethod
    def of(cls, log: EventLog) -> Self:
        """As they are now. Events first: what a decision there had read of tokens is then in."""
        events = log.end_positions("events")
        return cls(events, log.end_positions("tokens"))

    @property
    def places(self) -> Positions:
        """All of them."""
        return self.events | self.tokens


class LogFeed:
    """Hands out the records of each partition up to given positions."""

    def __init__(self, log: EventLog, start: Mapping[TopicPartition, int]) -> None:
        # A reader for each: one for all would have to keep what it meets of other partitions.
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._readers = {
                place: opening.enter_context(log.reader({place: at})) for place, at in start.items()
            }
            self._stack = opening.pop_all()
        self._ahead: dict[TopicPartition, deque[RecordBatch]] = {each: deque() for each in start}

    def up_to(self, positions: Mapping[TopicPartition, int]) -> Iterator[RecordBatch]:
        """Records before `positions` that weren't handed out yet. Raises LogUnavailable."""
        for place, end in positions.items():
            reader, ahead = self._readers[place], self._ahead[place]
            while True:
                if not ahead and reader.positions[place] < end:
                    ahead.extend(reader.poll(1.0, CHUNK))
                    continue
                if not ahead or ahead[0].offsets[0] >= end:
                    break
                whole = ahead.popleft()
                batch, rest = whole.split(end)
                if rest is not None:
                    ahead.appendleft(rest)
                yield batch

    def close(self) -> None:
        self._stack.close()


def recorded_runs(log: EventLog, ends: Mapping[TopicPartition, int]) -> list[str]:
    """Runs of which decisions or batches were recorded, sorted."""
    found: set[str] = set()
    for place in ends:
        for fact in _facts(log, place, ends[place], None):
            if not isinstance(fact, TrajectoryJudged):
                found.add(fact.run_id)
    return sorted(found)


def recorded_cuts(
    log: EventLog, run_id: str, ends: Mapping[TopicPartition, int]
) -> Iterator[AtCut]:
    """What assemblers of a run recorded, cut by cut, in order. Raises LogUnavailable."""
    streams = [_of_place(_facts(log, place, ends[place], run_id)) for place in sorted(ends)]
    merged = heapq.merge(*streams, key=lambda each: each[0])
    for _, of_cut in groupby(merged, key=lambda each: each[0]):
        recorded: AtCut | None = None
        for _, fact, evidence in of_cut:
            recorded = recorded or AtCut(fact.cut)
            recorded.evidence |= evidence
            if isinstance(fact, GroupDecided):
                recorded.decisions.append(fact)
            else:
                recorded.batches.append(fact)
        if recorded is not None:
            yield recorded


_Keyed = tuple[tuple[int, int], GroupDecided | BatchAssembled, dict[str, Evidence]]


def _of_place(
    facts: Iterable[GroupDecided | BatchAssembled | TrajectoryJudged],
) -> Iterator[_Keyed]:
    """Decisions and batches of one partition with their place among cuts. What a group's decision
    rests on lies in the same partition, before it."""
    judged: dict[tuple[str, int], Evidence] = {}
    seen: set[str] = set()
    for fact in facts:
        if isinstance(fact, TrajectoryJudged):
            judged[fact.trajectory_id, fact.rule_set] = Evidence.read(fact.evidence)
            continue
        if fact.event_id in seen:
            continue  # delivered again
        seen.add(fact.event_id)
        evidence: dict[str, Evidence] = {}
        if isinstance(fact, GroupDecided):
            for member in fact.members:
                found = judged.pop((member.trajectory_id, fact.rule_set), None)
                if found is not None:
                    evidence[member.trajectory_id] = found
        yield (sum(fact.cut.positions.values()), to_micros(fact.cut.log_time)), fact, evidence


def _facts(
    log: EventLog, place: TopicPartition, end: int, run_id: str | None
) -> Iterator[GroupDecided | BatchAssembled | TrajectoryJudged]:
    needle = (run_id or "").encode()
    start = log.start_positions("events")[place]
    feeder = LogFeed(log, {place: start})
    try:
        for batch in feeder.up_to({place: end}):
            for value in batch.values:
                try:
                    if needle in value and writer_schema_of(value).wire.name in _KINDS:
                        fact = cast(GroupDecided | BatchAssembled | TrajectoryJudged, decode(value))
                        if run_id in (None, fact.run_id):
                            yield fact
                except DecodeError:
                    continue  # the projector keeps it in quarantine
    finally:
        feeder.close()
