"""A Kafka broker that tests may kill, and what they look into it with."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from deploy.kafka.broker import Broker, free_port
from ledger.log import EventLog, Topic, TopicPartition

PASSWORD = "hunter2-never-shown"
FIRST = TopicPartition("events", 0)
kafka = pytest.mark.kafka


@dataclass
class Lab:
    """A broker that a test may kill, with a second listener that wants a password."""

    broker: Broker
    bootstrap: str
    sasl: str

    def url(self, partitions: int = 1) -> str:
        return f"kafka://{self.bootstrap}/t{uuid.uuid4().hex[:12]}?partitions={partitions}"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped in its tracks: it takes connections and requests, and answers none."""
        pid = self.broker.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def started_lab(folder: Path) -> Iterator[Lab]:
    """Fixture `lab` starts one for the session: whoever kills it starts it again."""
    port, sasl, controller = free_port(), free_port(), free_port()
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}"
        f",CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        ",SASL_PLAINTEXT:SASL_PLAINTEXT",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_alice="{PASSWORD}";',
    }
    broker = Broker(folder, port, settings)
    try:
        yield Lab(broker, broker.start(), f"127.0.0.1:{sasl}")
    finally:
        broker.kill()


def values(log: EventLog, topic: Topic = "events") -> list[bytes]:
    """All values up to the end, in reading order."""
    found: list[bytes] = []
    end = log.end_positions(topic)
    with log.reader(log.start_positions(topic)) as reader:
        while any(reader.positions[place] < end[place] for place in end):
            for batch in reader.poll(1.0):
                found += batch.values
    return found


def wait_for(log: EventLog, value: bytes) -> list[bytes]:
    """All values up to and with `value`; a commit is visible a moment after its append."""
    deadline = time.monotonic() + 20
    while value not in (found := values(log)):
        assert time.monotonic() < deadline, (value, found[-3:])
        time.sleep(0.02)
    return found


def bootstrap_of(url: str) -> str:
    return url.removeprefix("kafka://").partition("/")[0]


def prefix_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


@contextmanager
def admin_of(url: str) -> Iterator[Any]:
    with KafkaAdminClient(bootstrap_servers=bootstrap_of(url)) as admin:
        yield admin
