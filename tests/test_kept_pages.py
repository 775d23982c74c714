"""Served pages of a book that keeps accounts of some runs: the rows of the views."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from api.server.accounts import completed
from api.server.pages import Wanted, page, total_order
from api.server.reading import Readings
from api.server.rows import columns_of
from ledger.accounts.registry import ACCOUNTS, Account
from ledger.book import connect
from ledger.kept import standing
from tests.kept_books import book_at, few_runs, in_words
from tests.test_waste import SECOND, TRAIN


@pytest.fixture(scope="module")
def in_part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readings]:
    """Readings of a book that keeps nothing of the run `TRAIN`."""
    path = few_runs(tmp_path_factory.mktemp("in-part"))
    with book_at(path) as owner:
        owner.connection.execute("DELETE FROM kept_accounts WHERE run_id = ?", [TRAIN])
    with contextlib.closing(connect(path, read_only=True)) as book:
        assert standing(book, "waste").others == {UUID(TRAIN)}
        yield Readings(book, 60.0)


@pytest.mark.parametrize("account", ACCOUNTS, ids=lambda account: account.name)
def test_a_served_page_of_what_is_kept_in_part_is_that_of_the_view(
    in_part: Readings, account: Account
) -> None:
    view = account.view
    columns = {name for name, _ in columns_of(view)}
    for run_id in (None, UUID(TRAIN), UUID(SECOND)):
        filters = {"run_id": run_id} if "run_id" in columns else {}
        wanted = Wanted(view, total_order(view, account.order), filters, 5, None)
        shown = list[Any]()
        for opened in (in_part.open_view(view, run_id), in_part.open()):
            with opened as reading:
                pages = [page(reading, wanted, first) for first in (0, 5)]
                rows = [completed(reading, view, each.pop("rows")) for each in pages]
                shown.append((pages, [in_words(each) for each in rows]))
        assert shown[0] == shown[1]


def test_a_page_behind_the_first_reads_what_is_kept_while_nothing_came(in_part: Readings) -> None:
    ((place, end),) = in_part.newest().items()
    wanted = Wanted("waste", total_order("waste", "run_id"), {}, 2, None)
    for then, is_now in (({place: end}, True), ({place: end - 1}, False)):
        with in_part.open_view("waste", None, then) as reading:
            assert (reading.source is not None, reading.positions) == (is_now, then)
            assert len(page(reading, wanted, 2)["rows"]) == 2
