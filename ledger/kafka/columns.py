# pyright: basic
"""Records of Kafka as columns, a whole batch of the wire at a time.

kafka-python makes several objects of each record, at a cost above that of decoding the fact in it
and inserting it into a book. What it does for a batch stays as it is: fetching, checksums,
decompression, what belongs to an aborted transaction, positions, limits. Only where it would go
through the records one by one, it meets a single stand-in for all of them.

Invariant: the records are those that kafka-python would give. A batch that is in any way unlike
what Rollbook writes (a record without key or value, with headers, with a time of its own) or is
damaged is left to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ledger.kafka.client import LOG_APPEND_TIME, PartitionRecords, WireBatch


@dataclass(frozen=True, slots=True)
class Columns:
    """Consecutive records of one partition."""

    offsets: list[int]
    """(n,) strictly increasing."""
    time_ms: int
    """The log's clock, the same for all of a batch."""
    keys: list[bytes]
    """(n,)"""
    values: list[bytes]
    """(n,)"""

    def __len__(self) -> int:
        return len(self.offsets)

    def split(self, at: int) -> tuple[Columns, Columns]:
        """The first `at` records, and the others."""
        return self._rows(slice(0, at)), self._rows(slice(at, None))

    def _rows(self, rows: slice) -> Columns:
        return Columns(self.offsets[rows], self.time_ms, self.keys[rows], self.values[rows])


def columns_of(record: Any) -> Columns:
    """One record of kafka-python's."""
    return Columns([record.offset], record.timestamp, [record.key or b""], [record.value or b""])


def read_columns(consumer: Any) -> None:
    """Have a KafkaConsumer that has not polled yet give `Columns`: for n records a list of n, with
    the columns of a stretch in the place of its first record, and None in those of the others."""
    consumer._fetcher.PartitionRecords = PartitionColumns


class PartitionColumns(PartitionRecords):
    """What one answer of a broker has of one partition."""

    _left: Columns | None = None
    """Records of the last batch that were not taken yet."""

    def take(self, n: int) -> list[Columns | None]:
        """Up to n records. Where they end in an error, the next call raises it."""
        taken: list[Columns | None] = []
        try:
            self._maybe_raise_next_inline_exception()
            while (room := n - len(taken)) > 0 and (columns := self._next()) is not None:
                if len(columns) > room:
                    columns, self._left = columns.split(room)
                self.next_fetch_offset = columns.offsets[-1] + 1
                taken += [columns, *[None] * (len(columns) - 1)]
        except Exception as error:
            if not taken:
                self.drain()  # else it would be asked for more for ever; now it is fetched again
                raise
            self._next_inline_exception = error
        return taken

    def _next(self) -> Columns | None:
        if (left := self._left) is not None:
            self._left = None
            return left
        record = next(self.record_iterator, None)  # it stops behind the last one by itself
        if record is None:
            return None
        if not isinstance(record.value, Columns):
            return columns_of(record)
        # An answer begins with a whole batch, which may begin before the position.
        before = bisect_left(record.value.offsets, self.fetch_offset)
        return record.value.split(before)[1] if before else record.value

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        return super()._unpack_records(tp, _Batches(records), *deserializers)


class _Batches:
    """The batches of `records`, each with one stand-in for its records."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _Batch(batch._buffer) if type(batch) is WireBatch else batch


class _Batch(WireBatch):
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        records = super().__iter__()  # decompresses
        columns = self._columns()
        return records if columns is None else iter([_AllRecords(self, columns)])

    def _columns(self) -> Columns | None:
        """None: leave it to kafka-python, which also says what is wrong."""
        if self.timestamp_type != LOG_APPEND_TIME or not self.records_count:
            return None
        found = parse_records(bytes(self._buffer), self._pos, self.records_count)
        if found is None:
            return None
        base = self.base_offset
        deltas, keys, values = found
        return Columns([base + delta for delta in deltas], self.max_timestamp, keys, values)


class _AllRecords:
    """A batch's records as one, with whatever kafka-python asks of a record."""

    __slots__ = ("offset", "size_in_bytes", "timestamp", "value")
    key = None
    headers = ()
    checksum = None
    timestamp_type = LOG_APPEND_TIME

    def __init__(self, batch: Any, columns: Columns) -> None:
        self.offset = columns.offsets[-1]
        self.size_in_bytes = batch.size_in_bytes
        self.timestamp = columns.time_ms
        self.value = columns

    def validate_crc(self) -> bool:
        """That of the batch covers all of it."""
        return True


def parse_records(
    data: bytes, pos: int, count: int
) -> tuple[list[int], list[bytes], list[bytes]] | None:
    """(count,) offset deltas, keys and values of the records of format v2 from `pos` to the end of
    `data`; None when they are anything but that, or have no key, no value or headers.

    Each is: size, attributes, time delta, offset delta, key, value, number of headers; numbers are
    zigzag varints, and a number of bytes stands before each key and value. (Apache Kafka,
    DefaultRecord.java)"""
    deltas: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    try:
        for _ in range(count):
            number = data[pos]
            pos += 1
            if number > 127:
                number, pos = _more(data, pos, number)
            end = pos + (number >> 1)
            pos += 1  # attributes: none are defined
            while data[pos] > 127:  # time delta: all have the batch's time
                pos += 1
            pos += 1
            delta = data[pos]
            pos += 1
            if delta > 127:
                delta, pos = _more(data, pos, delta)
            deltas.append(delta >> 1)
            size = data[pos]
            pos += 1
            if size > 127:
                size, pos = _more(data, pos, size)
            stop = pos + (size >> 1)
            keys.append(data[pos:stop])
            number = data[stop]
            pos = stop + 1
            if number > 127:
                number, pos = _more(data, pos, number)
            stop = pos + (number >> 1)
            values.append(data[pos:stop])
            if (delta | size | number) & 1 or data[stop] or stop + 1 != end:
                return None  # a number is negative (so a size is null), or there are headers
            pos = end
    except IndexError:
        return None
    return (deltas, keys, values) if pos == len(data) else None


def _more(data: bytes, pos: int, first: int) -> tuple[int, int]:
    """A varint of several bytes, before its zigzag is undone, and where it ends."""
    number = first & 127
    shift = 7
    while (byte := data[pos]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        pos += 1
    return number | byte << shift, pos + 1
