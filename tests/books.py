"""Logs to write by hand, and books to look into."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb

from consumers.insert import Inserted
from consumers.rebuild import project
from ledger.avro import encode_fact
from ledger.facts import Fact, GroupFact
from ledger.log import EventLog, Record
from ledger.open_log import open_log
from tests.builders import an_id


def record_of(fact: Fact) -> Record:
    """A fact as a producer appends it."""
    key = fact.group_id if isinstance(fact, GroupFact) else fact.run_id
    return Record(key, encode_fact(fact))


def append(log: EventLog, facts: Iterable[Fact | bytes]) -> None:
    """Append facts, or any bytes, to topic `events`."""
    records = [
        Record(an_id("group"), each) if isinstance(each, bytes) else record_of(each)
        for each in facts
    ]
    log.append("events", records)


def projected(url: str, path: Path) -> Inserted:
    """Catch the book up with the log."""
    with open_log(url) as log:
        return project(log, path)


def rows(path: Path, query: str) -> list[Any]:
    """What a book answers."""
    with contextlib.closing(duckdb.connect(str(path), read_only=True)) as book:
        return book.execute(query).fetchall()


def numbered(facts: Iterable[Fact], incarnation: str | None = None) -> list[Fact]:
    """Facts with the sequence numbers of one incarnation, in order."""
    return [
        replace(fact, producer_seq=number, incarnation=incarnation or an_id("incarnation"))
        for number, fact in enumerate(facts)
    ]


def differing_tables(one: Path, other: Path) -> list[str]:
    """Tables of two books whose sets of rows differ."""
    with contextlib.closing(duckdb.connect()) as both:
        both.execute(f"ATTACH '{one}' AS one (READ_ONLY)")
        both.execute(f"ATTACH '{other}' AS other (READ_ONLY)")
        names = [
            name
            for (name,) in both.execute(
                "SELECT table_name FROM duckdb_tables() WHERE database_name = 'one'"
            ).fetchall()
        ]
        assert len(names) > 30
        return [
            name
            for name in names
            if both.execute(
                f"(FROM one.{name} EXCEPT ALL FROM other.{name}) UNION ALL"
                f" (FROM other.{name} EXCEPT ALL FROM one.{name}) LIMIT 1"
            ).fetchall()
        ]
