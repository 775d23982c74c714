"""KafkaLog: the log on a Kafka cluster.

    kafka/client         kafka-python, which no other module imports
    kafka/settings       the URL, its options, and what must never be shown of it
    kafka/topics         topics: made, checked, identified
    kafka/producer       an idempotent producer
    kafka/writer         append
    kafka/fenced_writer  append alone under a name, on transactions
    kafka/columns        records a batch at a time, rather than one by one
    kafka_log            this: reading, positions, and the object that holds it all together

How it keeps what `EventLog` promises: acks=all with an idempotent producer (durable, in order);
Kafka's own hash of the key over a number of partitions that never changes; LogAppendTime for the
log's clock, in milliseconds (it steps back only when a broker's clock does); transactional ids for
fencing. Every position and end is that of a read_committed reader, so what an open transaction
wrote, and all behind it, is not there yet; transaction markers take up offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ledger.kafka import settings as kafka_settings
from ledger.kafka.client import CLIENT_ERRORS, POSITION_ERRORS, KafkaConsumer
from ledger.kafka.client import TopicPartition as Partition
from ledger.kafka.columns import read_columns
from ledger.kafka.fenced_writer import KafkaFencedWriter
from ledger.kafka.producer import placement
from ledger.kafka.settings import CONSUMER, KafkaSettings
from ledger.kafka.topics import (
    CONNECT_TIMEOUT_S,
    open_topics,
    remove_records,
    topic_name,
    unavailable,
)
from ledger.kafka.writer import Appender
from ledger.log import (
    TOPICS,
    LogError,
    PositionOutOfRange,
    Positions,
    Record,
    RecordBatch,
    Topic,
    TopicPartition,
    check_removable,
)

QUERY_TIMEOUT_MS = 10_000
FETCH_MAX_WAIT_MS = 500
"""How long the broker holds an empty fetch; it answers at once when a record comes."""


class KafkaLog:
    """See EventLog."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._identity, self._partitions = open_topics(settings)
        self._place = placement(self._partitions)
        self._appender = Appender(settings, self._place)
        self._lock = threading.Lock()
        self._queries = new_consumer(settings)
        self._closed = False

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, str]) -> KafkaLog:
        """Open the log; takes at most about 10 s. Raises LogError, LogUnavailable,
        TopicMisconfigured."""
        return cls(kafka_settings.parse(url, options))

    def __repr__(self) -> str:
        return f"KafkaLog({self._settings!r})"

    @property
    def identity(self) -> str:
        return self._identity

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        self._appender.append(topic, records, timeout_s)

    def append_each(
        self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0
    ) -> None:
        for topic, of_topic in records.items():
            self._appender.append(topic, of_topic, timeout_s)

    def partition_of(self, key: str) -> int:
        return self._place(key)[2]

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> KafkaFencedWriter:
        def ends(topic: Topic, timeout_ms: int) -> Positions:
            return self._offsets(topic, self._queries.end_offsets, timeout_ms)

        return KafkaFencedWriter(self._settings, self._place, name, timeout_s, ends)

    def reader(self, positions: Mapping[TopicPartition, int]) -> KafkaReader:
        for topic in TOPICS:
            if any(each.topic == topic for each in positions):
                start, end = self.start_positions(topic), self.end_positions(topic)
                check_range(positions, topic, start, end)
        return KafkaReader(self._settings, positions)

    def start_positions(self, topic: Topic) -> Positions:
        return self._offsets(topic, self._queries.beginning_offsets)

    def end_positions(self, topic: Topic) -> Positions:
        return self._offsets(topic, self._queries.end_offsets)

    def positions_at(self, topic: Topic, time_us: int) -> Positions:
        # The end first: a record that comes in between would else be skipped.
        end = self.end_positions(topic)
        time_ms = max(0, -(-time_us // 1000))

        def look_up(partitions: list[Any], timeout_ms: int) -> dict[Any, int | None]:
            times = dict.fromkeys(partitions, time_ms)
            found = self._queries.offsets_for_times(times, timeout_ms=timeout_ms)
            return {each: at.offset if at else None for each, at in found.items()}

        found = self._offsets(topic, look_up)
        return {each: end[each] if at is None else at for each, at in found.items()}

    def remove_before(self, positions: Mapping[TopicPartition, int]) -> None:
        for place, offset in positions.items():
            check_removable(place, self.end_positions(place.topic), offset)
        remove_records(self._settings, positions)

    def close(self) -> None:
        self._appender.close()
        with self._lock:
            self._closed = True
            self._queries.close(autocommit=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _offsets(
        self,
        topic: Topic,
        ask: Callable[..., dict[Any, Any]],
        timeout_ms: int = QUERY_TIMEOUT_MS,
    ) -> dict[Any, Any]:
        name = topic_name(self._settings, topic)
        partitions = [Partition(name, number) for number in range(self._partitions)]
        try:
            with self._lock:
                if self._closed:
                    raise LogError("a question to a closed log")
                found = ask(partitions, timeout_ms=timeout_ms)
        except CLIENT_ERRORS as error:
            raise unavailable(self._settings, error) from None
        return {TopicPartition(topic, each.partition): found[each] for each in partitions}


class KafkaReader:
    """See Reader. While the brokers are away `poll` returns [], and goes on when they are back."""

    def __init__(self, settings: KafkaSettings, positions: Mapping[TopicPartition, int]) -> None:
        self._settings = settings
        self._ours: dict[Any, TopicPartition] = {
            Partition(topic_name(settings, each.topic), each.partition): each for each in positions
        }
        self._failed: PositionOutOfRange | None = None
        self._consumer = new_consumer(settings)
        read_columns(self._consumer)
        self._consumer.assign(list(self._ours))
        for theirs, ours in self._ours.items():
            self._consumer.seek(theirs, positions[ours])

    @property
    def positions(self) -> Positions:
        position = self._consumer.position
        return {ours: position(theirs, timeout_ms=0) for theirs, ours in self._ours.items()}

    def poll(self, timeout_s: float, max_records: int = 10_000) -> list[RecordBatch]:
        if self._failed is not None:
            raise self._failed
        try:
            got = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=max_records)
            return [self._batch(theirs, records) for theirs, records in got.items()]
        except POSITION_ERRORS as error:
            self._failed = PositionOutOfRange(
                f"a position is not in the log any more ({error}): records were removed, or the"
                " topic was made anew"
            )
            raise self._failed from None
        except CLIENT_ERRORS as error:
            raise unavailable(self._settings, error) from None

    def close(self) -> None:
        self._consumer.close(autocommit=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _batch(self, theirs: Any, records: list[Any]) -> RecordBatch:
        ours = self._ours[theirs]
        next_offset = self._consumer.position(theirs, timeout_ms=0)
        batch = RecordBatch(ours.topic, ours.partition, [], [], [], [], next_offset)
        for columns in filter(None, records):
            batch.offsets.extend(columns.offsets)
            batch.log_times_us.extend([columns.time_ms * 1000] * len(columns))
            batch.keys.extend([key.decode("utf-8", "replace") for key in columns.keys])
            batch.values.extend(columns.values)
        return batch


def check_range(
    positions: Mapping[TopicPartition, int], topic: Topic, start: Positions, end: Positions
) -> None:
    """Raise PositionOutOfRange for the first position of `topic` outside of the log."""
    for each, at in positions.items():
        if each.topic != topic:
            continue
        if each not in start:
            raise PositionOutOfRange(f"partition {each} does not exist: there are {len(start)}")
        if not start[each] <= at <= end[each]:
            raise PositionOutOfRange(
                f"position {at} of {each} must be between {start[each]} (the log's start) and"
                f" {end[each]} (its end): this is another log, or records were removed from it"
            )


def new_consumer(settings: KafkaSettings) -> Any:
    """A consumer without a group. Raises LogUnavailable."""
    options = settings.options(
        CONSUMER,
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        request_timeout_ms=15_000,
        reconnect_backoff_max_ms=1000,
        check_crcs=True,
        metrics_enabled=False,
    )
    fixed: dict[str, Any] = {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
        "bootstrap_timeout_ms": int(CONNECT_TIMEOUT_S * 1000),
    }
    try:
        return KafkaConsumer(**{**options, **fixed})
    except CLIENT_ERRORS as error:
        raise unavailable(settings, error) from None
