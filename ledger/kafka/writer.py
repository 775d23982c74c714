"""Appending to Kafka: one idempotent producer for everybody, and fenced writers on transactions.

Invariants:
- Records of one key arrive in the order of the calls, also when a call failed and was repeated. A
  producer whose call failed is thrown away before it can send what lay behind the failure, so
  nothing of that call can arrive behind a later call. (A batch that was already on its way may be
  in the log; its repetition is then a duplicate, which readers drop by the fact's id.)
- A fenced writer never takes its name back from a newer one: it does not initialise its
  transactional id a second time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ledger.kafka import client as kafka_client
from ledger.kafka.client import CLIENT_ERRORS, KafkaError, KafkaProducer, drop
from ledger.kafka.settings import PRODUCER, KafkaSettings
from ledger.kafka.topics import MAX_MESSAGE_BYTES, topic_name, unavailable
from ledger.log import Fenced, LogError, LogUnavailable, Record, Topic, check_sizes

TRANSACTION_TIMEOUT_MS = 10_000
"""The broker aborts a transaction that stays open longer. Until then it holds up every reader of
the partitions it wrote to."""
ABORT_TIMEOUT_S = 1.0
BROKER_MIN = (2, 7)
"""Older brokers don't tell a fenced producer so when it asks for a new epoch, and kafka-python then
takes the name back."""
NEVER_MS = 24 * 3600 * 1000
"""Batches must not expire one by one: the one behind an expired one would still be sent. `append`
keeps time itself, and drops the whole producer."""

Place = Callable[[str], tuple[bytes, None, int]]
"""From a key to the last arguments of KafkaProducer.send: key, headers, partition."""


def placement(partitions: int) -> Place:
    """Kafka's own rule for keys (murmur2), remembered: hashing in Python takes 10 us."""

    @functools.lru_cache(maxsize=1 << 16)
    def place(key: str) -> tuple[bytes, None, int]:
        data = key.encode()
        return data, None, (kafka_client.murmur2(data) & 0x7FFFFFFF) % partitions

    return place


class Appender:
    """One shared producer, made when it is first needed and again after a failure. Thread-safe."""

    def __init__(self, settings: KafkaSettings, place: Place) -> None:
        self._settings = settings
        self._place = place
        self._lock = threading.Lock()
        self._producer: Any = None
        self._closed = False

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float) -> None:
        """See EventLog.append."""
        check_sizes(topic, records)
        if not records:
            return
        deadline = time.monotonic() + timeout_s
        producer = self._current(timeout_s)

        def stop(_: BaseException) -> None:
            # in the sender's thread, before it could send the next batch of the same partition
            kafka_client.stop_sending(producer)

        try:
            futures = _send(producer, topic_name(self._settings, topic), records, self._place)
            for future in futures:
                future.add_errback(stop)
            kafka_client.wake(producer)
            _wait(futures, deadline)
        except BaseException as error:  # a KeyboardInterrupt leaves the same doubt behind
            self._discard(producer)
            if isinstance(error, KafkaError):
                raise unavailable(self._settings, error) from None
            raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            drop(producer)

    def _current(self, timeout_s: float) -> Any:
        with self._lock:
            if self._closed:
                raise LogError("append on a closed log")
            if self._producer is None:
                self._producer = new_producer(self._settings, timeout_s)
            return self._producer

    def _discard(self, producer: Any) -> None:
        with self._lock:
            if self._producer is producer:
                self._producer = None
        drop(producer)


