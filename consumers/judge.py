"""Judging a log anew: every ended attempt under one rule set, with the evidence in the log by now.

Invariants:

1. Judgements are only appended. What was decided and trained on stays as it is.
2. A second run over the same facts appends nothing: the newest judgement by this rule set already
   says the same. Two runs at once append the same facts under the same ids.
3. Works while the log is written to: it reads up to the ends that it finds at its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from consumers.recorded_cuts import LogFeed
from ledger.attempt import NOTHING, Attempt, BadFact
from ledger.avro import DecodeError, decode_datum, writer_schema_of
from ledger.facts import (
    Fact,
    GroupOpened,
    TaskValidated,
    ToolCallCompleted,
    TrajectoryFact,
    TrajectoryJudged,
    TurnCompleted,
)
from ledger.judgement import Judgement, Peers, RuleSet, judge, judgement_fact_fields
from ledger.log import EventLog, LogError, RecordBatch
from ledger.wire.checks import Datum
from ledger.wire.encoder import Draft, FactEncoder, now_us
from ledger.wire.objects import build

CHUNK = 2_000
"""Judgements that are appended at once."""

Progress = Callable[[int, int], None]
"""(records read, records in all)"""


class Count(NamedTuple):
    """Attempts that were judged alike."""

    outcome: str
    blame: str | None
    error_class: str | None
    exclusion_reason: str | None
    """Null: they may vote."""
    attempts: int


@dataclass(slots=True)
class LogJudged:
    """What judging a log came to."""

    counts: list[Count] = field(default_factory=list[Count])
    """By size, the largest first."""
    judged: int = 0
    """Ended attempts."""
    written: int = 0
    """Judgements that were new."""
    in_flight: int = 0
    """Attempts that haven't ended."""
    unreadable: list[str] = field(default_factory=list[str])
    """Records that are no facts, or facts that can't be: place and rule. Passed over."""


def judge_log(
    log: EventLog, rules: RuleSet, run_id: str | None = None, progress: Progress | None = None
) -> LogJudged:
    """Judge every ended attempt of `log`, or of one of its runs, and append what is new.

    Evidence comes from all runs. Raises LogError."""
    result = LogJudged()
    reading = _Reading(rules.number, run_id)
    for batch in _batches(log, progress):
        reading.take(batch, result.unreadable)
    writer = _Writer(log)
    tally: Counter[tuple[str | None, ...]] = Counter()
    for attempt in reading.attempts.values():
        if not attempt.ended:
            result.in_flight += 1
            continue
        judgement = judge(rules, attempt, reading.peers.evidence(attempt))
        tally[
            judgement.outcome, judgement.blame, judgement.cause_class, judgement.exclusion_reason
        ] += 1
        earlier = reading.newest.get(attempt.trajectory_id)
        if earlier is None or not _says(earlier, judgement):
            previous = earlier.event_id if earlier else None
            writer.add(judgement_fact_fields(rules, attempt, judgement, previous))
    result.judged, result.written = tally.total(), writer.close()
    result.counts = [Count(*alike, n) for alike, n in tally.most_common()]  # type: ignore[arg-type]
    return result


def _batches(log: EventLog, progress: Progress | None) -> Iterator[RecordBatch]:
    """All records of topic events up to its present end, and none behind it."""
    starts, ends = log.start_positions("events"), log.end_positions("events")
    due, read = sum(ends.values()) - sum(starts.values()), 0
    places = {place: end for place, end in ends.items() if starts[place] < end}
    feeder = LogFeed(log, {place: starts[place] for place in places})
    try:
        for batch in feeder.up_to(places):
            read += len(batch)
            yield batch
            if progress is not None:
                progress(read, due)
    finally:
        feeder.close()


