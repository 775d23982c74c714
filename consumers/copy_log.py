"""Copying a log, with or without a run. Nothing is edited in place: to erase a run, copy without
it, use the copy, and remove the log.

Invariant: the erased run's id is nowhere in the copy, and whatever the copy lacks or has otherwise
is told. `copy-log` records, as the run that the id's alias names, which numbers of which producers
it left out; a fact of another run that names this one was renamed.

Where both logs have one partition and the copy can be told its times (a SQLite log can), records
keep theirs, and positions that facts tell are moved to where the copy has the same records
(`relocation.py`): what was decided in the source can be decided again in the copy. A Kafka dates
records by its own clock, so there `replay --batches` says that it can't.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from consumers.erasure import Erasure, as_uuid
from consumers.relocation import Relocation
from ledger.avro import DecodeError, decode_datum
from ledger.log import (
    TOPICS,
    DatedLog,
    EventLog,
    LogError,
    Record,
    RecordBatch,
    TopicPartition,
)
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
    moved: int = 0
    """Records that tell other positions than in the source: the copy's. Copied too."""
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
    places = _places(source)
    dated = isinstance(target, DatedLog) and _is_single(source) and _is_single(target)
    relocation = _relocation(source, places, erasing) if dated else None
    for place, offsets in places.items():
        for batch in _batches(source, place, offsets):
            kept = list(_kept(place, batch, erasing))
            records = [record for _, record in kept]
            if isinstance(target, DatedLog) and relocation is not None:
                moved = [_moved(relocation, record) for record in records]
                times_us = [batch.log_times_us[row] for row, _ in kept]
                target.append_dated(place.topic, moved, times_us)
                copied.moved += sum(map(operator.is_not, moved, records))
            else:
                target.append(place.topic, records)
            copied.records += len(records)
    if erasing is not None and (copied.erased or copied.renamed):
        target.append("events", erasing.facts())
    return copied


def _check_empty(target: EventLog) -> None:
    for topic in TOPICS:
        for place, end in target.end_positions(topic).items():
            if end != 0:
                raise LogError(f"a log is copied to an empty one, and {place} ends at {end}")


def _is_single(log: EventLog) -> bool:
    return all(len(log.end_positions(topic)) == 1 for topic in TOPICS)


def _places(source: EventLog) -> dict[TopicPartition, range]:
    """What there is to copy now; payloads before the facts that name them."""
    found: dict[TopicPartition, range] = {}
    for topic in ("tokens", "batches", "events"):
        ends = source.end_positions(topic)
        found |= {
            place: range(start, ends[place])
            for place, start in source.start_positions(topic).items()
        }
    return found


def _batches(source: EventLog, place: TopicPartition, offsets: range) -> Iterator[RecordBatch]:
    with source.reader({place: offsets.start}) as reader:
        while reader.positions[place] < offsets.stop:
            for batch in reader.poll(1.0, CHUNK_RECORDS):
                yield batch.split(offsets.stop)[0]


def _relocation(
    source: EventLog, places: Mapping[TopicPartition, range], erasing: _Erasing | None
) -> Relocation:
    """Where the copy will have what. A cut may lie at records that are copied after it, so all of
    the source is looked at first."""
    found = Relocation()
    for place, offsets in places.items():
        for batch in _batches(source, place, offsets):
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                if erasing is None or erasing.keeps(value):
                    found.keep(place, offset)
    return found


def _kept(
    place: TopicPartition, batch: RecordBatch, erasing: _Erasing | None
) -> Iterable[tuple[int, Record]]:
    """Rows of a batch and their records, as far as the copy gets them."""
    if erasing is None:
        return enumerate(map(Record, batch.keys, batch.values))
    return erasing.kept(place, batch)


def _moved(relocation: Relocation, record: Record) -> Record:
    try:
        value = relocation.moved_in(record.value)
    except DecodeError:
        return record  # it is copied as it is: the projector keeps it in quarantine
    return record if value is record.value else Record(record.key, value)


class _Erasing:
    """Goes through the records of a log, keeps those of other runs, and remembers the rest."""

    def __init__(self, erasure: Erasure) -> None:
        self.copied = Copied(alias=erasure.alias)
        self._erasure = erasure
        self._numbers: dict[uuid.UUID, list[int]] = {}
        """Numbers left out, by incarnation."""

    def keeps(self, value: bytes) -> bool:
        """Whether a record is known to be of another run."""
        try:
            return not self._erasure.covers(decode_datum(value)[1])
        except DecodeError:
            return False

    def kept(self, place: TopicPartition, batch: RecordBatch) -> Iterator[tuple[int, Record]]:
        """The batch's records of other runs by their row, none of which names the run any more."""
        columns = zip(batch.offsets, batch.keys, batch.values, strict=True)
        for row, (offset, key, value) in enumerate(columns):
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
            yield row, record

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