class KafkaFencedWriter:
    """A writer alone under its name; one transaction per append. Used by one thread at a time.

    After LogUnavailable the outcome of that append is unknown: its commit may still take effect.
    The same writer may append again, and first waits until that outcome stands. Where the client
    has lost the thread (it says so), a new writer is needed. Fenced is also raised when the broker
    aborted a transaction whose commit came later than after 10 s: to the client it looks alike."""

    def __init__(self, settings: KafkaSettings, place: Place, name: str, timeout_s: float) -> None:
        self._settings = settings
        self._place = place
        self._name = f"{settings.prefix}.{name}"
        self._pending: Any = None
        self._broken: LogError | None = None
        deadline = time.monotonic() + timeout_s
        self._producer = new_producer(
            settings,
            timeout_s,
            transactional_id=self._name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            retry_backoff_ms=20,  # the next transaction waits for the markers of the last
        )
        try:
            if self._producer.config["api_version"] < BROKER_MIN:
                raise LogError(f"fenced writers need Kafka 2.7 or newer ({self._settings!r})")
            self._producer.config["max_block_ms"] = _left_ms(deadline)
            self._producer.init_transactions()
        except BaseException as error:
            drop(self._producer)
            if isinstance(error, KafkaError):
                raise self._translate(error) from None
            raise

    def append(self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0) -> None:
        """See FencedWriter.append."""
        for topic, each in records.items():
            check_sizes(topic, each)
        if self._broken is not None:
            raise self._broken
        deadline = time.monotonic() + timeout_s
        try:
            self._settle(deadline)
            if not any(records.values()):
                return
            self._producer.begin_transaction()
            self._write(records, deadline)
            self._end(commit=True, deadline=deadline)
        except KafkaError as error:
            raise self._translate(error) from None

    def close(self) -> None:
        drop(self._producer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, records: Mapping[Topic, Sequence[Record]], deadline: float) -> None:
        """Send and wait for every ack *before* the commit: kafka-python commits a transaction
        although a batch of it expired unsent."""
        futures: list[Any] = []
        try:
            for topic, each in records.items():
                name = topic_name(self._settings, topic)
                futures += _send(self._producer, name, each, self._place)
            kafka_client.wake(self._producer)
            _wait(futures, deadline)
        except BaseException:
            with contextlib.suppress(KafkaError):
                self._end(commit=False, deadline=time.monotonic() + ABORT_TIMEOUT_S)
            raise

    def _end(self, commit: bool, deadline: float) -> None:
        self._pending = kafka_client.begin_end_transaction(self._producer, commit)
        self._settle(deadline)

    def _settle(self, deadline: float) -> None:
        """Wait until the last commit or abort has come through."""
        if self._pending is None:
            return
        try:
            done = self._pending.wait(_left_ms(deadline))
        except KafkaError:
            self._pending = None
            raise
        if not done:
            raise kafka_client.KafkaTimeoutError("no answer to the end of a transaction")
        self._pending = None

    def _translate(self, error: Exception) -> LogError:
        """What to raise for `error`; remembers what can't get better.

        An InvalidProducerEpochError only says that the broker ended this producer's transaction.
        The client then asks whether it may go on under a new epoch: it may, unless there is a
        newer writer."""
        manager = self._producer._transaction_manager
        deadline = time.monotonic() + ABORT_TIMEOUT_S
        while manager.is_bumping_epoch() and time.monotonic() < deadline:
            time.sleep(0.005)
        causes = (error, *error.args, manager.last_error)
        if any(isinstance(each, kafka_client.ProducerFencedError) for each in causes):
            self._broken = Fenced(
                f"writer {self._name!r} is fenced: a newer writer of that name exists, or its"
                f" commit took longer than {TRANSACTION_TIMEOUT_MS / 1000:g} s"
            )
            return self._broken
        if manager.has_fatal_error():
            self._broken = LogUnavailable(
                f"writer {self._name!r} can't go on, open another one:"
                f" {unavailable(self._settings, manager.last_error)}"
            )
            return self._broken
        return unavailable(self._settings, error)


def new_producer(settings: KafkaSettings, timeout_s: float, **ours: Any) -> Any:
    """An idempotent producer. Raises LogUnavailable."""
    timeout_ms = max(1000, int(min(timeout_s, 8.0) * 1000))
    options = settings.options(
        PRODUCER,
        compression_type="lz4",
        batch_size=512 * 1024,
        linger_ms=2,
        max_request_size=2 * MAX_MESSAGE_BYTES,
        request_timeout_ms=30_000,
        reconnect_backoff_max_ms=1000,
        metrics_enabled=False,
    )
    fixed: dict[str, Any] = {
        "acks": "all",
        "enable_idempotence": True,
        "allow_auto_create_topics": False,
        "bootstrap_timeout_ms": timeout_ms,
        "max_block_ms": timeout_ms,
        "delivery_timeout_ms": NEVER_MS,
    }
    try:
        producer = KafkaProducer(**{**options, **fixed, **ours})
    except CLIENT_ERRORS as error:
        raise unavailable(settings, error) from None
    kafka_client.outlive_main(producer)
    return producer


def _send(producer: Any, name: str, records: Sequence[Record], place: Place) -> list[Any]:
    send = producer.send
    return [send(name, record.value, *place(record.key)) for record in records]


def _wait(futures: list[Any], deadline: float) -> None:
    """Until every record is acknowledged. Raises KafkaError."""
    for future in futures:
        if not future.is_done:
            future.get(_left_ms(deadline) / 1000)
    for future in futures:
        if future.exception is not None:
            raise future.exception


def _left_ms(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))
