"""Copying a log, with or without a run. Nothing is edited in place: to erase a run, copy without
it, use the copy, and remove the log."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from ledger.avro import DecodeError, decode_datum
from ledger.log import TOPICS, EventLog, LogError, Record, TopicPartition
from ledger.wire.checks import Datum
from ledger.wire.encoder import Draft, FactEncoder, now_us

CHUNK_RECORDS = 2_000


@dataclass(slots=True)
class Copied:
    """What a copy did."""

    records: int = 0
    erased: int = 0
    """Records of the run, left out."""
    unreadable: list[str] = field(default_factory=list[str])
    """Places of records left out because nobody can say whether they are of the run."""


def copy_log(source: EventLog, target: EventLog, without_run: str | None = None) -> Copied:
    """Copy every record of every topic to an empty log, in order, up to the source's end.

    Without a run, all its facts and payloads are left out; `facts_erased` says which numbers of
    which producers are no holes. Raises LogError when `target` isn't empty."""
    _check_empty(target)
    copied = Copied()
    erased: dict[str, list[int]] = {}
    for topic in ("tokens", "batches", "events"):  # payloads before the facts that name them
        end = source.end_positions(topic)
        for place, start in source.start_positions(topic).items():
            _copy(source, target, place, range(start, end[place]), without_run, copied, erased)
    if erased:
        target.append("events", _erasures(erased))
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
    without_run: str | None,
    copied: Copied,
    erased: dict[str, list[int]],
) -> None:
    with source.reader({place: offsets.start}) as reader:
        while reader.positions[place] < offsets.stop:
            for batch in reader.poll(1.0, CHUNK_RECORDS):
                kept: list[Record] = []
                columns = zip(batch.offsets, batch.keys, batch.values, strict=True)
                for offset, key, value in columns:
                    try:
                        datum = _of_run(value, without_run) if without_run else None
                    except DecodeError:
                        copied.unreadable.append(f"{place} offset {offset}")
                        continue
                    if datum is None:
                        kept.append(Record(key, value))
                        continue
                    copied.erased += 1
                    if "producer_seq" in datum:  # payloads have no number
                        numbers = erased.setdefault(datum["incarnation"], [])
                        numbers.append(datum["producer_seq"])
                target.append(place.topic, kept)
                copied.records += len(kept)


def _of_run(value: bytes, run_id: str) -> Datum | None:
    """The record's fields when it is of the run, else None. Raises DecodeError."""
    _, datum = decode_datum(value)
    return datum if datum["run_id"] == run_id else None


def _erasures(erased: dict[str, list[int]]) -> list[Record]:
    # A run of its own: the erased one must not be named.
    encoder = FactEncoder("copy-log", str(uuid.uuid4()))
    drafts = [
        Draft(
            "facts_erased",
            {"erased_incarnation": incarnation, "first_seq": first, "last_seq": last},
            now_us(),
        )
        for incarnation, numbers in erased.items()
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
