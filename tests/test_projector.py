"""Log -> book: every fact with all its values, and positions that travel with the rows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.projector import Projector, chunk_records
from consumers.rebuild import project
from ledger.avro import encode_fact
from ledger.book import Book, BookError, BookInUse, BookOfAnotherLog, connect
from ledger.facts import FACTS
from ledger.log import PositionOutOfRange, TopicPartition
from ledger.open_log import open_log
from ledger.recorder import Recorder
from tests.books import append, numbered, projected, rows
from tests.builders import a_fact, a_turn, an_id, any_fact, plain
from tests.recorded import eventually


def test_every_kind_of_fact_reaches_its_table_with_all_its_values(
    log_url: str, tmp_path: Path
) -> None:
    facts = numbered([a_fact(name, seed=i) for i, name in enumerate(FACTS)])
    with open_log(log_url) as log:
        append(log, facts)
    done = projected(log_url, tmp_path / "book")
    assert (done.facts, done.duplicates, done.quarantined) == (len(FACTS), 0, 0)
    for name, fact in zip(FACTS, facts, strict=True):
        columns = list(plain(fact))
        names = ", ".join(f'"{column}"' for column in columns)
        (row,) = rows(tmp_path / "book", f"SELECT {names} FROM {name}")
        assert plain(dict(zip(columns, row, strict=True))) == plain(fact), name


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_fact(), min_size=1, max_size=30))
def test_any_facts_are_kept_as_they_were_recorded(
    tmp_path_factory: pytest.TempPathFactory, facts: list[object]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        append(log, [encode_fact(fact) for fact in facts if type(fact) in FACTS.values()])
    done = projected(url, folder / "book")
    assert done.facts + done.duplicates + done.quarantined == sum(
        type(fact) in FACTS.values() for fact in facts
    )
    assert rows(folder / "book", "SELECT * FROM quarantine WHERE reason <> 'conflict'") == []


def test_a_book_of_another_log_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with open_log(f"sqlite:///{tmp_path / name}.db") as log:
            append(log, [a_turn(0)])
    projected(f"sqlite:///{tmp_path}/one.db", tmp_path / "book")
    with pytest.raises(BookOfAnotherLog, match="give another --book"):
        projected(f"sqlite:///{tmp_path}/other.db", tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT count(*) FROM turn_completed") == [(1,)]


def test_a_position_that_the_log_does_not_have_is_an_error_not_a_fresh_start(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0)])
        project(log, tmp_path / "book")
        book = Book(tmp_path / "book", log.identity)
        book.set_positions({TopicPartition("events", 0): 17})
        book.close()
        with pytest.raises(PositionOutOfRange):
            project(log, tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT count(*) FROM turn_completed") == [(1,)]


def test_a_second_process_is_told_who_holds_the_book(sqlite_url: str, tmp_path: Path) -> None:
    projected_path = tmp_path / "book"
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0)])
        project(log, projected_path)
    script = (
        f"import duckdb, sys; book = duckdb.connect({str(projected_path)!r});"
        " print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with pytest.raises(BookInUse, match=f"process {owner.pid}"):
            connect(projected_path)
        owner.communicate("")


def test_a_file_of_something_else_is_refused_unchanged(sqlite_url: str, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS one")
    with open_log(sqlite_url), pytest.raises(BookError, match="no book"):
        projected(sqlite_url, foreign)
    assert rows(foreign, "FROM t") == [(1,)]
    (tmp_path / "text").write_text("not a database " * 1000)
    with pytest.raises(BookError, match="not a valid DuckDB"):
        projected(sqlite_url, tmp_path / "text")


def test_a_question_that_fits_no_memory_goes_beside_the_book(tmp_path: Path) -> None:
    path = tmp_path / "it's a book"
    Book(path, "log").close()
    hashes = "SELECT md5(i::VARCHAR) AS h FROM range(1_000_000) AS t(i)"
    query = (
        f"SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY h) AS place FROM ({hashes}))"
    )
    for _ in range(2):  # the second time its place is in use
        book = connect(path, read_only=True)
        book.execute("SET memory_limit = '40MB'; SET threads = 1")
        assert book.execute(query).fetchall() == [(1_000_000,)]
        spilled = book.execute("SELECT current_setting('temp_directory')").fetchall()
        assert spilled == [(f"{path}.tmp",)]


def test_following_shows_facts_within_a_second_of_their_recording(
    log_url: str, tmp_path: Path
) -> None:
    stop = threading.Event()
    with open_log(log_url) as log:
        book = Book(tmp_path / "book", log.identity)
        projector = Projector(log, book)
        thread = threading.Thread(target=projector.follow, args=(stop,))
        thread.start()
        try:
            waits = []
            with Recorder(
                log_url, producer="p", run_id=an_id("run"), spool_dir=tmp_path
            ) as recorder:
                for i in range(5):
                    start = time.monotonic()
                    recorder.turn_completed(
                        group_id=an_id("group"),
                        slot=0,
                        trajectory_id=an_id("trajectory"),
                        turn_no=i,
                    )
                    cursor = book.connection.cursor()
                    while cursor.execute("SELECT count(*) FROM turn_completed").fetchall() != [
                        (i + 1,)
                    ]:
                        assert time.monotonic() - start < 20
                        time.sleep(0.01)
                    waits.append(time.monotonic() - start)
        finally:
            stop.set()
            thread.join()
            book.close()
    assert sorted(waits)[2] < 1.0, waits


def test_an_insert_that_fails_leaves_neither_rows_nor_positions(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        append(log, numbered([a_turn(i) for i in range(3)]))
        book = Book(tmp_path / "book", log.identity)
        book.connection.execute("DROP TABLE positions")
        with pytest.raises(Exception, match="positions"):
            Projector(log, book).catch_up()
        assert book.connection.execute("SELECT count(*) FROM turn_completed").fetchall() == [(0,)]
        book.close()


def test_a_known_end_is_neared_in_ever_smaller_chunks() -> None:
    here, there = TopicPartition("events", 0), TopicPartition("events", 1)
    target = {here: 200_000, there: 30_000}
    left_after = [(0, 0), (50_000, 0), (170_000, 0), (185_000, 15_000), (200_000, 29_999)]
    assert [chunk_records({here: a, there: b}, target) for a, b in left_after] == [
        50_000, 50_000, 30_000, 15_000, 10_000
    ]  # fmt: skip
    assert chunk_records({here: 200_000, there: 99_999}, target) == 10_000


def test_a_pause_between_chunks_holds_up_neither_the_first_one_nor_the_end(
    sqlite_url: str, tmp_path: Path
) -> None:
    stop = threading.Event()
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0)])
        book = Book(tmp_path / "book", log.identity)
        projector = Projector(log, book)
        thread = threading.Thread(target=projector.follow, args=(stop, 3600.0))
        thread.start()
        eventually(lambda: projector.inserted.facts == 1, 30.0)
        append(log, [a_turn(1)])
        stop.set()
        thread.join(30.0)
        assert not thread.is_alive()
        assert projector.inserted.facts == 1
        book.close()
