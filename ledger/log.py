"""The log: three append-only topics that every process of a run writes to and reads from.

`EventLog` is the whole contract; `tests/test_log.py` and `test_log_reading.py` hold both to it:

- `KafkaLog` (ledger/kafka_log.py), for a team: `kafka://host:9092/prefix`
- `SqliteLog` (ledger/sqlite_log.py), embedded, one file: `sqlite:///path/to/log.db`

What every log promises:

1. A record that `append` returned for is durable, and is never changed or removed.
2. Records of one key lie in one partition, for ever, in the order in which one writer appended
   them.
3. Offsets grow within a partition; a reader that starts at a position sees every record from
   there.
4. The time of a record is the log's own clock (microseconds since the epoch, UTC), and never steps
   back within a partition.
5. Of several fenced writers of one name, only the newest can append.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self, runtime_checkable

Topic = Literal["events", "tokens", "batches"]

TOPICS: tuple[Topic, ...] = ("events", "tokens", "batches")
"""`events` are the facts; `tokens` are payloads that facts name by digest; `batches` are for
the trainer."""

MAX_RECORD_BYTES = 4 * 1024 * 1024
"""A record of any topic is at most this large, key and value together. Facts are smaller still
(`ledger.avro.MAX_FACT_BYTES`)."""


class LogError(Exception):
    """Something is wrong with the log; the message says value, rule and place."""


class LogUnavailable(LogError):
    """The log can't be reached now. The same call may succeed later, and a record that was in
    flight may be in the log or not: appending it again is safe, since facts carry an id."""


class RecordTooLarge(LogError):
    """A record is larger than `MAX_RECORD_BYTES`; no record of the call was appended."""


class PositionOutOfRange(LogError):
    """A position lies before the log's start or past its end: this is another log, or facts
    were removed from it. Never answered by starting afresh."""


class TopicMisconfigured(LogError):
    """A topic exists, but would lose or reorder facts as it is configured."""


class Fenced(LogError):
    """A newer writer of the same name exists; this one may write nothing any more."""


class TopicPartition(NamedTuple):
    """A place where offsets count."""

    topic: Topic
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Positions = dict[TopicPartition, int]
"""For each partition the offset of the next record to read."""


def positions_of(told: Mapping[str, int]) -> Positions:
    """Positions as facts tell them, `{"events/0": 12}`. Raises ValueError."""
    found: Positions = {}
    for place, offset in told.items():
        topic, _, partition = place.rpartition("/")
        if topic not in TOPICS or not partition.isdigit():
            raise ValueError(f"a place must be like events/0, got {place!r}")
        found[TopicPartition(topic, int(partition))] = offset
    return found


def reached(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
    """Whether everything before `ends` was read."""
    return all(positions[place] >= end for place, end in ends.items())


class Record(NamedTuple):
    """What a writer appends."""

    key: str
    """The group id for everything about a group, else the run id. Decides the partition."""
    value: bytes
    """Encoded fact or payload."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of one partition, column by column, in offset order.

    Columns, since a projector that touches every record as an object spends most of its time
    on that."""

    topic: Topic
    partition: int
    offsets: list[int]
    """(n,) strictly increasing; Kafka's transaction markers leave holes."""
    log_times_us: list[int]
    """(n,) the log's clock, microseconds since the epoch, UTC."""
    keys: list[str]
    """(n,)"""
    values: list[bytes]
    """(n,)"""
    next_offset: int
    """Where to read on; past the last offset and any marker behind it."""

    def __len__(self) -> int:
        return len(self.offsets)

    def split(self, end: int) -> tuple[RecordBatch, RecordBatch | None]:
        """The records before an offset, and the others; null: there are none."""
        keep = bisect_left(self.offsets, end)
        if keep == len(self):
            return self, None
        return self._rows(slice(0, keep), end), self._rows(slice(keep, None), self.next_offset)

    def _rows(self, rows: slice, next_offset: int) -> RecordBatch:
        return RecordBatch(
            self.topic,
            self.partition,
            self.offsets[rows],
            self.log_times_us[rows],
            self.keys[rows],
            self.values[rows],
            next_offset,
        )


class Reader(Protocol):
    """Reads on from positions; used by one thread at a time."""

    @property
    def positions(self) -> Positions:
        """The next offset to read of every partition it reads. Moves with `poll`."""
        ...

    def poll(self, timeout_s: float, max_records: int = 10_000) -> list[RecordBatch]:
        """Up to `max_records` further records; [] when none came in `timeout_s`.

        Wakes within 100 ms of an append. Raises PositionOutOfRange, LogUnavailable."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class FencedWriter(Protocol):
    """The only writer of its name: making another one fences this one."""

    def append(self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0) -> None:
        """Append all records of all topics, or none. Raises Fenced, LogUnavailable,
        RecordTooLarge."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class EventLog(Protocol):
    """One log of three topics. Thread-safe; one object per process is enough."""

    @property
    def identity(self) -> str:
        """Tells this log from any other, also from an emptied one of the same name."""
        ...

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        """Append in order; durable when it returns.

        Raises LogUnavailable (part of `records` may be in the log), RecordTooLarge (none is)."""
        ...

    def append_each(
        self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0
    ) -> None:
        """Append topic by topic, in the mapping's order: of a topic there is nothing in the log
        before there is all of the topics before it. `timeout_s` is for each of them. Raises as
        `append`."""
        ...

    def partition_of(self, key: str) -> int:
        """Where the records of a key lie, in every topic."""
        ...

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> FencedWriter:
        """A writer that is alone under its name; older ones get Fenced from now on."""
        ...

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """Read the partitions that `positions` names, from there on.

        Raises PositionOutOfRange at once, or at the first poll."""
        ...

    def start_positions(self, topic: Topic) -> Positions:
        """The oldest record still there, for each partition."""
        ...

    def end_positions(self, topic: Topic) -> Positions:
        """Behind the newest record that a reader can see, for each partition."""
        ...

    def positions_at(self, topic: Topic, time_us: int) -> Positions:
        """The first record with a log time >= `time_us`, for each partition (the end position
        where there is none)."""
        ...

    def remove_before(self, positions: Mapping[TopicPartition, int]) -> None:
        """Remove the records of `tokens` and `batches` before `positions`, once they are
        archived. Raises LogError for `events`: facts are never removed."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class DatedLog(Protocol):
    """A log that can be told when records were appended elsewhere."""

    def append_dated(
        self, topic: Topic, records: Sequence[Record], log_times_us: Sequence[int]
    ) -> None:
        """Append records of another log with their log times there, (n,), which never step back.
        Raises as EventLog.append, and LogError for a time before the log's last."""
        ...


def check_sizes(topic: Topic, records: Sequence[Record]) -> None:
    """Raise RecordTooLarge for the first record over the limit."""
    for record in records:
        size = len(record.key.encode()) + len(record.value)
        if size > MAX_RECORD_BYTES:
            raise RecordTooLarge(
                f"record must be at most {MAX_RECORD_BYTES} bytes, got {size}"
                f" (topic {topic}, key {record.key[:80]!r})"
            )


def check_removable(place: TopicPartition, ends: Mapping[TopicPartition, int], offset: int) -> None:
    """Raise LogError for facts, PositionOutOfRange for an offset past the end."""
    if place.topic == "events":
        raise LogError("facts are never removed: topic must be tokens or batches, got events")
    if offset > ends[place]:
        raise PositionOutOfRange(
            f"records of {place} can be removed up to its end {ends[place]}, got {offset}"
        )
