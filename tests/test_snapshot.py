"""Copies of a served book: one for each change of it, and none while nothing has changed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from api.server.snapshot import Snapshots
from consumers.projector import Projector
from ledger.book import Book
from ledger.open_log import open_log
from tests.books import append, numbered
from tests.builders import a_turn


def test_a_book_is_copied_again_once_it_has_changed_and_not_before(
    sqlite_url: str, tmp_path: Path
) -> None:
    """A log that is empty, or has a partition without records, is no change of its book."""
    with (
        open_log(sqlite_url) as log,
        contextlib.closing(Book(tmp_path / "book", log.identity)) as book,
        contextlib.closing(Snapshots(book, 0.0)) as snapshots,
    ):

        async def copies() -> int:
            """How many there were after three questions, far enough apart."""
            now = log.start_positions("events") | book.positions()
            for _ in range(2):
                await asyncio.sleep(25 * (await snapshots.newest(now)).cost_s)
            return int((await snapshots.newest(now)).path.stem)

        assert asyncio.run(copies()) == 1
        append(log, numbered([a_turn(0)]))
        Projector(log, book).catch_up()
        assert asyncio.run(copies()) == 2
