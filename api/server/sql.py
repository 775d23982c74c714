"""SQL that only reads.

    POST /sql      one SELECT over the book's views and tables; rows as JSON

It is asked of a copy of the book that is a few seconds old at most, while the book is small, and
says its position. It ends at its limits of time, memory, rows and bytes: an answer is whole, or it
is an error.
"""

from __future__ import annotations

import json

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from api.server.places import show
from api.server.problems import problems
from api.server.sql_guard import LONGEST
from api.server.sql_pool import SqlPool


class Query(BaseModel):
    """A query."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        description="One SELECT in DuckDB's SQL.",
        max_length=LONGEST,
        examples=["SELECT outcome, count(*) FROM trajectories GROUP BY outcome"],
    )


class Column(BaseModel):
    """A column of an answer."""

    name: str
    type: str = Field(description="DuckDB's type.", examples=["BIGINT"])


class Rows(BaseModel):
    """A whole answer."""

    position: str = Field(
        description="Where the book was, as positions of the log.", examples=["events/0:1200"]
    )
    taken_at: str = Field(description="When, UTC.")
    seconds: float = Field(description="How long the query took.")
    columns: list[Column]
    rows: list[list[JsonValue]] = Field(
        description="Times in ISO 8601, intervals in seconds; nan and inf by their names."
    )


def router(pool: SqlPool) -> APIRouter:
    """The endpoint above."""
    routes = APIRouter(tags=["sql"])

    @routes.post("/sql", response_model=Rows, responses=problems(413, 422, 429))
    async def sql(body: Query) -> Response:
        """Ask the book in SQL."""
        answer = await pool.ask(body.query)
        head = {
            "position": show(answer.snapshot.positions),
            "taken_at": answer.snapshot.taken_at.isoformat(),
            "seconds": round(answer.seconds, 4),
            "columns": [{"name": name, "type": kind} for name, kind in answer.columns],
        }
        # The rows are JSON already, and may be many: they are not looked at again.
        start = json.dumps(head, ensure_ascii=False).encode()[:-1]
        return Response(start + b', "rows": ' + answer.rows + b"}", media_type="application/json")

    return routes
