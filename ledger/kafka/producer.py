"""An idempotent producer, and what both kinds of writers do with one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from ledger.kafka import client as kafka_client
from ledger.kafka.client import CLIENT_ERRORS, KafkaProducer
from ledger.kafka.settings import PRODUCER, KafkaSettings
from ledger.kafka.topics import MAX_MESSAGE_BYTES, unavailable
from ledger.log import Record

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


def send(producer: Any, name: str, records: Sequence[Record], place: Place) -> list[Any]:
    """Hand records to the producer: a future for each."""
    send_one = producer.send
    return [send_one(name, record.value, *place(record.key)) for record in records]


def wait_for(futures: list[Any], deadline: float) -> None:
    """Until every record is acknowledged. Raises KafkaError."""
    for future in futures:
        if not future.is_done:
            future.get(left_ms(deadline) / 1000)
    for future in futures:
        if future.exception is not None:
            raise future.exception


def left_ms(deadline: float) -> int:
    """Milliseconds until a monotonic time."""
    return max(0, int((deadline - time.monotonic()) * 1000))
