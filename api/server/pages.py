"""Collections: filters, pages and what a page says of itself.

Invariant: the pages of one walk are of one book. The first page's cursor holds its position, and
every later page is answered as of there; so no row is skipped or comes twice while facts arrive.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field, create_model

from api.server.places import parse, show
from api.server.problems import Problem
from api.server.reading import Reading, Row
from api.server.rows import columns_of, row_model
from ledger.log import Positions

MOST = 1000
"""Rows of one page."""

AsOf = Annotated[
    str | None,
    Query(
        description="Answer as the book was then: a time, or positions of the log.",
        max_length=20_000,
        examples=["2026-01-31T12:00:00Z", "events/0:1200,events/1:800"],
    ),
]
Cursor = Annotated[
    str | None,
    Query(
        description="`next_cursor` of the page before; other parameters as then.",
        max_length=40_000,
    ),
]
Limit = Annotated[int, Query(ge=1, le=MOST, description="Rows of a page at most.")]


class PageModel(BaseModel):
    """A page of rows."""

    position: str = Field(
        description="Where the book was, as positions of the log.", examples=["events/0:1200"]
    )
    next_cursor: str | None = Field(description="For the next page; null: this is the last.")


def page_model(view: str) -> Any:
    """The model of a page of a view's rows."""
    rows: Any = list[row_model(view)]  # type: ignore[misc]
    return create_model(f"{row_model(view).__name__}s", __base__=PageModel, rows=(rows, ...))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of a view, in which order."""

    view: str
    """A view or table of the book."""
    order: str
    """SQL; ends in something unique, or in all columns."""
    filters: Mapping[str, Any]
    """Column -> value; null: any."""
    limit: int
    cursor: str | None
    as_of: str | None = None

    @property
    def key(self) -> str:
        """Tells one walk from another."""
        filters = {
            column: str(value) for column, value in self.filters.items() if value is not None
        }
        walk = [self.view, self.order, filters, self.limit, self.as_of]
        return hashlib.sha256(json.dumps(walk).encode()).hexdigest()[:12]


def total_order(view: str, *first: str) -> str:
    """An order by `first`, and then by every column, so that it is the same each time."""
    return ", ".join([*first, *(f'"{column}"' for column, _ in columns_of(view))])


def cursor_of(wanted: Wanted, positions: Positions, offset: int) -> str:
    """The cursor of the page that begins at row `offset`."""
    told = json.dumps({"of": wanted.key, "at": show(positions), "row": offset})
    return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def resume(wanted: Wanted) -> tuple[Positions, int] | None:
    """The position and the first row that a cursor names. Raises Problem for one that isn't ours or
    belongs to another question."""
    if wanted.cursor is None:
        return None
    try:
        padded = wanted.cursor + "=" * (-len(wanted.cursor) % 4)
        told = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        positions, row = parse(told["at"]), told["row"]
        known = told["of"] == wanted.key and positions is not None and 0 < row < 2**62
    except (binascii.Error, ValueError, KeyError, TypeError):
        known, positions, row = False, None, 0
    if not known or positions is None:
        raise Problem(
            422,
            "invalid",
            rule="must be the next_cursor of a page of the same question",
            place="query cursor",
            value=wanted.cursor,
        )
    return positions, row


def page(reading: Reading, wanted: Wanted, offset: int) -> dict[str, Any]:
    """A page as its model has it."""
    rows = select(reading, wanted, offset)
    more = len(rows) > wanted.limit
    end = offset + wanted.limit
    return {
        "position": show(reading.positions),
        "next_cursor": cursor_of(wanted, reading.positions, end) if more else None,
        "rows": rows[: wanted.limit],
    }


def select(reading: Reading, wanted: Wanted, offset: int) -> list[Row]:
    """A page's rows, and one more where there are more."""
    source = reading.source
    every = f'"{wanted.view}"' if source is None else f"({source.all_rows()})"
    given = {column: value for column, value in wanted.filters.items() if value is not None}
    where = " AND ".join(f'"{column}" = ${column}' for column in given)
    return reading.rows(
        f"FROM {every}" + (f" WHERE {where}" if where else "")
        + f" ORDER BY {wanted.order} LIMIT {wanted.limit + 1} OFFSET {offset}",
        given,
    )  # fmt: skip
