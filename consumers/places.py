"""Records of topic `events` with their places, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ledger.log import RecordBatch


class Place(NamedTuple):
    """One record and where it lies."""

    partition: int
    offset: int
    log_time_us: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Places:
    """(n,) records. Columns, since an object for each record costs as much as decoding it."""

    partitions: list[int]
    offsets: list[int]
    log_times_us: list[int]
    keys: list[str]
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.offsets)

    def at(self, row: int) -> Place:
        """One record."""
        return Place(
            self.partitions[row],
            self.offsets[row],
            self.log_times_us[row],
            self.keys[row],
            self.values[row],
        )

    def take(self, rows: Sequence[int]) -> Places:
        """Some of the records."""
        columns = (self.partitions, self.offsets, self.log_times_us, self.keys, self.values)
        return Places(*([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]


def places_of(batches: Iterable[RecordBatch]) -> Places:
    """The records of all batches, one batch behind the other."""
    places = Places([], [], [], [], [])
    for batch in batches:
        places.partitions.extend([batch.partition] * len(batch))
        places.offsets.extend(batch.offsets)
        places.log_times_us.extend(batch.log_times_us)
        places.keys.extend(batch.keys)
        places.values.extend(batch.values)
    return places


def by_header(places: Places, size: int) -> dict[bytes, Places]:
    """Records apart by the first `size` bytes of their values, in order."""
    headers = [value[:size] for value in places.values]
    if len(set(headers)) == 1:
        return {headers[0]: places}
    rows: dict[bytes, list[int]] = {}
    for row, header in enumerate(headers):
        rows.setdefault(header, []).append(row)
    return {header: places.take(at) for header, at in rows.items()}
