"""Appending to Kafka alone under a name: one transaction per append.

Invariants:
- A fenced writer never takes its name back from a newer one: it does not initialise its
  transactional id a second time.
- Whoever reads after a writer was closed reads all that it committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ledger.kafka import client as kafka_client
from ledger.kafka.client import KafkaError, drop
from ledger.kafka.producer import Place, left_ms, new_producer, send, wait_for
from ledger.kafka.settings import KafkaSettings
from ledger.kafka.topics import topic_name, unavailable
from ledger.log import (
    TOPICS,
    Fenced,
    LogError,
    LogUnavailable,
    Positions,
    Record,
    Topic,
    TopicPartition,
    check_sizes,
)

TRANSACTION_TIMEOUT_MS = 10_000
"""The broker aborts a transaction that stays open longer. Until then it holds up every reader of
the partitions it wrote to."""
ABORT_TIMEOUT_S = 1.0
READABLE_S = 5.0
"""Most seconds that `close` waits until readers see the last commit."""
BROKER_MIN = (2, 7)
"""Older brokers don't tell a fenced producer so when it asks for a new epoch, and kafka-python then
takes the name back."""


class KafkaFencedWriter:
    """A writer alone under its name; one transaction per append. Used by one thread at a time.

    After LogUnavailable the outcome of that append is unknown: its commit may still take effect.
    The same writer may append again, and first waits until that outcome stands. Where the client
    has lost the thread (it says so), a new writer is needed. Fenced is also raised when the broker
    aborted a transaction whose commit came later than after 10 s: to the client it looks alike.

    A commit stands before readers see it: the broker writes its markers a moment later. `close`
    waits for them, so that whoever reads after it, reads everything."""

    def __init__(
        self,
        settings: KafkaSettings,
        place: Place,
        name: str,
        timeout_s: float,
        ends: Callable[[Topic, int], Positions],
    ) -> None:
        """`ends`: the positions up to which readers see a topic, found within so many milliseconds;
        raises LogError."""
        self._settings = settings
        self._place = place
        self._ends = ends
        self._last: dict[TopicPartition, int] = {}
        """Offset of the last record in each partition that the last commit wrote to."""
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
            self._producer.config["max_block_ms"] = left_ms(deadline)
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
            self._last = {}
            self._producer.begin_transaction()
            written = self._write(records, deadline)
            self._end(commit=True, deadline=deadline)
            self._last = written
        except KafkaError as error:
            raise self._translate(error) from None

    def close(self) -> None:
        drop(self._producer)
        deadline = time.monotonic() + READABLE_S
        with contextlib.suppress(LogError):  # also of a log that was closed before
            while not self._readable(deadline) and time.monotonic() < deadline:
                time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _readable(self, deadline: float) -> bool:
        """Whether readers see the last commit. Raises LogError."""
        ends: Positions = {}
        for topic in TOPICS:
            if any(each.topic == topic for each in self._last):
                ends |= self._ends(topic, left_ms(deadline))
        return all(offset < ends[each] for each, offset in self._last.items())

    def _write(
        self, records: Mapping[Topic, Sequence[Record]], deadline: float
    ) -> dict[TopicPartition, int]:
        """Send and wait for every ack *before* the commit: kafka-python commits a transaction
        although a batch of it expired unsent. The last offset in each partition."""
        sent: dict[Topic, list[Any]] = {}
        try:
            for topic, each in records.items():
                name = topic_name(self._settings, topic)
                sent[topic] = send(self._producer, name, each, self._place)
            kafka_client.wake(self._producer)
            for futures in sent.values():
                wait_for(futures, deadline)
        except BaseException:
            with contextlib.suppress(KafkaError):
                self._end(commit=False, deadline=time.monotonic() + ABORT_TIMEOUT_S)
            raise
        return {
            TopicPartition(topic, future.value.partition): future.value.offset
            for topic, futures in sent.items()
            for future in futures
        }

    def _end(self, commit: bool, deadline: float) -> None:
        self._pending = kafka_client.begin_end_transaction(self._producer, commit)
        self._settle(deadline)

    def _settle(self, deadline: float) -> None:
        """Wait until the last commit or abort has come through."""
        if self._pending is None:
            return
        try:
            done = self._pending.wait(left_ms(deadline))
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
