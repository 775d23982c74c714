# pyright: basic
"""kafka-python, as the other `ledger.kafka_*` modules see it; the only module that imports it.

The library is typed in parts and wrongly in some, so its names pass through here untyped. Two
things are put right on import:

- it logs every request at DEBUG, also the SASL one that carries the password, and all options of
  an admin client: filters hide them;
- without the `crc32c` package it checks records in Python, which makes reading five times slower:
  that is warned of.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from typing import Any

import kafka
from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.consumer.fetcher import Fetcher
from kafka.partitioner.default import murmur2 as _murmur2
from kafka.record.default_records import DefaultRecordBatch

KafkaProducer: Any = kafka.KafkaProducer
KafkaConsumer: Any = kafka.KafkaConsumer
KafkaAdminClient: Any = kafka.KafkaAdminClient
TopicPartition: Any = kafka.TopicPartition  # pyright: ignore[reportAttributeAccessIssue]
PartitionRecords: Any = Fetcher.PartitionRecords
WireBatch: Any = DefaultRecordBatch
LOG_APPEND_TIME: int = DefaultRecordBatch.LOG_APPEND_TIME

KafkaError: type[Exception] = errors.KafkaError
KafkaTimeoutError: type[Exception] = errors.KafkaTimeoutError
RetriableError: type[Exception] = errors.RetriableError  # pyright: ignore[reportAttributeAccessIssue]
ProducerFencedError: type[Exception] = errors.ProducerFencedError
POSITION_ERRORS: tuple[type[Exception], ...] = (
    errors.OffsetOutOfRangeError,
    errors.LogTruncationError,  # pyright: ignore[reportAttributeAccessIssue]
)
CLIENT_ERRORS: tuple[type[Exception], ...] = (errors.KafkaError, OSError)
"""What a client raises when brokers can't be reached or refuse."""


def error_of(code: int) -> type[Exception]:
    """The error class of a code in an answer."""
    return errors.for_code(code)


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key."""
    return _murmur2(data)


def topic_configs(admin: Any, names: list[str]) -> dict[str, dict[str, str | None]]:
    """Every setting of each topic, by name."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    configs = admin.describe_configs(resources, config_filter="all").get("topic", {})
    return {
        name: {key: each["value"] for key, each in settings.items()}
        for name, settings in configs.items()
    }


def outlive_main(producer: Any) -> None:
    """Keep a producer open while the interpreter ends: kafka-python would close it before whoever
    records through it could send the last facts."""
    producer._unregister_cleanup()


def wake(producer: Any) -> None:
    """Have the sender look for work at once."""
    producer._sender.wakeup()


def stop_sending(producer: Any) -> None:
    """Forbid the sender to send anything more. May be called in the sender's own thread."""
    producer._sender.force_close()


def drop(producer: Any) -> None:
    """Stop a producer at once; what it has not sent is never sent.

    `KafkaProducer.close` does not do that: it raises while records are waiting, and goes on
    sending them in the background."""
    stop_sending(producer)
    producer._sender.join(2.0)
    with contextlib.suppress(errors.KafkaError):
        producer.close(timeout=0)


def begin_end_transaction(producer: Any, commit: bool) -> Any:
    """Start to commit or abort; the result's `wait(timeout_ms)` tells whether it is done.

    The public calls do the same, but wait for ever."""
    manager = producer._transaction_manager
    result = manager.begin_commit() if commit else manager.begin_abort()
    wake(producer)
    return result


class _HideSasl(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                f"{type(arg).__name__}(***)" if type(arg).__name__.startswith("Sasl") else arg
                for arg in record.args
            )
        return True


class _NoDebug(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


logging.getLogger("kafka.net.connection").addFilter(_HideSasl())
for name in ("kafka.protocol.parser", "kafka.admin.client"):
    logging.getLogger(name).addFilter(_NoDebug())

if importlib.util.find_spec("crc32c") is None:
    warnings.warn(
        "the crc32c package is missing, so reading from Kafka is five times slower:"
        " pip install crc32c",
        RuntimeWarning,
        stacklevel=2,
    )
