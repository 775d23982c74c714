"""Log -> book: ours, and a bare kafka-python consumer that decodes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measured import Clock, Measured
from consumers.rebuild import rebuild
from ledger.kafka import settings as kafka_settings
from ledger.kafka.client import TopicPartition as Partition
from ledger.kafka.topics import topic_name
from ledger.kafka_log import new_consumer
from ledger.open_log import open_log


def project(url: str, book: str, facts: int) -> Measured:
    """Rebuild the book from the whole log; from the first question to the log to the last
    checkpoint of the book. It has at least `facts`: a recorder adds what it says of itself."""
    with open_log(url) as log, Clock() as clock:
        done = rebuild(log, Path(book))
    if done.facts < facts or done.duplicates or done.quarantined:
        raise RuntimeError(f"expected {facts} facts, got {done}")
    return clock.measured(done.facts)


def read(url: str, facts: int) -> Measured:
    """Read so many records with a bare KafkaConsumer of the same settings (read_committed)."""
    settings = kafka_settings.parse(url, {})
    name = topic_name(settings, "events")
    consumer: Any = new_consumer(settings)
    partitions = [Partition(name, number) for number in sorted(consumer.partitions_for_topic(name))]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    count = 0
    with Clock() as clock:
        while count < facts:
            got = consumer.poll(timeout_ms=1000, max_records=10_000)
            count += sum(map(len, got.values()))
    consumer.close()
    return clock.measured(count)
