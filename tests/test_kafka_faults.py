"""A Kafka broker that is away, killed or frozen: what appends and readers do."""

from __future__ import annotations

import os
import threading
import time

import pytest

from deploy.kafka.broker import free_port
from ledger.log import LogUnavailable, Record
from ledger.open_log import open_log
from tests.kafka_lab import FIRST, PASSWORD, Lab, kafka, values


@kafka
def test_opening_fails_within_ten_seconds_where_no_broker_is() -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(LogUnavailable, match=f"Kafka at 127.0.0.1:{port} is unavail") as caught:
        open_log(f"kafka://alice:{PASSWORD}@127.0.0.1:{port}/p?security_protocol=SASL_PLAINTEXT")
    assert time.monotonic() - began < 10
    assert PASSWORD not in str(caught.value)


@kafka
def test_a_broker_that_comes_back_finds_writers_and_readers_waiting(lab: Lab) -> None:
    with open_log(lab.url()) as log, log.reader({FIRST: 0}) as reader:
        log.append("events", [Record("key", b"before")])
        assert [batch.values for batch in reader.poll(5.0)] == [[b"before"]]
        lab.broker.kill()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(LogUnavailable):
                log.append("events", [Record("key", b"away")], timeout_s=1.0)
            assert time.monotonic() - began < 2.0
        assert reader.poll(0.5) == []
        lab.broker.start()
        log.append("events", [Record("key", b"after")])
        found: list[bytes] = []
        while b"after" not in found:
            for batch in reader.poll(5.0):
                found += batch.values
        assert found == [b"after"]  # what was never sent is not sent later either


@kafka
def test_nothing_is_lost_or_reordered_when_the_broker_is_killed_during_appends(lab: Lab) -> None:
    with open_log(lab.url(3)) as log:
        appended = stop = failures = 0

        def write() -> None:
            nonlocal appended, failures
            while not stop:
                numbers = range(appended, appended + 200)
                records = [Record(f"key {n % 5}", b"%d" % n) for n in numbers]
                try:
                    log.append("events", records, timeout_s=1.0)
                    appended += 200
                except LogUnavailable:
                    failures += 1

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(2):
            before = appended
            while appended < before + 600:
                time.sleep(0.01)
            lab.broker.kill()
            lab.broker.start()
        while appended < before + 1200:
            time.sleep(0.01)
        stop = 1
        writer.join()
        first_seen: dict[int, list[int]] = {}
        seen: set[int] = set()
        for number in map(int, values(log)):
            if number not in seen:
                seen.add(number)
                first_seen.setdefault(number % 5, []).append(number)
    assert failures > 0
    assert seen.issuperset(range(appended))
    assert all(numbers == sorted(numbers) for numbers in first_seen.values())


@kafka
def test_nothing_of_a_failed_append_arrives_behind_a_later_one(lab: Lab) -> None:
    with open_log(lab.url()) as log:
        log.append("events", [Record("key", b"first")])
        large = [Record("key", b"%d" % n + os.urandom(400_000)) for n in range(5)]
        with lab.frozen(), pytest.raises(LogUnavailable):
            log.append("events", large, timeout_s=1.0)  # five batches, of which one was sent
        log.append("events", [Record("key", b"later")], timeout_s=20.0)
        assert values(log)[-1] == b"later"
        assert len(values(log)) <= 3
