"""What the log says of a run's training so far: what a trainer that starts must not do again.

Read once, at the start, before anything is recorded. Facts of a run that aren't about a group lie
under the run's key, so most records are passed over unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.avro import DecodeError, decode, writer_schema_of
from ledger.facts import (
    BatchRefused,
    Fact,
    StepCompleted,
    TrainerStarted,
    WeightsApplied,
    WeightsOrphaned,
    WeightsPublished,
)
from ledger.log import EventLog, reached

_ABOUT_TRAINING = {
    "batch_refused",
    "step_completed",
    "trainer_started",
    "weights_applied",
    "weights_orphaned",
    "weights_published",
}


@dataclass(frozen=True, slots=True)
class History:
    """Of one run, up to the log's end."""

    versions: frozenset[int] = frozenset()
    """Every policy version that a fact names: none of them may be used again."""
    orphaned: frozenset[int] = frozenset()
    """Those that training didn't go on from."""
    refused: frozenset[str] = frozenset()
    """Batches that were refused: their groups are dropped, and not to be trained on."""
    last_step: int | None = None
    """The last step that was completed in any life; null: none was."""

    def lost_behind(self, version: int) -> list[int]:
        """Versions that may have reached an engine and are no ancestors of training that goes on
        from `version`, without those that are orphaned already."""
        return sorted(each for each in self.versions - self.orphaned if each > version)


def read_history(log: EventLog, run_id: str) -> History:
    """Reads the log to its end. Raises LogUnavailable."""
    versions: set[int | None] = set()
    orphaned: set[int] = set()
    refused: set[str] = set()
    last_step: int | None = None
    for fact in _facts(log, run_id):
        if isinstance(fact, StepCompleted):
            versions |= {fact.from_version, fact.to_version}
            last_step = max(fact.step, last_step or 0)
        elif isinstance(fact, BatchRefused):
            refused.add(fact.batch_id)
        elif isinstance(fact, WeightsOrphaned):
            orphaned.add(fact.policy_version)
            versions.add(fact.policy_version)
        elif isinstance(fact, WeightsPublished | WeightsApplied | TrainerStarted):
            versions.add(fact.policy_version)
    known = frozenset(each for each in versions if each is not None)
    return History(known, frozenset(orphaned), frozenset(refused), last_step)


def _facts(log: EventLog, run_id: str) -> Iterator[Fact]:
    ends = log.end_positions("events")
    with log.reader(log.start_positions("events")) as reader:
        while not reached(reader.positions, ends):
            for records in reader.poll(1.0):
                for key, value in zip(records.keys, records.values, strict=True):
                    if key == run_id and (fact := _about_training(value)) is not None:
                        yield fact


def _about_training(value: bytes) -> Fact | None:
    """Null for other facts, and for what can't be decoded: the projector says so of it."""
    try:
        if writer_schema_of(value).wire.name not in _ABOUT_TRAINING:
            return None
        fact = decode(value)
    except DecodeError:
        return None
    return fact if isinstance(fact, Fact) else None
