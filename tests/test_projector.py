"""Log -> book: every fact once, nothing bad stops it, positions travel with the rows."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.projector import Projector
from consumers.rebuild import project
from ledger import avro
from ledger.avro import MARKER, encode, encode_fact, header_of, wire_types
from ledger.book import Book, BookError, BookInUse, BookOfAnotherLog, connect
from ledger.facts import FACTS, Fact
from ledger.log import PositionOutOfRange, TopicPartition
from ledger.open_log import open_log
from ledger.recorder import Recorder
from tests.books import append, numbered, projected, rows
from tests.builders import a_fact, a_turn, a_v7_id, an_id, any_fact, plain


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


def test_projecting_again_changes_nothing(log_url: str, tmp_path: Path) -> None:
    with open_log(log_url) as log:
        append(log, numbered([a_turn(i) for i in range(50)]))
        assert project(log, tmp_path / "book").facts == 50
        assert project(log, tmp_path / "book").facts == 0
        append(log, [a_turn(50, producer_seq=50)])
        assert project(log, tmp_path / "book").facts == 1
    assert rows(tmp_path / "book", "SELECT count(*) FROM turn_completed") == [(51,)]


def test_facts_delivered_twice_count_once_and_are_listed(sqlite_url: str, tmp_path: Path) -> None:
    facts = numbered([a_turn(i) for i in range(10)])
    with open_log(sqlite_url) as log:
        append(log, facts[:6])
        append(log, facts[3:])  # a retry of an append that had partly succeeded
        project(log, tmp_path / "book")
        append(log, facts)
        done = project(log, tmp_path / "book")
    assert (done.facts, done.duplicates) == (0, 10)
    book = tmp_path / "book"
    assert rows(book, "SELECT turn_no FROM turn_completed ORDER BY turn_no") == [
        (i,) for i in range(10)
    ]
    assert rows(book, "SELECT count(*), min(fact) FROM duplicates") == [(13, "turn_completed")]
    assert rows(book, "FROM book_problems") == [("duplicates dropped", 13)]


def test_a_fact_that_comes_after_later_ones_of_its_producer_is_new(
    sqlite_url: str, tmp_path: Path
) -> None:
    facts = numbered([a_turn(i) for i in range(10)])
    with open_log(sqlite_url) as log:
        append(log, facts[5:])
        project(log, tmp_path / "book")
        append(log, facts[:5])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.duplicates) == (5, 0)


def test_other_content_under_one_id_is_a_conflict(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0), a_turn(0, completion_tokens=1)])
        project(log, tmp_path / "book")
        append(log, [a_turn(0, completion_tokens=2)])
        project(log, tmp_path / "book")
    book = tmp_path / "book"
    assert rows(book, "SELECT completion_tokens FROM turn_completed") == [(117,)]
    assert rows(book, "SELECT log_offset, reason, event_id::VARCHAR FROM quarantine") == [
        (1, "conflict", a_v7_id("TurnCompleted", 0)),
        (2, "conflict", a_v7_id("TurnCompleted", 0)),
    ]


def test_a_recorded_fact_counts_once_whoever_appends_it_and_whenever(
    sqlite_url: str, tmp_path: Path
) -> None:
    turns = numbered([a_turn(i) for i in range(100)])
    again = numbered([a_turn(i) for i in (3, 50, 3)], an_id("incarnation", 2))
    with open_log(sqlite_url) as log:
        append(log, turns[:60])
        project(log, tmp_path / "book")
        append(log, again)
        append(log, turns[60:])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.duplicates, done.quarantined) == (40, 3, 0)


def test_an_id_that_is_no_uuid_is_quarantined(sqlite_url: str, tmp_path: Path) -> None:
    wire = wire_types()["turn_completed"]
    foreign = wire.check.datum(all_fields(a_turn(1)))
    values = [encode(wire, foreign | {name: "run-7"}) for name in ("run_id", "event_id")]
    member = a_fact("group_decided", producer_seq=2)
    values.append(encode_fact(member).replace(member.members[0].trajectory_id.encode(), b"x" * 36))
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0), *values])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.quarantined) == (1, 3)
    details = rows(tmp_path / "book", "SELECT detail FROM quarantine ORDER BY log_offset")
    assert [detail for (detail,) in details] == [
        "turn_completed.run_id must be a lower-case UUID, got 'run-7'",
        "turn_completed.event_id must be a lower-case UUID, got 'run-7'",
        f"group_decided.members[0].trajectory_id must be a lower-case UUID, got {'x' * 36!r}",
    ]


def test_a_derived_fact_counts_once_whoever_records_it(sqlite_url: str, tmp_path: Path) -> None:
    source = an_id("imported turn", 7)
    first = a_turn(7, event_id=source)
    again = a_turn(7, event_id=source, incarnation=an_id("incarnation", 2), producer_seq=0)
    other = a_turn(8, event_id=source, incarnation=an_id("incarnation", 3), producer_seq=0)
    with open_log(sqlite_url) as log:
        append(log, [first, again, other])  # in one chunk
        project(log, tmp_path / "book")
        append(log, [again, a_fact("reward_assigned", event_id=source, producer_seq=9)])
        project(log, tmp_path / "book")
    book = tmp_path / "book"
    assert rows(book, "SELECT turn_no, incarnation::VARCHAR FROM turn_completed") == [
        (7, an_id("incarnation"))
    ]
    assert rows(book, "SELECT count(*) FROM duplicates") == [(2,)]
    assert rows(book, "SELECT log_offset, detail FROM quarantine ORDER BY 1") == [
        (2, f"event_id {source} is in the book with other content"),
        (4, f"event_id {source} is in the book as a turn_completed"),
    ]


def test_bad_records_go_to_quarantine_and_the_rest_goes_on(log_url: str, tmp_path: Path) -> None:
    good = numbered([a_turn(i) for i in range(20)])
    whole = encode_fact(a_turn(99))
    unknown = MARKER + b"12345678" + whole[10:]
    tokens = wire_types()["turn_tokens"].header + b"\0"
    bad = [b"", b"garbage", unknown, whole[:-1], whole + b"\0", tokens, whole[:10] + b"\xff" * 40]
    with open_log(log_url) as log:
        append(log, [*good[:10], *bad, *good[10:]])
    done = projected(log_url, tmp_path / "book")
    assert (done.facts, done.quarantined) == (20, 7)
    found = rows(
        tmp_path / "book",
        "SELECT reason, count(*), min(size_bytes), bool_and(length(detail) > 20)"
        " FROM quarantine GROUP BY ALL ORDER BY 1",
    )
    assert found == [
        ("undecodable", 6, 0, True),
        ("unknown_schema", 1, len(unknown), True),
    ]
    assert rows(tmp_path / "book", "SELECT value FROM quarantine WHERE size_bytes = 7") == [
        (b"garbage",)
    ]
    assert rows(tmp_path / "book", "SELECT problem FROM book_problems ORDER BY 1") == [
        ("quarantined: undecodable",),
        ("quarantined: unknown_schema",),
    ]


def test_a_payload_in_the_wrong_topic_is_misplaced(sqlite_url: str, tmp_path: Path) -> None:
    wire = wire_types()["turn_tokens"]
    payload = {
        "run_id": an_id("run"),
        "group_id": an_id("group"),
        "trajectory_id": an_id("trajectory"),
        "turn_no": 0,
        "sha256": "0" * 64,
        "token_ids": b"",
        "loss_mask": b"",
        "logprobs": b"",
    }
    with open_log(sqlite_url) as log:
        append(log, [encode(wire, wire.check.datum(payload)), a_turn(0)])
    assert projected(sqlite_url, tmp_path / "book").facts == 1
    assert rows(tmp_path / "book", "SELECT reason, detail FROM quarantine") == [
        ("misplaced", "turn_tokens belongs in topic tokens, found in events")
    ]


def test_facts_of_an_older_schema_fill_new_fields_with_their_defaults(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = wire_types()["turn_completed"]
    old = json.loads(json.dumps(avro.avro_schema(wire.cls)))
    old["fields"] = [each for each in old["fields"] if each["name"] != "segment_reason"]
    parsed = fastavro.parse_schema(old)
    known = dict(avro.writer_schemas())
    known[header_of(parsed)] = avro.WriterSchema(wire, parsed, "turn_completed.0.avsc")
    monkeypatch.setattr(avro, "writer_schemas", lambda: known)
    monkeypatch.setattr("consumers.decode.writer_schemas", lambda: known)
    fields = all_fields(a_turn(3))
    out = io.BytesIO()
    datum = wire.check.datum(fields)
    del datum["segment_reason"]
    fastavro.schemaless_writer(out, parsed, datum)
    with open_log(sqlite_url) as log:
        append(log, [header_of(parsed) + out.getvalue()])
        project(log, tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT turn_no, segment_reason FROM turn_completed") == [
        (3, None)
    ]


def all_fields(fact: Fact) -> dict[str, object]:
    return {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}


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
