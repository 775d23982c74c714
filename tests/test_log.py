"""What every EventLog must do: each test runs against each implementation.

`log_url` (tests/conftest.py) names a new, empty log; a URL that is opened twice is one log."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence

import pytest

from ledger.log import MAX_RECORD_BYTES, TOPICS, EventLog, Fenced, Record, RecordTooLarge, Topic
from ledger.open_log import open_log
from tests.log_rows import in_other_processes, read_rows, records, values_by_key


def partitions_by_key(log: EventLog, topic: Topic) -> dict[str, set[int]]:
    rows, _ = read_rows(log, log.start_positions(topic))
    found: defaultdict[str, set[int]] = defaultdict(set)
    for _, partition, _, key, _ in rows:
        found[key].add(partition)
    return dict(found)


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


def test_topics_are_appended_in_their_order(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append_each({"tokens": records("g", [7]), "events": records("g", [1, 2])})
        log.append_each({"tokens": [], "events": records("g", [3])})
        with pytest.raises(RecordTooLarge, match="topic tokens"):
            log.append_each(
                {"tokens": [Record("g", bytes(5_000_000))], "events": records("g", [4])}
            )
        assert values_by_key(log, "tokens") == {"g": [b"7"]}
        assert values_by_key(log, "events") == {"g": [b"1", b"2", b"3"]}


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


def identity_of(url: str) -> str:
    with open_log(url) as log:
        return log.identity


def test_processes_that_open_a_new_log_at_once_make_one_log(log_url: str) -> None:
    identities = in_other_processes(identity_of, [(log_url,)] * 4)
    assert set(identities) == {identity_of(log_url)}


def test_another_log_has_another_identity(log_url: str) -> None:
    assert identity_of(log_url) != identity_of(another_url(log_url))
    assert identity_of(log_url) == identity_of(log_url)
