"""The book as it was is what a replay up to there would give, in every view."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from api.server.reading import Readings
from consumers.rebuild import rebuild
from ledger.book import Book
from ledger.book_sql import VIEWS
from ledger.log import EventLog, Positions, TopicPartition
from ledger.open_log import open_log
from ledger.stand_ins import made_of, named, tables
from tests.lived_runs import lived

PLACE = TopicPartition("events", 0)


def as_text(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows to compare: without an order, and sums of floats without the order of their terms."""
    return sorted(re.sub(r"\d+\.\d+", lambda n: f"{float(n[0]):.6g}", str(row)) for row in rows)


def replayed(log: EventLog, path: Path, until: Positions) -> dict[str, list[str]]:
    """Every view of a book that was built up to a position, its rows as text."""
    rebuild(log, path, until)
    with contextlib.closing(duckdb.connect(str(path), read_only=True)) as book:
        book.execute("SET TimeZone = 'UTC'")
        return {view: as_text(book.execute(f'FROM "{view}"').fetchall()) for view in VIEWS}


def test_every_view_is_as_a_replay_up_to_the_position_has_it(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        lived(log)
        rebuild(log, tmp_path / "now")
        for offset in (90, 301):
            then = replayed(log, tmp_path / f"then{offset}", {PLACE: offset})
            with contextlib.closing(Book(tmp_path / "now", log.identity)) as book:
                readings = Readings(book.connection, 60.0)
                with readings.open({PLACE: offset}) as reading:
                    for view in VIEWS:
                        rows = [tuple(row.values()) for row in reading.rows(f'FROM "{view}"')]
                        assert [view, *as_text(rows)] == [view, *then[view]]


def test_the_book_as_it_is_stays_what_everybody_else_sees(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        lived(log)
        rebuild(log, tmp_path / "book")
        with contextlib.closing(Book(tmp_path / "book", log.identity)) as book:
            readings = Readings(book.connection, 60.0)
            with readings.open({PLACE: 3}) as then, readings.open() as now:
                assert then.rows("SELECT count(*) AS n FROM groups") == [{"n": 1}]
                assert now.rows("SELECT count(*) AS n FROM groups") == [{"n": 12}]
                assert (then.positions[PLACE], now.positions[PLACE] > 300) == (3, True)
            with pytest.raises(duckdb.Error), readings.open() as reading:
                reading.rows("DELETE FROM nowhere")


def test_what_a_view_is_made_of_ends_in_tables() -> None:
    assert made_of("opened_groups") == {"group_opened"}
    assert {"group_decided", "trajectory_judged", "group_decisions"} <= made_of("members")
    assert named("SELECT count(*) FROM runs JOIN nowhere") == {"runs"}
    assert all(made_of(view) & tables().keys() for view in VIEWS)
