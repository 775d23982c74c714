"""Erasing a run: which records are of it, what other runs' records say in place of its id, and what
a copy without it says of itself.

Invariant: the id is in nothing that `renamed` gives, however it is written. An alias of the same
length stands in its place, so a record keeps its framing and every other byte, whichever schema it
was written with, and two records that named the run still name the same one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

from ledger.avro import DecodeError, decode_datum
from ledger.log import Record, RecordBatch, TopicPartition
from ledger.wire.checks import Datum
from ledger.wire.encoder import Draft, FactEncoder, now_us


class Erasure:
    """One run to erase."""

    def __init__(self, run_id: uuid.UUID) -> None:
        self.alias = str(uuid.uuid4())
        """UUID that stands for the run from now on; nothing leads from it to the run."""
        self._run_id = run_id
        # As text of any case, with dashes or without, alone or inside a longer text.
        self._written = re.compile("-?".join(run_id.hex).encode(), re.IGNORECASE)

    def covers(self, datum: Datum) -> bool:
        """Whether a record is of the run. A foreign writer may write its id in any form."""
        return as_uuid(datum["run_id"]) == self._run_id

    def renamed(self, record: bytes) -> bytes:
        """`record` with the alias wherever it names the run; else the same object."""
        return self._written.sub(self._in_place, record)

    def _in_place(self, named: re.Match[bytes]) -> bytes:
        digits = iter(self.alias.replace("-", "").encode())
        return bytes(byte if byte == ord("-") else next(digits) for byte in named[0])


class Erasing:
    """Goes through the records of a log, keeps those of other runs, and remembers the rest."""

    def __init__(self, erasure: Erasure) -> None:
        self.alias = erasure.alias
        self.erased = 0
        """Records of the run."""
        self.renamed = 0
        """Records of other runs that named the run."""
        self.unreadable: list[str] = []
        """Places of records that nobody can say the run of."""
        self._erasure = erasure
        self._numbers: dict[uuid.UUID, list[int]] = {}
        """Numbers left out, by incarnation."""

    def kept(self, place: TopicPartition, batch: RecordBatch) -> Iterator[Record | None]:
        """The batch's records of other runs, none of which names the run any more; null in place
        of those that are left out."""
        for offset, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
            try:
                _, datum = decode_datum(value)
            except DecodeError:
                self.unreadable.append(f"{place} offset {offset}")
                yield None
                continue
            if self._erasure.covers(datum):
                self._note(datum)
                yield None
                continue
            renamed = self._erasure.renamed
            record = Record(renamed(key.encode()).decode(), renamed(value))
            self.renamed += record != (key, value)
            yield record

    def _note(self, datum: Datum) -> None:
        self.erased += 1
        # Payloads have no number, and no book takes a fact whose incarnation is no UUID.
        if "producer_seq" in datum and (incarnation := as_uuid(datum["incarnation"])):
            self._numbers.setdefault(incarnation, []).append(datum["producer_seq"])

    def facts(self) -> list[Record]:
        """What the copy says of itself."""
        encoder = FactEncoder("copy-log", self.alias)
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


def as_uuid(text: str) -> uuid.UUID | None:
    """A UUID in any of the forms that people write it in; None for other text."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
