"""A simulated run into a log, each fact once.

Invariant: a fact's bytes depend on plan and seed alone (its incarnation and its number are derived
too), so that a second run finds what is there already by its number, also after a kill, and writes
only the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ledger.avro import decode_datum
from ledger.log import EventLog, Record, reached
from ledger.wire.encoder import Draft, FactEncoder
from producers.simulator.run import SimulatedRun

PRODUCER = "simulator"
CHUNK = 5_000
"""Facts that are encoded and appended at once."""
ENVELOPE_BYTES = 300
"""An incarnation lies within so many bytes of a fact's beginning."""


class Written(NamedTuple):
    """What became of a run."""

    facts: int
    """It has so many."""
    new: int
    """Of these, so many were not in the log yet."""


def write(
    log: EventLog, run: SimulatedRun, progress: Callable[[int], None] | None = None
) -> Written:
    """Append what the log doesn't have of a run. Raises LogError. `progress`: facts so far."""
    there = _there(log, incarnation_of(run))
    facts = new = 0
    for chunk in records_of(run):
        missing = [each for number, each in enumerate(chunk, facts) if number not in there]
        if missing:
            log.append("events", missing)
        facts, new = facts + len(chunk), new + len(missing)
        if progress is not None:
            progress(facts)
    return Written(facts, new)


def records_of(run: SimulatedRun, chunk: int = CHUNK) -> Iterator[list[Record]]:
    """All facts of a run encoded, up to `chunk` at a time, in order; `producer_closed` is last."""
    encoder = FactEncoder(PRODUCER, run.run_id, incarnation_of(run))
    at_us = 0
    for drafts in _chunks(run.drafts(), chunk):
        at_us = max(at_us, drafts[-1].recorded_us)
        yield _encoded(encoder, drafts)
    closed = {"accepted": encoder.next_seq, "last_seq": encoder.next_seq - 1}
    yield _encoded(encoder, [run.teller.told_at(at_us, "closed", "producer_closed", closed)])


def incarnation_of(run: SimulatedRun) -> str:
    """The simulator's incarnation for a run: the same for the same run."""
    return run.teller.an_id("simulator")


def _encoded(encoder: FactEncoder, drafts: list[Draft]) -> list[Record]:
    encoded = encoder.encode(drafts)
    for refused in encoded.refused:
        raise refused.error
    return encoded.events


def _chunks(drafts: Iterable[Draft], size: int) -> Iterator[list[Draft]]:
    source = iter(drafts)
    while chunk := list(itertools.islice(source, size)):
        yield chunk


def _there(log: EventLog, incarnation: str) -> set[int]:
    """The numbers that an incarnation has in a log."""
    found: set[int] = set()
    needle, ends = incarnation.encode(), log.end_positions("events")
    with log.reader(log.start_positions("events")) as reader:
        while not reached(reader.positions, ends):
            for batch in reader.poll(1.0):
                for value in batch.values:
                    if value.find(needle, 0, ENVELOPE_BYTES) >= 0:
                        found.add(decode_datum(value)[1]["producer_seq"])
    return found
