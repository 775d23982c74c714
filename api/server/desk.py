"""The desk: takes a question about the book, gives the answer with its position.

Every answer is a look at one position (`reading.py`), kept by position (`answers.py`). Its headers:
`ETag` changes with the position, `Age` is in seconds, `Rollbook-Position` says where the book was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Request
from fastapi.responses import Response

from api.json_values import to_json
from api.server.answers import Answer, Answers
from api.server.owner import Owner
from api.server.pages import AsOf, Cursor, Limit, Wanted, page, resume
from api.server.places import asked, show
from api.server.problems import Problem
from api.server.reading import Reading
from ledger.log import LogError, Positions
from ledger.one_run import WORTH_IT_FROM

Look = Callable[[Reading], Any]
"""What an endpoint asks of a reading; what it gives becomes JSON."""

Finish = Callable[[Reading, dict[str, Any]], dict[str, Any]]
"""Makes of a page what its endpoint answers."""


@dataclass(frozen=True, slots=True)
class Paging:
    """Parameters that every collection takes."""

    limit: int
    cursor: str | None
    as_of: str | None


def _paging(limit: Limit = 100, cursor: Cursor = None, as_of: AsOf = None) -> Paging:
    return Paging(limit, cursor, as_of)


Paged = Annotated[Paging, Depends(_paging)]


class Desk:
    """What endpoints give their answers through."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.answers = Answers()

    def close(self) -> None:
        self.answers.close()

    async def page(
        self,
        request: Request,
        view: str,
        order: str,
        filters: Mapping[str, Any],
        paging: Paging,
        finish: Finish | None = None,
    ) -> Response:
        """A page of a view's rows; `finish` adds what the page says beside them."""
        wanted = Wanted(view, order, filters, paging.limit, paging.cursor, paging.as_of)
        resumed = resume(wanted)
        at, row = resumed if resumed is not None else (None, 0)
        text = paging.as_of if at is None else show(at)
        place = "query as_of" if at is None else "query cursor"

        def look(reading: Reading) -> Any:
            told = page(reading, wanted, row)
            return told if finish is None else finish(reading, told)

        of_view = (view, filters.get("run_id"))
        return await self.give(request, (wanted.key, row), look, text, place, of_view)

    async def give(
        self,
        request: Request,
        key: Hashable,
        look: Look,
        as_of: str | None = None,
        place: str = "query as_of",
        of_view: tuple[str, UUID | None] | None = None,
    ) -> Response:
        """The answer to `look`, which `key` tells from every other, as JSON. `of_view`: it looks at
        the rows of this view alone; of this run, where one is named."""
        fresh = "no-cache" in request.headers.get("cache-control", "")
        at = None
        if as_of is not None:
            at = await asyncio.to_thread(self._asked, as_of, place)
            key = (key, show(at))

        def compute() -> tuple[bytes, Positions]:
            readings = self.owner.readings
            large = sum(self.owner.standing.positions.values()) >= WORTH_IT_FROM
            alone = readings.open_view(*of_view, at) if of_view and large else None
            with alone or readings.open(at) as reading:
                return to_json(look(reading)), reading.positions

        now = self.owner.standing.positions if at is None else at
        answer = self.answers.ask(key, now, compute, fresh=fresh)
        if isinstance(answer, Future):
            answer = await asyncio.wrap_future(answer)
        return respond(request, answer)

    def _asked(self, as_of: str, place: str) -> Positions:
        try:
            return asked(as_of, place, self.owner.log, self.owner.readings.newest())
        except LogError as error:
            raise Problem(503, "log_away", rule=str(error), place=place) from None


def respond(request: Request, answer: Answer) -> Response:
    """An answer, or 304 for who has it already."""
    headers = {
        "ETag": answer.etag,
        "Age": str(int(answer.age_s)),
        "Cache-Control": "private, no-cache",
        "Rollbook-Position": show(answer.positions),
    }
    known = request.headers.get("if-none-match", "")
    if answer.etag in [each.strip() for each in known.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(answer.body, headers=headers, media_type="application/json")
