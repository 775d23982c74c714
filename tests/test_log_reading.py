"""What every EventLog must do for its readers: positions, times, waiting.

`test_log.py` has the rest."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import defaultdict

import pytest

from ledger.log import TOPICS, EventLog, PositionOutOfRange, Positions
from ledger.open_log import open_log
from tests.log_rows import read_rows, records


def test_an_empty_log_starts_where_it_ends(log_url: str) -> None:
    with open_log(log_url) as log:
        for topic in TOPICS:
            start = log.start_positions(topic)
            assert set(start.values()) == {0}
            assert {place.topic for place in start} == {topic}
            assert log.end_positions(topic) == start
            assert log.positions_at(topic, 0) == start
            with log.reader(start) as reader:
                assert reader.poll(0.05) == []
                assert reader.positions == start


def test_a_reader_of_several_topics_reaches_all_ends_behind_fenced_appends(log_url: str) -> None:
    with open_log(log_url) as log, log.fenced_writer("assembler:run-1") as writer:
        start = {place: o for topic in TOPICS for place, o in log.start_positions(topic).items()}
        log.append("events", records("a", range(5)))
        writer.append({"events": records("b", range(5)), "batches": records("run-1", [0])})
        log.append("tokens", records("c", range(5)))
        writer.append({"batches": records("run-1", [1])})
        ends = {place: o for topic in TOPICS for place, o in log.end_positions(topic).items()}
        rows, positions = read_rows(log, start)
        assert positions == ends
    assert sorted((topic, key, value) for topic, _, _, key, value in rows) == sorted(
        [("events", key, str(n).encode()) for key in "ab" for n in range(5)]
        + [("tokens", "c", str(n).encode()) for n in range(5)]
        + [("batches", "run-1", b"0"), ("batches", "run-1", b"1")]
    )


def test_reading_goes_on_exactly_where_another_reader_stopped(log_url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    expected: list[bytes] = []
    with open_log(log_url) as log, log.fenced_writer("assembler:resume") as writer:
        for _ in range(12):
            numbers = range(len(expected), len(expected) + rng.randint(1, 40))
            batch = [record for n in numbers for record in records(f"g{n % 5}", [n])]
            if rng.random() < 0.5:
                log.append("events", batch)
            else:
                writer.append({"events": batch})
            expected += [record.value for record in batch]
        positions = log.start_positions("events")
        found: list[bytes] = []
        by_key: defaultdict[str, list[bytes]] = defaultdict(list)
        while len(found) < len(expected):
            k = min(rng.randint(1, 30), len(expected) - len(found))
            rows, positions = read_rows(log, positions, limit=k)
            assert len(rows) == k
            for *_, key, value in rows:
                found.append(value)
                by_key[key].append(value)
        _, positions = read_rows(log, positions)
        assert positions == log.end_positions("events")
    assert sorted(found, key=int) == expected
    assert by_key == {f"g{k}": [v for v in expected if int(v) % 5 == k] for k in range(5)}


def test_the_positions_at_a_time_are_those_of_the_first_record_not_older(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("events", records("g", [1, 2]))
        between = log.end_positions("events")
        time.sleep(0.02)
        log.append("events", records("g", [3]))
        with log.reader(log.start_positions("events")) as reader:
            times_us: list[int] = []
            while len(times_us) < 3:
                times_us += [t for batch in reader.poll(1.0) for t in batch.log_times_us]
        start, end = log.start_positions("events"), log.end_positions("events")
        assert log.positions_at("events", 0) == start
        assert values_from(log, log.positions_at("events", times_us[0])) == [b"1", b"2", b"3"]
        assert log.positions_at("events", times_us[1] + 1) == between
        assert log.positions_at("events", times_us[2]) == between
        assert values_from(log, log.positions_at("events", times_us[2])) == [b"3"]
        assert log.positions_at("events", times_us[2] + 1) == end
        assert log.positions_at("events", times_us[2] + 3_600_000_000) == end


def values_from(log: EventLog, positions: Positions) -> list[bytes]:
    return [value for *_, value in read_rows(log, positions)[0]]


def test_log_times_are_now_and_never_step_back(log_url: str) -> None:
    before_us = time.time_ns() // 1000
    with open_log(log_url) as log, log.fenced_writer("assembler:times") as writer:
        for n in range(10):
            log.append("events", records("g", [n]))
            writer.append({"events": records("g", [n])})
        times_us: list[int] = []
        with log.reader(log.start_positions("events")) as reader:
            while len(times_us) < 20:
                times_us += [t for batch in reader.poll(1.0) for t in batch.log_times_us]
    assert times_us == sorted(times_us)
    # A log's clock may count whole milliseconds, and belong to another process.
    assert before_us - 1_000_000 < times_us[0] <= times_us[-1] < time.time_ns() // 1000 + 1_000_000


def test_a_position_outside_the_log_is_refused(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("events", records("g", [1]))
        past = {place: offset + 1 for place, offset in log.end_positions("events").items()}
        with pytest.raises(PositionOutOfRange):
            poll_once(log, past)
        with pytest.raises(PositionOutOfRange):
            poll_once(log, {place: offset + 10**9 for place, offset in past.items()})


def poll_once(log: EventLog, positions: Positions) -> None:
    with log.reader(positions) as reader:
        reader.poll(5.0)


def test_a_waiting_reader_wakes_within_a_tenth_of_a_second(log_url: str) -> None:
    delays_s: list[float] = []
    with open_log(log_url) as log, log.reader(log.start_positions("events")) as reader:
        reader.poll(0.2)
        for n in range(9):
            woken: list[float] = []

            def wait(woken: list[float] = woken) -> None:
                if reader.poll(10.0):
                    woken.append(time.monotonic())

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(random.uniform(0.03, 0.12))
            log.append("events", records("g", [n]))
            appended = time.monotonic()
            thread.join()
            delays_s.append(woken[0] - appended)
    assert statistics.median(delays_s) < 0.1, delays_s


def test_a_poll_that_gets_nothing_ends_in_time(log_url: str) -> None:
    with open_log(log_url) as log, log.reader(log.end_positions("events")) as reader:
        reader.poll(0.0)
        started = time.monotonic()
        assert reader.poll(0.3) == []
        assert 0.25 < time.monotonic() - started < 1.5