class _Reading:
    """What has been read of a log."""

    def __init__(self, rule_set: int, run_id: str | None) -> None:
        self._rule_set = rule_set
        self._run_id = run_id
        self.attempts: dict[str, Attempt] = {}
        """By trajectory id."""
        self.newest: dict[str, TrajectoryJudged] = {}
        """Trajectory id -> the newest judgement by the rule set."""
        self._seen: set[str] = set()
        """Event ids of these judgements: one that is delivered again is no newer for it."""
        self.peers = Peers()

    def take(self, batch: RecordBatch, unreadable: list[str]) -> None:
        """The facts in a batch; what can't be read is added to `unreadable`."""
        columns = zip(batch.offsets, batch.log_times_us, batch.values, strict=True)
        for offset, log_time_us, value in columns:
            try:
                if _matters(writer_schema_of(value).wire.cls):
                    wire, datum = decode_datum(value)
                    if self._tells_more(wire.cls, datum):
                        self._fact(build(wire.cls, datum), log_time_us)
            except (DecodeError, BadFact) as error:
                unreadable.append(f"{batch.topic}/{batch.partition} offset {offset}: {error}")

    def _tells_more(self, cls: type, datum: Datum) -> bool:
        """False for the bulk of a log, which no judgement depends on: tool calls that went well,
        and turns behind the first one with a token. Making objects of them takes most of the
        time."""
        if cls is ToolCallCompleted:
            return datum["error_type"] is not None
        if cls is TurnCompleted:
            first = self.attempts.get(datum["trajectory_id"], NOTHING).first_token_turn
            return first is None or datum["turn_no"] < first
        return True

    def _fact(self, fact: Fact, log_time_us: int) -> None:
        self.peers.see(fact)
        if not isinstance(fact, TrajectoryFact) or self._run_id not in (None, fact.run_id):
            return
        attempt = self.attempts.get(fact.trajectory_id, NOTHING).with_fact(fact, log_time_us)
        if attempt is not NOTHING:
            self.attempts[fact.trajectory_id] = attempt
        if (
            isinstance(fact, TrajectoryJudged)
            and fact.rule_set == self._rule_set
            and fact.event_id not in self._seen
        ):
            self._seen.add(fact.event_id)
            self.newest[fact.trajectory_id] = fact


def _matters(cls: type) -> bool:
    return issubclass(cls, TrajectoryFact | GroupOpened | TaskValidated)


def _says(fact: TrajectoryJudged, judgement: Judgement) -> bool:
    """Whether a recorded judgement says the same as a new one. More evidence for the same is no
    news: it would have every late fact of a peer write judgements again."""
    return (
        fact.outcome == judgement.outcome
        and fact.cause_stage == judgement.cause_stage
        and fact.cause_class == judgement.cause_class
        and fact.blame == judgement.blame
        and fact.trainable == judgement.trainable
        and tuple(fact.errors) == judgement.errors
    )


class _Writer:
    """Appends judgements in chunks, as one producer for each run."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._encoders: dict[str, FactEncoder] = {}
        self._drafts: dict[str, list[Draft]] = {}
        self._written = 0

    def add(self, fields: dict[str, Any]) -> None:
        """The fields of one judgement."""
        run_id = fields["run_id"]
        drafts = self._drafts.setdefault(run_id, [])
        drafts.append(Draft("trajectory_judged", fields, now_us()))
        if len(drafts) >= CHUNK:
            self._written += self._append(run_id, drafts)
            drafts.clear()

    def close(self) -> int:
        """Append the rest, and that nothing is missing; how many judgements were appended."""
        for run_id, drafts in self._drafts.items():
            self._written += self._append(run_id, drafts)
            encoder = self._encoders[run_id]
            count = {"accepted": encoder.next_seq, "last_seq": encoder.next_seq - 1}
            self._append(run_id, [Draft("producer_closed", count, now_us())])
        return self._written

    def _append(self, run_id: str, drafts: list[Draft]) -> int:
        encoder = self._encoders.setdefault(run_id, FactEncoder("judge", run_id))
        encoded = encoder.encode(drafts)
        for refused in encoded.refused:
            raise LogError(f"a judgement can't be recorded: {refused.error}")
        self._log.append("events", encoded.events)
        return len(encoded.events)
