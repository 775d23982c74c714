"""Records of Kafka as columns: what kafka-python gives record by record, or nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from ledger.kafka.columns import parse_records

LZ4 = 3
Wire = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Offset, key, value, headers."""


def batch_of(records: list[Wire], time_ms: int = 0) -> Any:
    """A batch as a producer of kafka-python makes it, decompressed."""
    builder = DefaultRecordBatchBuilder(2, LZ4, False, -1, -1, -1, 1 << 24)
    for offset, key, value, headers in records:
        assert builder.append(offset, time_ms + offset, key, value, headers) is not None
    return iter(DefaultRecordBatch(builder.build()))


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
