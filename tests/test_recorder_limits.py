"""A recorder that can't record: it waits no longer than it may, counts what is lost, says so."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.recorder import Recorder
from ledger.sqlite_log import SqliteLog
from ledger.tokens import Tokens
from tests.builders import plain
from tests.recorded import (
    IDS,
    Make,
    check_numbers,
    each_once,
    eventually,
    facts_in,
    of,
    turns_in,
    values_in,
)


@pytest.fixture
def stuck(tmp_path: Path, make: Make) -> tuple[Callable[..., Recorder], Path]:
    """Makes recorders whose log and spool are both away, until the log's directory is made."""
    (tmp_path / "file").write_text("a spool's folder can't be in a file")
    away = tmp_path / "away"

    def make_stuck(**options: Any) -> Recorder:
        spool = tmp_path / "file" / "spool"
        return make(f"sqlite:///{away}/log.db", spool_dir=spool, **options)

    return make_stuck, away


def test_aflush_gives_up_in_time_and_a_cancelled_one_harms_nobody(
    stuck: tuple[Make, Path],
) -> None:
    make_stuck, away = stuck
    recorder = make_stuck()
    recorder.turn_completed(**IDS, turn_no=0)

    async def wait() -> bool:
        task = asyncio.create_task(recorder.aflush())
        await asyncio.sleep(0.05)
        task.cancel()
        return await recorder.aflush(0.1)

    assert asyncio.run(wait()) is False
    assert recorder.flush(0.1) is False
    away.mkdir()
    assert recorder.flush()
    assert turns_in(f"sqlite:///{away}/log.db") == [0]


def test_a_closed_recorder_counts_and_raises_nothing(
    sqlite_url: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = make(sqlite_url)
    recorder.turn_completed(**IDS, turn_no=0)
    assert recorder.close()
    for turn_no in range(1, 100):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.flush()
    assert recorder.lost == 99
    assert not recorder.close()
    assert turns_in(sqlite_url) == [0]
    said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == ["turn_completed is lost, and what follows it: the recorder is closed"]


def test_facts_that_race_with_close_are_recorded_or_counted(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    counts = [0] * 4
    flushed: list[bool] = []
    begun = threading.Barrier(5)

    def record(number: int) -> None:
        begun.wait()
        for _ in range(3_000):
            recorder.turn_completed(**(IDS | {"slot": number}), turn_no=counts[number])
            counts[number] += 1
        flushed.append(recorder.flush(10.0))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.02)
    recorder.close()
    for thread in threads:
        thread.join()
    assert len(turns_in(sqlite_url)) + recorder.lost == sum(counts) == 12_000
    assert flushed == [True] * 4


def test_a_full_queue_holds_callers_no_longer_than_the_bound_and_is_reported(
    stuck: tuple[Make, Path],
) -> None:
    make_stuck, away = stuck
    recorder = make_stuck(queue_limit=100, block_s=0.1, alive_every_s=0.02)
    longest = 0.0
    begun = time.monotonic()
    for turn_no in range(30_000):
        before = time.monotonic()
        recorder.turn_completed(**IDS, turn_no=turn_no)
        longest = max(longest, time.monotonic() - before)
    assert longest < 0.1 + 0.5
    assert time.monotonic() - begun < 20.0
    lost = recorder.lost
    assert lost > 10_000
    away.mkdir()
    assert recorder.flush()
    facts = facts_in(f"sqlite:///{away}/log.db")
    turns = [turn.turn_no for turn in of(facts, "TurnCompleted")]
    assert turns == sorted(set(turns))
    assert len(turns) + lost == 30_000
    for pulse in of(facts, "ProducerAlive"):
        # What is behind a pulse was recorded behind it, however much was on the queue then.
        later = [
            turn for turn in of(facts, "TurnCompleted") if turn.producer_seq > pulse.producer_seq
        ]
        assert all(
            turn.occurred_at > pulse.occurred_at - timedelta(milliseconds=50) for turn in later
        )
    reports = of(facts, "ProducerLost")
    assert {report.reason.value for report in reports} == {"queue_full"}
    assert sum(report.count for report in reports) == lost
    detail = reports[0].detail.head
    assert detail.startswith("queue of 100 facts or ")
    assert "the directory of a SQLite log must exist" in detail
    assert "spool" in detail
    check_numbers(facts)
    recorder.close()
    (closed,) = of(facts_in(f"sqlite:///{away}/log.db"), "ProducerClosed")
    assert closed.accepted == 30_000


def test_a_queue_that_had_room_again_waits_again(stuck: tuple[Make, Path]) -> None:
    make_stuck, away = stuck
    recorder = make_stuck(queue_limit=10, block_s=5.0)
    for turn_no in range(20):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    away.mkdir()
    for turn_no in range(20, 6_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.close()
    assert turns_in(f"sqlite:///{away}/log.db") == list(range(6_000))


def test_large_payloads_fill_the_queue_by_their_size(stuck: tuple[Make, Path]) -> None:
    make_stuck, _ = stuck
    recorder = make_stuck(block_s=0.01)
    ids = [1] * 400_000
    tokens = Tokens(ids, ids, ids)
    for turn_no in range(80):
        recorder.turn_completed(**IDS, turn_no=turn_no, tokens=tokens)
    assert 30 <= recorder.lost <= 70
    recorder.close(0.1)
    assert recorder.lost == 80


def test_what_neither_log_nor_spool_took_is_counted_at_close(stuck: tuple[Make, Path]) -> None:
    make_stuck, _ = stuck
    recorder = make_stuck()
    for turn_no in range(5_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    begun = time.monotonic()
    assert not recorder.close(0.5)
    assert time.monotonic() - begun < 3.0
    assert recorder.lost == 5_000


def test_secrets_of_the_url_are_in_no_message_and_no_fact(
    make: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledger.recording.log_link.OPEN_WAIT_S", 0.5)
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "file"
    folder.write_text("in the way of the spool, so that facts are lost")
    recorder = make(
        "kafka://user:hunter%2B2@127.0.0.1:9/lab?ssl_password=pillow7",
        options={"sasl_mechanism": "PLAIN"},
        spool_dir=folder / "spool",
        queue_limit=10,
        block_s=0.0,
    )
    eventually(lambda: "facts go to the spool" in caplog.text)
    for turn_no in range(20_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.lost > 1_000
    folder.unlink()
    assert recorder.flush()
    (spool,) = (folder / "spool").rglob("*.spool")
    with open_spool(spool) as log:
        facts = each_once(values_in(log, "events"))
    (lost, *_) = of(facts, "ProducerLost")
    assert "log kafka://***@127.0.0.1:9/lab?ssl_password=***" in lost.detail.head
    recorder.close(1.0)
    texts = [caplog.text, *(str(plain(fact)) for fact in facts)]
    texts += [str(record.args) for record in caplog.records]
    for text in texts:
        assert "hunter" not in text
        assert "pillow7" not in text


def open_spool(path: Path) -> SqliteLog:
    """A copy of a live spool, which has its own locks."""
    copy = path.with_name("copy.db")
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return SqliteLog(copy)
