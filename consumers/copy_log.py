"""Copying a log, with or without a run. Nothing is edited in place: to erase a run, copy without
it, use the copy, and remove the log.

Invariant: the erased run's id is nowhere in the copy, and whatever the copy lacks or has otherwise
is told. `copy-log` records, as the run that the id's alias names, which numbers of which producers
it left out; a fact of another run that names this one was renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from consumers.erasure import Erasure, as_uuid
from ledger.avro import DecodeError, decode_datum
from ledger.log import TOPICS, EventLog, LogError, Record, RecordBatch, TopicPartition
from ledger.wire.checks import Datum
from ledger.wire.encoder import Draft, FactEncoder, now_us

CHUNK_RECORDS = 2_000


@dataclass(slots=True)
class Copied:
    """What a copy did."""

    records: int = 0
    """Records that the copy has of the source."""
    erased: int = 0
    """Records of the run, left out."""
    renamed: int = 0
    """Records of other runs that named the run; they name its alias now. Copied too."""
    alias: str | None = None
    """UUID in place of the erased run's; null: no run was to be erased."""
    unreadable: list[str] = field(default_factory=list[str])
    """Places of records left out because nobody can say whether they are of the run."""


def copy_log(source: EventLog, target: EventLog, without_run: uuid.UUID | None = None) -> Copied:
    """Copy every record of every topic to an empty log, in order, up to the source's end.

    Without a run, all its facts and payloads are left out; `facts_erased` says which numbers of
    which producers are no holes, and other runs' records name an alias in its place. Raises
    LogError when `target` isn't empty."""
    _check_empty(target)
    erasing = None if without_run is None else _Erasing(Erasure(without_run))
    copied = Copied() if erasing is None else erasing.copied
    for topic in ("tokens", "batches", "events"):  # payloads before the facts that name them
        end = source.end_positions(topic)
        for place, start in source.start_positions(topic).items():
            _copy(source, target, place, range(start, end[place]), erasing, copied)
    if erasing is not None and (copied.erased or copied.renamed):
        target.append("events", erasing.facts())
    return copied


def _check_empty(target: EventLog) -> None:
    for topic in TOPICS:
        for place, end in target.end_positions(topic).items():
            if end != 0:
                raise LogError(f"a log is copied to an empty one, and {place} ends at {end}")


def _copy(
    source: EventLog,
    target: EventLog,
    place: TopicPartition,
    offsets: range,
    erasing: _Erasing | None,
    copied: Copied,
) -> None:
    with source.reader({place: offsets.start}) as reader:
        while reader.positions[place] < offsets.stop:
            for batch in reader.poll(1.0, CHUNK_RECORDS):
                if erasing is None:
                    kept = list(map(Record, batch.keys, batch.values))
                else:
                    kept = list(erasing.kept(place, batch))
                target.append(place.topic, kept)
                copied.records += len(kept)


class _Erasing:
    """Goes through the records of a log, keeps those of other runs, and remembers the rest."""

    def __init__(self, erasure: Erasure) -> None:
        self.copied = Copied(alias=erasure.alias)
        self._erasure = erasure
        self._numbers: dict[uuid.UUID, list[int]] = {}
        """Numbers left out, by incarnation."""

    def kept(self, place: TopicPartition, batch: RecordBatch) -> Iterator[Record]:
        """The batch's records of other runs, none of which names the run any more."""
        for offset, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
            try:
                _, datum = decode_datum(value)
            except DecodeError:
                self.copied.unreadable.append(f"{place} offset {offset}")
                continue
            if self._erasure.covers(datum):
                self._note(datum)
                continue
            renamed = self._erasure.renamed
            record = Record(renamed(key.encode()).decode(), renamed(value))
            self.copied.renamed += record != (key, value)
            yield record

    def _note(self, datum: Datum) -> None:
        self.copied.erased += 1
        # Payloads have no number, and no book takes a fact whose incarnation is no UUID.
        if "producer_seq" in datum and (incarnation := as_uuid(datum["incarnation"])):
            self._numbers.setdefault(incarnation, []).append(datum["producer_seq"])

    def facts(self) -> list[Record]:
        """What the copy says of itself."""
        encoder = FactEncoder("copy-log", self._erasure.alias)
        drafts = [
            Draft(
                "facts_erased",
                {"erased_incarnation": str(incarnation), "first_seq": first, "last_seq": last},
                now_us(),
            )
            for incarnation, numbers in self._numbers.items()
            for first, last in stretches(numbers)
        ]
        count = {"accepted": len(drafts), "last_seq": len(drafts) - 1}
        drafts.append(Draft("producer_closed", count, now_us()))
        return encoder.encode(drafts).events


def stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers -> (first, last) of each unbroken stretch, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
