"""A fact counts once in the book, however often and by whomever it is appended."""

from __future__ import annotations

from pathlib import Path

from consumers.rebuild import project
from ledger.avro import encode_fact
from ledger.open_log import open_log
from tests.books import append, numbered, rows
from tests.builders import a_fact, a_turn, a_v7_id, an_id


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


def test_nan_is_the_same_as_nan_in_one_chunk_and_over_two(sqlite_url: str, tmp_path: Path) -> None:
    reward = a_fact("reward_assigned", value=float("nan"), components={"a": float("nan")})
    with open_log(sqlite_url) as log:
        append(log, [reward, reward])
        project(log, tmp_path / "book")
        append(log, [reward])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.duplicates, done.quarantined) == (0, 1, 0)
    assert rows(tmp_path / "book", "SELECT count(*) FROM duplicates") == [(2,)]


def test_an_id_in_another_form_is_quarantined_whatever_it_comes_with(
    sqlite_url: str, tmp_path: Path
) -> None:
    turn = a_turn(1)
    other = encode_fact(turn).replace(turn.event_id.encode(), turn.event_id.upper().encode())
    with open_log(sqlite_url) as log:
        append(log, [turn])
        project(log, tmp_path / "book")
        append(log, [other])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.quarantined) == (0, 1)


def test_recorded_and_derived_facts_of_one_chunk_count_once_each(
    log_url: str, tmp_path: Path
) -> None:
    recorded = [a_turn(i, group_id=an_id("group", i)) for i in range(9)]
    derived = [
        a_turn(i, group_id=an_id("group", i), event_id=an_id("imported turn", i))
        for i in range(9, 12)
    ]
    facts = numbered([*recorded[:5], *derived, *recorded[5:]])
    with open_log(log_url) as log:
        append(log, facts)
        assert project(log, tmp_path / "book").facts == 12
        append(log, [*facts, *numbered([a_turn(12, group_id=an_id("group", 12))])])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.duplicates, done.quarantined) == (1, 12, 0)
    assert rows(
        tmp_path / "book", "SELECT event_id::VARCHAR, fact FROM derived_ids ORDER BY 1"
    ) == sorted((fact.event_id, "turn_completed") for fact in derived)
