"""The audit names what the book doesn't have, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import duckdb
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.audit import Finding, audit
from consumers.rebuild import project
from ledger.book_sql import sql_file
from ledger.facts import ProducerAlive
from ledger.open_log import open_log
from ledger.recorder import Recorder
from tests.books import append, numbered, projected
from tests.builders import AT, a_fact, a_turn, an_id


def findings(book: Path) -> list[Finding]:
    with contextlib.closing(duckdb.connect(str(book), read_only=True)) as connection:
        return audit(connection)


def test_a_run_that_ended_well_has_no_findings(log_url: str, tmp_path: Path) -> None:
    with Recorder(log_url, producer="p", run_id=an_id("run"), spool_dir=tmp_path) as recorder:
        for i in range(100):
            recorder.turn_completed(
                group_id=an_id("group", i), slot=0, trajectory_id=an_id("t"), turn_no=i
            )
    projected(log_url, tmp_path / "book")
    assert findings(tmp_path / "book") == []


def test_holes_are_named_by_their_ends(sqlite_url: str, tmp_path: Path) -> None:
    facts = numbered([a_turn(i) for i in range(10)])
    with open_log(sqlite_url) as log:
        append(log, [*facts[2:4], *facts[5:]])
    projected(sqlite_url, tmp_path / "book")
    who = f"producer {facts[0].producer} (incarnation {an_id('incarnation')})"
    assert findings(tmp_path / "book") == [
        Finding("sequence_holes", True, f"{who} has no fact numbered 0 to 1: 2 missing"),
        Finding("sequence_holes", True, f"{who} has no fact numbered 4 to 4: 1 missing"),
    ]


def test_facts_that_a_producer_spoke_of_and_nobody_saw_are_a_hole(
    sqlite_url: str, tmp_path: Path
) -> None:
    closed = a_fact("producer_closed", producer_seq=7, accepted=7, last_seq=6)
    with open_log(sqlite_url) as log:
        append(log, [*numbered([a_turn(i) for i in range(5)]), closed])
    projected(sqlite_url, tmp_path / "book")
    assert [each.detail.split(" has ")[1] for each in findings(tmp_path / "book")] == [
        "no fact numbered 5 to 6: 2 missing"
    ]


def test_numbers_of_dropped_duplicates_and_conflicts_are_no_holes(
    sqlite_url: str, tmp_path: Path
) -> None:
    source = an_id("source")
    mine = an_id("incarnation", 2)
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0, event_id=source)])
        append(log, [a_turn(0, event_id=source, incarnation=mine, producer_seq=0)])
        append(log, [a_turn(9, event_id=source, incarnation=mine, producer_seq=1)])
        append(log, [a_turn(2, incarnation=mine, producer_seq=2)])
    projected(sqlite_url, tmp_path / "book")
    found = findings(tmp_path / "book")
    assert [(each.check, each.wrong) for each in found] == [
        ("quarantined", True),
        ("dropped_duplicates", False),
    ]
    assert found[1].detail == "1 records were delivered again and count once"


def test_erased_numbers_are_no_holes(sqlite_url: str, tmp_path: Path) -> None:
    facts = numbered([a_turn(i) for i in range(10)])
    erased = a_fact(
        "facts_erased",
        incarnation=an_id("incarnation", 2),
        producer_seq=0,
        erased_incarnation=an_id("incarnation"),
        first_seq=3,
        last_seq=5,
    )
    with open_log(sqlite_url) as log:
        append(log, [*facts[:3], *facts[6:], erased])
    projected(sqlite_url, tmp_path / "book")
    assert findings(tmp_path / "book") == []


def test_quarantine_and_losses_are_findings(sqlite_url: str, tmp_path: Path) -> None:
    lost = a_fact("producer_lost", producer_seq=1, count=12, reason="queue_full")
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0), lost, b"garbage"])
    projected(sqlite_url, tmp_path / "book")
    found = {each.check: each for each in findings(tmp_path / "book")}
    assert set(found) == {"quarantined", "lost"}
    assert "gave up 12 facts: queue_full" in found["lost"].detail
    assert found["quarantined"].detail.startswith("events/0 offset 2: undecodable: ")


def test_the_same_event_in_two_kinds_of_facts_is_a_finding(sqlite_url: str, tmp_path: Path) -> None:
    turn = a_turn(0)
    with open_log(sqlite_url) as log:
        append(log, [turn, a_fact("turn_failed", event_id=turn.event_id, producer_seq=1)])
    projected(sqlite_url, tmp_path / "book")
    (found,) = findings(tmp_path / "book")
    assert (found.check, found.wrong) == ("repeated_facts", True)
    assert found.detail.startswith(f"event_id {turn.event_id} is in the book 2 times")


def test_a_producer_that_fell_silent_is_a_remark_with_its_last_pulse(
    sqlite_url: str, tmp_path: Path
) -> None:
    pulse = a_fact("producer_alive", producer_seq=0, accepted=0, last_seq=-1, interval_s=10.0)
    assert isinstance(pulse, ProducerAlive)
    assert pulse.occurred_at == AT  # long ago by the log's clock
    with open_log(sqlite_url) as log:
        append(log, [pulse, a_turn(1)])
        project(log, tmp_path / "book")
    (found,) = findings(tmp_path / "book")
    assert (found.check, found.wrong) == ("unclosed_producers", False)
    assert "from 2026-01-02 03:04:05.000006+00 to 2026-01-02 03:04:15.000006+00" in found.detail


ONE = an_id("producer")
NUMBER = st.integers(0, 9) | st.sampled_from([2**40 - 1, 2**40, 2**63 - 1])
NUMBERS = st.lists(NUMBER, unique=True, max_size=12) | st.lists(NUMBER, max_size=6)
STRETCHES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2)


@given(NUMBERS, NUMBERS, STRETCHES)
@example([0, 1, 1, 3], [], [])  # as many as there must be
@example([0, 2, 2, 2, 4], [], [])  # and their sum is right, too
def test_holes_are_the_numbers_below_the_last_one_that_nobody_has(
    recorded: list[int], spoken: list[int], erased: list[tuple[int, int]]
) -> None:
    erased = [(first, last) for first, last in erased if first <= last]
    with contextlib.closing(duckdb.connect()) as book:
        for table in ("facts", "duplicates", "quarantine"):
            book.execute(
                f"CREATE TABLE {table} (incarnation UUID, producer VARCHAR, run_id UUID,"
                " log_time TIMESTAMPTZ, producer_seq BIGINT)"
            )
        for table in ("producer_alive", "producer_closed"):
            book.execute(f"CREATE TABLE {table} (incarnation UUID, last_seq BIGINT)")
        book.execute(
            "CREATE TABLE facts_erased (erased_incarnation UUID, first_seq BIGINT, last_seq BIGINT)"
        )
        for number in recorded:
            book.execute("INSERT INTO facts VALUES ($1, 'p', $1, now(), $2)", [ONE, number])
        for number in spoken:
            book.execute("INSERT INTO producer_alive VALUES (?, ?)", [ONE, number])
        for first, last in erased:
            book.execute("INSERT INTO facts_erased VALUES (?, ?, ?)", [ONE, first, last])
        counted = sql_file("producer_numbers.sql")
        book.execute(f"CREATE VIEW producer_numbers AS {counted}")
        book.execute(sql_file("views/sequence_holes.sql"))
        found = book.execute("SELECT missing_from, missing_to FROM sequence_holes").fetchall()
    have = sorted({*recorded, *(n for first, last in erased for n in range(first, last + 1))})
    ends = [-1, *have, max([-1, *have, *spoken]) + 1]
    expected = [(a + 1, b - 1) for a, b in itertools.pairwise(ends) if a + 1 <= b - 1]
    assert sorted(found) == expected
