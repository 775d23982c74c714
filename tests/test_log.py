"""What every EventLog must do: each test runs against each implementation.

`log_url` (tests/conftest.py) names a new, empty log; a URL that is opened twice is one log."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from ledger.log import (
    MAX_RECORD_BYTES,
    TOPICS,
    EventLog,
    Fenced,
    PositionOutOfRange,
    Positions,
    Reader,
    Record,
    RecordTooLarge,
    Topic,
    TopicPartition,
)
from ledger.open_log import open_log

READ_LIMIT_S = 30.0


def records(key: str, numbers: Sequence[int]) -> list[Record]:
    return [Record(key, str(number).encode()) for number in numbers]


def read_rows(
    log: EventLog, positions: Mapping[TopicPartition, int], limit: int | None = None
) -> tuple[list[tuple[Topic, int, int, str, bytes]], Positions]:
    """All (topic, partition, offset, key, value) from `positions` to the end, or `limit` of them,
    and the reader's positions then."""
    ends = {place: log.end_positions(place.topic)[place] for place in positions}
    with log.reader(positions) as reader:
        rows = rows_of(reader, lambda rows: rows_left(reader, ends, rows, limit))
        return rows, reader.positions


def rows_left(reader: Reader, ends: Positions, rows: Sequence[object], limit: int | None) -> int:
    if limit is not None:
        return limit - len(rows)
    return 0 if all(reader.positions[place] >= ends[place] for place in ends) else 10_000


def rows_of(
    reader: Reader, left: Callable[[Sequence[object]], int]
) -> list[tuple[Topic, int, int, str, bytes]]:
    rows: list[tuple[Topic, int, int, str, bytes]] = []
    deadline = time.monotonic() + READ_LIMIT_S
    while (wanted := left(rows)) > 0:
        assert time.monotonic() < deadline, f"only {len(rows)} records in {READ_LIMIT_S} s"
        for batch in reader.poll(0.5, max_records=wanted):
            assert batch.next_offset > batch.offsets[-1]
            assert batch.offsets == sorted(set(batch.offsets))
            columns = zip(batch.offsets, batch.keys, batch.values, strict=True)
            rows += [(batch.topic, batch.partition, *row) for row in columns]
    return rows


def values_by_key(log: EventLog, topic: Topic) -> dict[str, list[bytes]]:
    rows, _ = read_rows(log, log.start_positions(topic))
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for _, _, _, key, value in rows:
        found[key].append(value)
    return dict(found)


def partitions_by_key(log: EventLog, topic: Topic) -> dict[str, set[int]]:
    rows, _ = read_rows(log, log.start_positions(topic))
    found: defaultdict[str, set[int]] = defaultdict(set)
    for _, partition, _, key, _ in rows:
        found[key].add(partition)
    return dict(found)


