"""The attempts of some runs as a log has them before given positions, with where their tokens lie.

Invariant: the same positions give the same attempts, whatever became of their groups: that one was
dropped or trained on before is nothing to a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from consumers.assembling.group_state import GroupState
from consumers.assembling.token_index import TokenIndex
from consumers.recorded_cuts import LogFeed
from consumers.sft_batches import (
    SftBatch,
    SftSettings,
    Trace,
    batches_of,
    candidates,
    chosen,
    has_tokens,
)
from ledger.attempt import BadFact
from ledger.avro import DecodeError, decode, decode_datum, writer_schema_of
from ledger.facts import (
    Fact,
    GroupOpened,
    RewardAssigned,
    RunDeclared,
    ToolCallCompleted,
    TrajectoryFact,
    TrajectoryFinished,
    TrajectoryStarted,
    TurnCompleted,
    TurnFailed,
)
from ledger.log import EventLog, Positions, RecordBatch, TopicPartition
from ledger.tokens import TurnTokens
from ledger.wire.objects import build

_READ = (
    RunDeclared, GroupOpened, TrajectoryStarted, TurnCompleted, TurnFailed, ToolCallCompleted,
    RewardAssigned, TrajectoryFinished,
)  # fmt: skip
"""Facts that say whether an attempt is whole and what it is worth."""


@dataclass(slots=True)
class Stored:
    """What some runs left behind."""

    declared: dict[str, RunDeclared] = field(default_factory=dict[str, RunDeclared])
    """By run id, of all runs."""
    groups: dict[str, GroupState] = field(default_factory=dict[str, GroupState])
    """By id, of the runs asked for."""
    last_log_time_us: int = 0
    """Of the newest record read, microseconds since the epoch."""
    problems: list[str] = field(default_factory=list[str])
    """Facts that can't be: value, rule and place."""


@dataclass(slots=True)
class SftPlan:
    """The batches that settings and positions give."""

    stored: Stored
    tokens: TokenIndex
    batches: list[SftBatch]
    lost: list[Trace]
    """Good ones whose payloads aren't in the log, or can't be trained on."""


def plan_sft(log: EventLog, settings: SftSettings, upto: Positions) -> SftPlan:
    """The batches that the log before `upto` gives. Raises LogUnavailable."""
    stored = read_attempts(log, frozenset(settings.from_runs), upto)
    traces = candidates(stored.groups.values(), settings)
    tokens = read_tokens(log, traces, settings.vocabulary_size, upto)
    lost = [trace for trace in traces if not has_tokens(trace, tokens)]
    return SftPlan(stored, tokens, batches_of([*chosen(traces, tokens, settings)], settings), lost)


def read_attempts(log: EventLog, runs: frozenset[str], upto: Positions) -> Stored:
    """Attempts of `runs`, from the facts before `upto`. Raises LogUnavailable."""
    stored = Stored()
    for batch in _records(log, "events", upto):
        columns = zip(batch.offsets, batch.log_times_us, batch.values, strict=True)
        for offset, log_time_us, value in columns:
            place = TopicPartition("events", batch.partition)
            stored.last_log_time_us = max(stored.last_log_time_us, log_time_us)
            try:
                if issubclass(writer_schema_of(value).wire.cls, _READ):
                    wire, datum = decode_datum(value)
                    if wire.cls is RunDeclared or datum["run_id"] in runs:
                        fact = cast(Fact, build(wire.cls, datum))
                        _take(stored, place, offset, log_time_us, fact)
            except (DecodeError, BadFact) as error:
                stored.problems.append(f"{error} ({place} offset {offset})")
    return stored


def read_tokens(
    log: EventLog, traces: Iterable[Trace], vocabulary_size: int | None, upto: Positions
) -> TokenIndex:
    """Where the payloads of these attempts lie. Raises LogUnavailable."""
    index = TokenIndex(vocabulary_size)
    wanted = {trace.group.group_id: set[str]() for trace in traces}
    for trace in traces:
        wanted[trace.group.group_id].update(trace.digests)
    for batch in _records(log, "tokens", upto):
        rows = zip(batch.offsets, batch.keys, batch.values, strict=True)
        for offset, key, value in rows:
            if key not in wanted:
                continue
            try:
                payload = decode(value)
            except DecodeError:
                continue  # what isn't there is told where it is missed
            if isinstance(payload, TurnTokens) and payload.sha256 in wanted[key]:
                index.add(batch.partition, offset, payload)
    return index


def _take(stored: Stored, place: TopicPartition, offset: int, log_time_us: int, fact: Fact) -> None:
    if isinstance(fact, RunDeclared):
        stored.declared.setdefault(fact.run_id, fact)
    elif isinstance(fact, GroupOpened | TrajectoryFact):
        group = stored.groups.get(fact.group_id)
        if group is None:
            group = GroupState(fact.group_id, place.partition, offset, log_time_us)
            stored.groups[fact.group_id] = group
        if isinstance(fact, GroupOpened):
            group.open(fact)
        else:
            group.take(fact, log_time_us, rule_set=0)


def _records(
    log: EventLog, topic: str, upto: Mapping[TopicPartition, int]
) -> Iterable[RecordBatch]:
    starts = log.start_positions("events") | log.start_positions("tokens")
    places = {
        place: end for place, end in upto.items() if place.topic == topic and starts[place] < end
    }
    feeder = LogFeed(log, {place: starts[place] for place in places})
    try:
        yield from feeder.up_to(places)
    finally:
        feeder.close()
