"""Appending to Kafka for everybody: one shared idempotent producer.

Invariant: records of one key arrive in the order of the calls, also when a call failed and was
repeated. A producer whose call failed is thrown away before it can send what lay behind the
failure, so nothing of that call can arrive behind a later call. (A batch that was already on its
way may be in the log; its repetition is then a duplicate, which readers drop by the fact's id.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from ledger.kafka import client as kafka_client
from ledger.kafka.client import KafkaError, drop
from ledger.kafka.producer import Place, new_producer, send, wait_for
from ledger.kafka.settings import KafkaSettings
from ledger.kafka.topics import topic_name, unavailable
from ledger.log import LogError, Record, Topic, check_sizes


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
            futures = send(producer, topic_name(self._settings, topic), records, self._place)
            for future in futures:
                future.add_errback(stop)
            kafka_client.wake(producer)
            wait_for(futures, deadline)
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
