"""Fenced writers of a Kafka log, and what transactions do to its readers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

from ledger.kafka.fenced_writer import READABLE_S
from ledger.log import Fenced, FencedWriter, LogError, LogUnavailable, Record
from ledger.open_log import open_log
from tests.kafka_lab import Lab, bootstrap_of, kafka, prefix_of, values, wait_for


@contextmanager
def raw_transaction(url: str, name: str, value: bytes) -> Iterator[Any]:
    """A producer of kafka-python's own that has `value` in an open transaction."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap_of(url), transactional_id=f"{prefix_of(url)}.{name}"
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(f"{prefix_of(url)}.events", value, b"key").get(10)
        yield producer
    finally:
        producer._sender.force_close()


def append_at_last(writer: FencedWriter, value: bytes) -> None:
    """A machine so busy that the broker aborts the transaction costs another try."""
    for _ in range(3):
        with contextlib.suppress(LogUnavailable):
            writer.append({"events": [Record("key", value)]})
            return
    raise AssertionError("three appends failed")


@kafka
def test_a_writer_that_wakes_up_inside_its_transaction_is_fenced_by_a_newer_one(
    kafka_url: str,
) -> None:
    with open_log(kafka_url) as log, raw_transaction(kafka_url, "writer", b"old") as old:
        with log.fenced_writer("writer") as new:
            old.send(f"{prefix_of(kafka_url)}.events", b"zombie", b"key")
            old.flush(10)
            with pytest.raises(KafkaError):
                old.commit_transaction()
            append_at_last(new, b"new")
        assert wait_for(log, b"new") == [b"new"]


@kafka
def test_an_older_writer_stays_fenced(kafka_url: str) -> None:
    with open_log(kafka_url) as log, log.fenced_writer("writer") as old:
        old.append({"events": [Record("key", b"old")]})
        with log.fenced_writer("writer") as new:
            for _ in range(3):
                with pytest.raises(Fenced, match=r"\.writer' is fenced"):
                    old.append({"events": [Record("key", b"zombie")]})
            new.append({"events": [Record("key", b"new")]})
        assert wait_for(log, b"new") == [b"old", b"new"]


@kafka
def test_a_killed_writers_transaction_holds_up_readers_until_there_is_a_new_writer(
    kafka_url: str,
) -> None:
    with open_log(kafka_url) as log:
        script = (
            "import os, sys; from tests.test_kafka_transactions import raw_transaction\n"
            f"with raw_transaction({kafka_url!r}, 'writer', b'half'): os.kill(os.getpid(), 9)"
        )
        child = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1])
        assert child.returncode == -signal.SIGKILL
        log.append("events", [Record("key", b"behind")])
        assert values(log) == []
        with log.fenced_writer("writer") as writer:
            writer.append({"events": [Record("key", b"new")]})
            assert wait_for(log, b"new") == [b"behind", b"new"]


@kafka
def test_readers_reach_the_end_behind_transaction_markers(kafka_url: str) -> None:
    with open_log(kafka_url) as log, log.fenced_writer("writer") as writer:
        for number in range(3):
            writer.append({"events": [Record("key", b"%d" % number)]})
        wait_for(log, b"2")
        (end,) = set(log.end_positions("events").values()) - {0}
        assert end == 6  # three records, three markers
        assert values(log) == [b"0", b"1", b"2"]


@kafka
def test_whoever_reads_after_a_writer_was_closed_reads_all_that_it_committed(
    kafka_url: str,
) -> None:
    with open_log(kafka_url) as log:
        for number in range(20):
            with log.fenced_writer("writer") as writer:
                writer.append({"events": [Record("key", b"%d" % number)]})
            assert set(log.end_positions("events").values()) == {0, 2 * number + 2}
        assert values(log) == [b"%d" % number for number in range(20)]


@kafka
def test_a_writer_is_closed_in_time_where_the_broker_is_gone(lab: Lab) -> None:
    with open_log(lab.url()) as log:
        writer = log.fenced_writer("writer")
        writer.append({"events": [Record("key", b"value")], "tokens": [Record("key", b"value")]})
        lab.broker.kill()
        try:
            began = time.monotonic()
            writer.close()
            assert time.monotonic() - began < 2 * READABLE_S
        finally:
            lab.broker.start()


@kafka
def test_a_writer_may_be_closed_after_its_log(kafka_url: str) -> None:
    log = open_log(kafka_url)
    writer = log.fenced_writer("writer")
    writer.append({"events": [Record("key", b"value")]})
    log.close()
    writer.close()
    with pytest.raises(LogError, match="closed log"):
        log.end_positions("events")


@kafka
def test_a_fenced_append_is_whole_or_absent_when_the_broker_is_killed(lab: Lab) -> None:
    with open_log(lab.url(2)) as log:
        writer = log.fenced_writer("writer")
        appended: set[int] = set()
        number = 0
        killer = threading.Thread(target=lambda: (lab.broker.kill(), lab.broker.start()))
        while number < 20 or killer.is_alive():
            if number == 10:
                killer.start()
            events = [Record(f"key {n}", b"%d" % number) for n in range(4)]
            try:
                writer.append({"events": events}, timeout_s=2.0)
                appended.add(number)
            except (LogUnavailable, Fenced):
                writer.close()
                while True:
                    try:
                        writer = log.fenced_writer("writer", timeout_s=2.0)
                        break
                    except LogUnavailable:
                        pass
            number += 1
        writer.append({"events": [Record(f"key {n}", b"last") for n in range(4)]})
        writer.close()
        deadline = time.monotonic() + 20
        while (found := values(log)).count(b"last") < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
    counts = {value: found.count(value) for value in found}
    assert set(counts.values()) == {4}
    assert {b"%d" % each for each in appended} <= set(counts)


@kafka
def test_a_fenced_writer_goes_on_after_a_broker_that_hung(lab: Lab) -> None:
    with open_log(lab.url()) as log, log.fenced_writer("writer") as writer:
        writer.append({"events": [Record("key", b"before")]})
        with lab.frozen(), pytest.raises(LogUnavailable):
            writer.append({"events": [Record("key", b"hung")]}, timeout_s=1.0)
        writer.append({"events": [Record("key", b"after")]}, timeout_s=20.0)
        found = wait_for(log, b"after")
        assert [value for value in found if value != b"hung"] == [b"before", b"after"]