def in_other_processes(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of `work(*one)` for each, each in a process of its own, all at once."""
    with ProcessPoolExecutor(len(arguments), mp_context=get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(work, *one) for one in arguments]]


def another_url(log_url: str) -> str:
    """The URL of a second log beside `log_url`."""
    base, mark, query = log_url.partition("?")
    return f"{base}-second{mark}{query}"


def values_of_key(url: str, topic: Topic, key: str) -> list[bytes]:
    with open_log(url) as log:
        return values_by_key(log, topic)[key]


def test_an_append_can_be_read_in_another_process_once_it_returned(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("events", records("run-1", [1, 2, 3]))
        values = in_other_processes(values_of_key, [(log_url, "events", "run-1")])
    assert values == [[b"1", b"2", b"3"]]


def test_an_append_outlives_its_log_object(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("tokens", records("g", [7]))
    with open_log(log_url) as log:
        assert values_by_key(log, "tokens") == {"g": [b"7"]}
        assert values_by_key(log, "events") == {}


def test_records_of_a_key_are_read_in_the_order_of_their_appends(log_url: str) -> None:
    with open_log(log_url) as log:
        for start in range(0, 300, 30):
            mixed = [
                record
                for n in range(start, start + 30)
                for record in records(f"group-{n % 7}", [n])
            ]
            log.append("events", mixed)
        found = values_by_key(log, "events")
    assert found == {
        f"group-{k}": [str(n).encode() for n in range(300) if n % 7 == k] for k in range(7)
    }


def append_to_keys(url: str, keys: Sequence[str]) -> None:
    with open_log(url) as log:
        log.append("events", [record for key in keys for record in records(key, [0])])
        with log.fenced_writer("assembler:keys") as writer:
            writer.append({"events": [record for key in keys for record in records(key, [1])]})


def test_a_key_stays_in_one_partition_whoever_appends(log_url: str) -> None:
    keys = [f"group-{n}" for n in range(40)] + ["", "ключ", "🐍"]
    append_to_keys(log_url, keys)
    in_other_processes(append_to_keys, [(log_url, keys)])
    with open_log(log_url) as log:
        found = partitions_by_key(log, "events")
    assert set(found) == set(keys)
    assert {key: len(partitions) for key, partitions in found.items()} == dict.fromkeys(keys, 1)


def test_keys_and_values_come_back_exactly_as_they_were(log_url: str) -> None:
    appended = [
        Record("🎲 group", b"dice"),
        Record("empty", b""),
        Record("nul", b"\x00a\x00b\x00"),
        Record("line\nbreak 'quoted'", bytes(range(256))),
    ]
    with open_log(log_url) as log:
        for topic in TOPICS:
            log.append(topic, appended)
            assert values_by_key(log, topic) == {
                "🎲 group": [b"dice"],
                "empty": [b""],
                "nul": [b"\x00a\x00b\x00"],
                "line\nbreak 'quoted'": [bytes(range(256))],
            }


def test_appending_nothing_changes_nothing(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("events", [])
        assert log.end_positions("events") == log.start_positions("events")


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


def test_twenty_thousand_records_go_into_one_append(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("events", [Record(f"g{n % 10}", b"%06d" % n) for n in range(20_000)])
        rows, _ = read_rows(log, log.start_positions("events"))
    assert sorted(value for *_, value in rows) == [b"%06d" % n for n in range(20_000)]


def test_a_record_may_be_large(log_url: str) -> None:
    large = random.Random(3).randbytes(3 * 1024 * 1024)
    largest = bytes(MAX_RECORD_BYTES - 1)
    with open_log(log_url) as log:
        log.append("tokens", [Record("g", large), Record("g", largest)])
        assert values_by_key(log, "tokens") == {"g": [large, largest]}


def test_of_an_append_with_too_large_a_record_nothing_is_appended(log_url: str) -> None:
    too_large = Record("g", bytes(MAX_RECORD_BYTES))
    with open_log(log_url) as log, log.fenced_writer("assembler:large") as writer:
        log.append("events", records("g", [1]))
        with pytest.raises(RecordTooLarge, match="at most 4194304 bytes, got 4194305"):
            log.append("events", [*records("g", [2]), too_large, *records("g", [3])])
        with pytest.raises(RecordTooLarge, match="topic tokens"):
            writer.append({"events": records("g", [4]), "tokens": [too_large]})
        log.append("events", records("g", [5]))
        assert values_by_key(log, "events") == {"g": [b"1", b"5"]}
        assert values_by_key(log, "tokens") == {}


def test_an_older_fenced_writer_can_append_nothing(log_url: str) -> None:
    with open_log(log_url) as log, open_log(log_url) as other:
        old = log.fenced_writer("assembler:run-1")
        old.append({"events": records("g", [1]), "batches": records("run-1", [1])})
        new = other.fenced_writer("assembler:run-1")
        with pytest.raises(Fenced):
            old.append({"events": records("g", [2]), "batches": records("run-1", [2])})
        new.append({"events": records("g", [3]), "batches": records("run-1", [3])})
        with pytest.raises(Fenced):
            old.append({"events": records("g", [4])})
        old.close()
        new.append({"events": records("g", [5])})
        new.close()
        assert values_by_key(log, "events") == {"g": [b"1", b"3", b"5"]}
        assert values_by_key(log, "batches") == {"run-1": [b"1", b"3"]}


def test_fenced_writers_of_different_names_do_not_fence_each_other(log_url: str) -> None:
    with open_log(log_url) as log:
        first, second = log.fenced_writer("assembler:run-1"), log.fenced_writer("assembler:run-2")
        first.append({"events": records("run-1", [1])})
        second.append({"events": records("run-2", [1])})
        first.append({"events": records("run-1", [2])})
        first.close()
        second.close()
        assert values_by_key(log, "events") == {"run-1": [b"1", b"2"], "run-2": [b"1"]}


def append_many(url: str, writer: int, appends: int, records_each: int) -> None:
    with open_log(url) as log:
        for n in range(appends):
            numbers = range(n * records_each, (n + 1) * records_each)
            log.append("events", [r for i in numbers for r in records(f"{writer}-{i % 3}", [i])])


def test_many_writing_processes_lose_double_and_reorder_nothing(log_url: str) -> None:
    in_other_processes(append_many, [(log_url, writer, 40, 25) for writer in range(4)])
    with open_log(log_url) as log:
        found = values_by_key(log, "events")
    assert found == {
        f"{writer}-{k}": [str(i).encode() for i in range(1000) if i % 3 == k]
        for writer in range(4)
        for k in range(3)
    }


def test_threads_may_share_one_log(log_url: str) -> None:
    with open_log(log_url) as log:

        def append_and_look(thread: int) -> None:
            for n in range(20):
                log.append("events", records(f"thread-{thread}", [n]))
                log.end_positions("events")

        threads = [threading.Thread(target=append_and_look, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert values_by_key(log, "events") == {
            f"thread-{t}": [str(n).encode() for n in range(20)] for t in range(4)
        }


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


def identity_of(url: str) -> str:
    with open_log(url) as log:
        return log.identity


def test_processes_that_open_a_new_log_at_once_make_one_log(log_url: str) -> None:
    identities = in_other_processes(identity_of, [(log_url,)] * 4)
    assert set(identities) == {identity_of(log_url)}


def test_another_log_has_another_identity(log_url: str) -> None:
    assert identity_of(log_url) != identity_of(another_url(log_url))
    assert identity_of(log_url) == identity_of(log_url)
