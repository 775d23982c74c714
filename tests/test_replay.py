"""Replay: the same log gives the same rows, to its end or up to a position or a time."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from api.book_commands import parse_until
from consumers import projector
from consumers.rebuild import project, rebuild
from ledger.book import Book, BookError, BookInUse
from ledger.facts import FACTS
from ledger.log import EventLog, RecordBatch, TopicPartition
from ledger.open_log import open_log
from ledger.sqlite.reader import SqliteReader
from tests.books import append, differing_tables, numbered, rows
from tests.builders import a_fact, a_turn, an_id


def test_replay_equals_live(log_url: str, tmp_path: Path) -> None:
    with open_log(log_url) as log:
        for chunk in range(5):
            facts = [
                a_fact(name, seed=100 * chunk + i, group_id=an_id("group", i % 7))
                if "group_id" in FACTS[name].__dataclass_fields__
                else a_fact(name, seed=100 * chunk + i)
                for i, name in enumerate(FACTS)
            ]
            append(log, numbered(facts, an_id("incarnation", chunk)))
            append(log, [b"garbage", facts[3]])
            project(log, tmp_path / "live")
        rebuild(log, tmp_path / "replayed")
    assert rows(tmp_path / "live", "SELECT count(*) FROM facts") == [(5 * len(FACTS),)]
    assert differing_tables(tmp_path / "live", tmp_path / "replayed") == []


def test_replay_until_a_position_has_what_lies_before_it(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        append(log, numbered([a_turn(i) for i in range(10)]))
        rebuild(log, tmp_path / "book", parse_until(log, "events/0:4"))
        book = tmp_path / "book"
        assert rows(book, "SELECT max(turn_no) FROM turn_completed") == [(3,)]
        assert rows(book, "SELECT next_offset FROM positions") == [(4,)]
        project(log, book)  # it goes on from there
        assert rows(book, "SELECT max(turn_no) FROM turn_completed") == [(9,)]


def test_replay_until_a_position_reads_no_further_than_the_poll_that_reaches_it(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector, "POLL_RECORDS", 10)
    polled: list[int] = []
    poll = SqliteReader.poll

    def counted(self: SqliteReader, timeout_s: float, max_records: int) -> list[RecordBatch]:
        batches = poll(self, timeout_s, max_records)
        polled.extend(map(len, batches))
        return batches

    monkeypatch.setattr(SqliteReader, "poll", counted)
    with open_log(sqlite_url) as log:
        append(log, numbered([a_turn(i) for i in range(50)]))
        done = rebuild(log, tmp_path / "book", parse_until(log, "events/0:14"))
    assert (done.facts, polled) == (14, [10, 10])


def test_replay_until_a_time_has_what_was_appended_before_it(log_url: str, tmp_path: Path) -> None:
    with open_log(log_url) as log:
        append(log, numbered([a_turn(i) for i in range(5)]))
        project(log, tmp_path / "book")
        ((last,),) = rows(tmp_path / "book", "SELECT max(log_time)::VARCHAR FROM turn_completed")
        time.sleep(0.05)
        append(log, [a_turn(i, producer_seq=i) for i in range(5, 9)])
        ((later,),) = _appended_after(log, tmp_path, last)
        rebuild(log, tmp_path / "replayed", parse_until(log, later))
    assert rows(tmp_path / "replayed", "SELECT count(*) FROM turn_completed") == [(5,)]


def _appended_after(log: EventLog, tmp_path: Path, last: str) -> list[tuple[str]]:
    project(log, tmp_path / "book")
    return rows(
        tmp_path / "book",
        f"SELECT min(log_time)::VARCHAR FROM turn_completed WHERE log_time > '{last}'",
    )


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("events/0:11", "position of events/0 must be from 0 to 10, got 11"),
        ("events/7:1", "the log has 1 partitions, and no events/7"),
        ("yesterday", "--until must be positions like events/0:123 or a time like"),
    ],
)
def test_until_somewhere_that_is_not_in_the_log_is_refused(
    sqlite_url: str, tmp_path: Path, until: str, message: str
) -> None:
    with open_log(sqlite_url) as log:
        append(log, numbered([a_turn(i) for i in range(10)]))
        with pytest.raises(BookError, match=message):
            rebuild(log, tmp_path / "book", parse_until(log, until))
    assert not (tmp_path / "book").exists()


def test_a_book_of_other_tables_is_rebuilt_beside_and_put_in_its_place(
    sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "book"
    with open_log(sqlite_url) as log:
        append(log, [*numbered([a_turn(i) for i in range(3)]), b"garbage"])
        project(log, path)
        with duckdb.connect(str(path)) as book:
            book.execute("UPDATE book_meta SET value = 'older' WHERE name = 'hash'")
            book.execute("DELETE FROM quarantine")
            book.execute("ALTER TABLE turn_completed DROP COLUMN segment_reason")
        assert project(log, path).facts == 3
    assert rows(path, "SELECT count(segment_reason) FROM turn_completed") == [(0,)]
    assert rows(path, "SELECT count(*) FROM quarantine") == [(1,)]
    assert sorted(each.name for each in tmp_path.iterdir() if "book" in each.name) == ["book"]


def test_an_interrupted_rebuild_goes_on_where_it_was(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        append(log, numbered([a_turn(i) for i in range(10)]))
        rebuild(log, tmp_path / "half", {TopicPartition("events", 0): 6})
        (tmp_path / "half").rename(tmp_path / "book.rebuild")
        assert rebuild(log, tmp_path / "book").facts == 4
    assert rows(tmp_path / "book", "SELECT count(*) FROM turn_completed") == [(10,)]


def test_a_book_that_is_open_is_not_replaced(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0)])
        project(log, tmp_path / "book")
        context = multiprocessing.get_context("spawn")
        ready, done = context.Event(), context.Event()
        owner = context.Process(target=_hold, args=(tmp_path / "book", log.identity, ready, done))
        owner.start()
        assert ready.wait(30)
        with pytest.raises(BookInUse):
            rebuild(log, tmp_path / "book")
        done.set()
        owner.join()
        rebuild(log, tmp_path / "book")


def _hold(path: Path, identity: str, ready: Any, done: Any) -> None:
    book = Book(path, identity)
    ready.set()
    done.wait(30)
    book.close()


def test_a_rebuild_that_somebody_else_is_at_is_left_alone(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0)])
        context = multiprocessing.get_context("spawn")
        ready, done = context.Event(), context.Event()
        path = tmp_path / "book.rebuild"
        owner = context.Process(target=_hold, args=(path, log.identity, ready, done))
        owner.start()
        assert ready.wait(30)
        for until in (None, {TopicPartition("events", 0): 1}):
            with pytest.raises(BookInUse):
                rebuild(log, tmp_path / "book", until)
        assert path.exists()
        done.set()
        owner.join()
