"""One spool: what it keeps, in which order that comes to the log, and what a failure costs."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger.log import LogUnavailable, Record, Topic
from ledger.recording.spool import drain_orphans, orphans, spool_name
from ledger.recording.spool_file import Spool
from ledger.sqlite_log import SqliteLog
from ledger.wire.encoder import FactEncoder
from tests.builders import a_draft
from tests.recorded import RUN, each_once, values_in


def numbered(start: int, stop: int, key: str = "k") -> list[Record]:
    return [Record(key, str(number).encode()) for number in range(start, stop)]


def drain_all(spool: Spool, log: Any) -> int:
    moved = 0
    while not spool.empty:
        moved += spool.drain(log, 5.0)
    return moved


class Watched:
    """A log that notes its appends, and fails before or behind some of them."""

    def __init__(self, log: SqliteLog, fails: Callable[[], str] = lambda: "") -> None:
        self.log = log
        self.fails = fails
        self.topics: list[str] = []

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        fails = self.fails()
        if fails == "before":
            raise LogUnavailable("failed before the append")
        self.topics.append(topic)
        self.log.append(topic, records, timeout_s)
        if fails == "behind":
            raise LogUnavailable("failed behind the append")


def test_payloads_come_before_facts_and_the_file_goes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s" / "a.spool")
    assert spool.empty
    for n in range(0, 50, 10):
        spool.append(numbered(n, n + 5), numbered(n, n + 10))
    assert not spool.empty
    with SqliteLog(tmp_path / "log.db") as log:
        watched = Watched(log)
        assert drain_all(spool, watched) == 75
        tokens, events = values_in(log, "tokens"), values_in(log, "events")
    assert events == [str(n).encode() for n in range(50)]
    assert tokens == [str(10 * n + i).encode() for n in range(5) for i in range(5)]
    assert watched.topics == ["tokens", "events"]
    assert os.listdir(tmp_path / "s") == ["a.owner"]
    spool.close()
    assert os.listdir(tmp_path / "s") == []


def test_an_append_that_fails_anywhere_loses_nothing_and_changes_no_order(tmp_path: Path) -> None:
    chance = random.Random(7)
    spool = Spool(tmp_path / "a.spool")
    spool.append(numbered(0, 3_000, "t"), numbered(0, 5_000))
    with SqliteLog(tmp_path / "log.db") as log:
        watched = Watched(log, lambda: chance.choice(["", "before", "behind"]))
        while not spool.empty:
            try:
                spool.drain(watched, 5.0)  # type: ignore[arg-type]
            except LogUnavailable:
                continue
        tokens, events = values_in(log, "tokens"), values_in(log, "events")
    assert list(dict.fromkeys(events)) == [str(n).encode() for n in range(5_000)]
    assert list(dict.fromkeys(tokens)) == [str(n).encode() for n in range(3_000)]
    spool.close()


def test_facts_that_come_while_it_is_drained_go_behind_and_none_is_forgotten(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path / "a.spool")
    begun = threading.Event()

    def append() -> None:
        for n in range(0, 4_000, 20):
            spool.append(numbered(n, n + 1, "t"), numbered(n, n + 20))
            begun.set()
            if n % 400 == 0:
                time.sleep(0.01)

    appender = threading.Thread(target=append)
    with SqliteLog(tmp_path / "log.db") as log:
        appender.start()
        begun.wait()
        while appender.is_alive() or not spool.empty:
            spool.drain(log, 5.0)
            if not appender.is_alive() and spool.empty:
                break
        assert values_in(log, "events") == [str(n).encode() for n in range(4_000)]
        assert values_in(log, "tokens") == [str(n).encode() for n in range(0, 4_000, 20)]
    spool.close()


def test_a_crash_between_append_and_removal_only_sends_again(tmp_path: Path) -> None:
    dead = Spool(tmp_path / "a.spool")
    dead.append([], numbered(0, 5_000))
    with SqliteLog(tmp_path / "log.db") as log:
        dead.drain(log, 5.0)
        note = (tmp_path / "a.drained").read_bytes()
        dead.drain(log, 5.0)
        (tmp_path / "a.drained").write_bytes(note)
        dead.close()
        (spool,) = orphans(tmp_path)
        assert drain_all(spool, log) == 3_000
        spool.close()
        events = values_in(log, "events")
    assert len(events) == 7_000
    assert list(dict.fromkeys(events)) == [str(n).encode() for n in range(5_000)]


@pytest.mark.parametrize(
    "note",
    ["", "{", "[]", '{"tokens": 0}', '{"tokens": 0, "events": 99}', '{"tokens":0,"events":-1}'],
)
def test_a_note_that_makes_no_sense_sends_everything_again(note: str, tmp_path: Path) -> None:
    dead = Spool(tmp_path / "a.spool")
    dead.append([], numbered(0, 3))
    dead.close()
    (tmp_path / "a.drained").write_text(note)
    with SqliteLog(tmp_path / "log.db") as log:
        assert drain_orphans(log, tmp_path, 5.0) == 3
        assert values_in(log, "events") == [b"0", b"1", b"2"]
    assert sorted(path.name for path in tmp_path.glob("a.*")) == []


def test_a_note_that_cannot_be_written_does_not_stop_the_draining(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append([], numbered(0, 5_000))
    (tmp_path / "a.partial").mkdir()
    with SqliteLog(tmp_path / "log.db") as log:
        assert drain_all(spool, log) == 5_000
        assert len(values_in(log, "events")) == 5_000
    spool.close()


def test_an_append_too_much_for_the_log_is_made_smaller(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append([], numbered(0, 5_000))

    class Slow(Watched):
        def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
            if len(records) > 100:
                raise LogUnavailable("not in time")
            super().append(topic, records, timeout_s)

    with SqliteLog(tmp_path / "log.db") as log:
        slow = Slow(log)
        while not spool.empty:
            try:
                spool.drain(slow, 5.0)  # type: ignore[arg-type]
            except LogUnavailable:
                continue
        assert values_in(log, "events") == [str(n).encode() for n in range(5_000)]
    spool.close()


def test_large_payloads_move_a_few_at_a_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append([Record("t", bytes(3_000_000))] * 7, [])
    with SqliteLog(tmp_path / "log.db") as log:
        assert [spool.drain(log, 5.0) for _ in range(4)] == [3, 3, 1, 0]
        assert len(values_in(log, "tokens")) == 7
    spool.close()


def test_records_that_are_drained_are_the_bytes_that_were_spooled(tmp_path: Path) -> None:
    encoder = FactEncoder("p", RUN)
    records = encoder.encode([a_draft("turn_completed", seed=n) for n in range(3)]).events
    dead = Spool(tmp_path / spool_name("p", encoder.incarnation))
    dead.append([], records)
    dead.close()
    with SqliteLog(tmp_path / "log.db") as log:
        assert drain_orphans(log, tmp_path, 5.0) == 3
        values = values_in(log, "events")
    assert values == [record.value for record in records]
    assert [fact.producer_seq for fact in each_once(values)] == [0, 1, 2]


def test_an_orphan_that_the_log_refuses_stays(tmp_path: Path) -> None:
    dead = Spool(tmp_path / "a.spool")
    dead.append([], numbered(0, 3))
    dead.close()
    with SqliteLog(tmp_path / "log.db") as log:
        with pytest.raises(LogUnavailable, match="failed before the append"):
            drain_orphans(Watched(log, lambda: "before"), tmp_path, 5.0)  # type: ignore[arg-type]
        assert drain_orphans(log, tmp_path, 5.0) == 3
    assert [path.name for path in tmp_path.glob("a*")] == []
