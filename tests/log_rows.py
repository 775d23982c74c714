"""What every log test needs: numbered records, all rows of a log, work in other processes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from ledger.log import EventLog, Positions, Reader, Record, Topic, TopicPartition

READ_LIMIT_S = 30.0


def records(key: str, numbers: Sequence[int]) -> list[Record]:
    return [Record(key, str(number).encode()) for number in numbers]


def read_rows(
    log: EventLog, positions: Mapping[TopicPartition, int], limit: int | None = None
) -> tuple[list[tuple[Topic, int, int, str, bytes]], Positions]:
    """All (topic, partition, offset, key, value) from `positions` to the end, or `limit` of them,
    and the reader's positions then."""
    ends = {place: log.end_positions(place.topic)[place] for place in positions}
    with log.reader(positions) as reader:
        rows = rows_of(reader, lambda rows: rows_left(reader, ends, rows, limit))
        return rows, reader.positions


def rows_left(reader: Reader, ends: Positions, rows: Sequence[object], limit: int | None) -> int:
    if limit is not None:
        return limit - len(rows)
    return 0 if all(reader.positions[place] >= ends[place] for place in ends) else 10_000


def rows_of(
    reader: Reader, left: Callable[[Sequence[object]], int]
) -> list[tuple[Topic, int, int, str, bytes]]:
    rows: list[tuple[Topic, int, int, str, bytes]] = []
    deadline = time.monotonic() + READ_LIMIT_S
    while (wanted := left(rows)) > 0:
        assert time.monotonic() < deadline, f"only {len(rows)} records in {READ_LIMIT_S} s"
        for batch in reader.poll(0.5, max_records=wanted):
            assert batch.next_offset > batch.offsets[-1]
            assert batch.offsets == sorted(set(batch.offsets))
            columns = zip(batch.offsets, batch.keys, batch.values, strict=True)
            rows += [(batch.topic, batch.partition, *row) for row in columns]
    return rows


def values_by_key(log: EventLog, topic: Topic) -> dict[str, list[bytes]]:
    rows, _ = read_rows(log, log.start_positions(topic))
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for _, _, _, key, value in rows:
        found[key].append(value)
    return dict(found)


def in_other_processes(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of `work(*one)` for each, each in a process of its own, all at once."""
    with ProcessPoolExecutor(len(arguments), mp_context=get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(work, *one) for one in arguments]]
