"""Records of Kafka as columns: what kafka-python gives record by record, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c

from ledger.kafka.columns import Columns, PartitionColumns, parse_records

LZ4 = 3
Wire = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Offset, key, value, headers."""


def batch_of(records: list[Wire], time_ms: int = 0) -> Any:
    """A batch as a producer of kafka-python makes it, decompressed."""
    builder = DefaultRecordBatchBuilder(2, LZ4, False, -1, -1, -1, 1 << 24)
    for offset, key, value, headers in records:
        assert builder.append(offset, time_ms + offset, key, value, headers) is not None
    return iter(DefaultRecordBatch(builder.build()))


def stamped(numbers: range, time_ms: int) -> bytes:
    """A batch of numbered records as a broker with LogAppendTime keeps it: it puts its own time
    in, and the first offset."""
    builder = DefaultRecordBatchBuilder(2, LZ4, False, -1, -1, -1, 1 << 24)
    for row, number in enumerate(numbers):
        builder.append(row, 0, b"key", b"%d" % number, [])
    batch = builder.build()
    batch[:8] = numbers[0].to_bytes(8, "big")
    batch[22] |= 8  # attributes: LogAppendTime
    batch[35:43] = time_ms.to_bytes(8, "big")
    batch[17:21] = calc_crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)


def fetched(data: bytes, offset: int = 0) -> Any:
    """What an answer of a broker has of one partition, asked for from `offset` on."""
    return PartitionColumns(offset, TopicPartition("topic", 0), MemoryRecords(data))


def told(taken: list[Columns | None]) -> list[tuple[int, int, bytes]]:
    """Offset, time and value of each record."""
    return [
        (offset, columns.time_ms, value)
        for columns in taken
        if columns is not None
        for offset, value in zip(columns.offsets, columns.values, strict=True)
    ]


def parsed(batch: Any) -> tuple[list[int], list[bytes], list[bytes]] | None:
    return parse_records(bytes(batch._buffer), batch._pos, batch.records_count)


sizes = st.one_of(st.integers(0, 200), st.sampled_from([8191, 8192, 1_048_575, 1_048_576]))


@settings(max_examples=50, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 10_000), min_size=1, max_size=8),
    size=st.lists(st.tuples(st.integers(0, 200), sizes), min_size=8, max_size=8),
    time_ms=st.integers(0, 2**41),
)
def test_a_batch_has_the_columns_of_its_records(
    gaps: list[int], size: list[tuple[int, int]], time_ms: int
) -> None:
    records: list[Wire] = []
    for row, gap in enumerate(gaps):
        offset = gap + (records[-1][0] if records else -1)
        key, value = (bytes([row]) * count for count in size[row])
        records.append((offset, key, value, []))
    found = parsed(batch_of(records, time_ms))
    assert found is not None
    deltas, keys, values = found
    one_by_one = list(batch_of(records, time_ms))
    assert deltas == [each.offset for each in one_by_one]
    assert keys == [each.key for each in one_by_one]
    assert values == [each.value for each in one_by_one]


def test_a_batch_with_a_record_that_rollbook_would_not_write_is_left_to_kafka_python() -> None:
    usual: Wire = (0, b"key", b"value", [])
    for odd in [
        (1, None, b"value", []),
        (1, b"key", None, []),
        (1, b"key", b"value", [("name", b"")]),
        (1, b"key", b"value", [("name", b"value"), ("other", b"value")]),
    ]:
        assert parsed(batch_of([usual, odd])) is None
        assert parsed(batch_of([odd])) is None


def test_a_damaged_batch_has_no_columns() -> None:
    batch = batch_of([(row, b"key", b"v" * 100, []) for row in range(3)])
    data, count = bytes(batch._buffer), batch.records_count
    assert parse_records(data, batch._pos, count) is not None
    for end in range(len(data)):
        assert parse_records(data[:end], batch._pos, count) is None
    assert parse_records(data + b"\0", batch._pos, count) is None
    assert parse_records(data, batch._pos, count - 1) is None
    assert parse_records(data, batch._pos, count + 1) is None


def test_records_are_taken_in_any_portions_from_the_position_on() -> None:
    data = stamped(range(0, 5), 100) + stamped(range(5, 6), 200) + stamped(range(6, 20), 300)
    for portion in range(1, 21):
        part = fetched(data, offset=3)
        found: list[tuple[int, int, bytes]] = []
        while part and (taken := part.take(portion)):
            found += told(taken)
            assert len(taken) == min(portion, 20 - 3 - (len(found) - len(taken)))
            assert part.next_fetch_offset == found[-1][0] + 1
        assert found == [
            (number, 100 if number < 5 else 200 if number < 6 else 300, b"%d" % number)
            for number in range(3, 20)
        ]
        assert not part


def test_a_damaged_batch_is_an_error_behind_the_records_before_it_and_fetched_again() -> None:
    damaged = bytearray(stamped(range(5, 9), 200))
    damaged[-1] ^= 1
    part = fetched(stamped(range(0, 5), 100) + damaged)
    assert [offset for offset, _, _ in told(part.take(100))] == [0, 1, 2, 3, 4]
    assert part.next_fetch_offset == 5
    with pytest.raises(CorruptRecordError):
        part.take(100)
    assert not part
    with pytest.raises(CorruptRecordError):
        fetched(bytes(damaged)).take(1)
