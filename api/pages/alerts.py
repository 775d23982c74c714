"""What is over its threshold just now.

    GET /v1/alerts    worst first, each with the view that shows it

Invariant: silence is measured against the clock, so an answer is kept for `FRESH_S` at most even
while the book stands still.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.server.desk import Desk
from api.server.pages import AsOf
from api.server.places import show
from api.server.problems import problems
from api.server.reading import Reading
from api.server.reports import RunId
from ledger.accounts.alerts import PROJECTOR_BEHIND, Measure, Thresholds, alerts_of, measures

FRESH_S = 10


class AlertModel(BaseModel):
    """A measure over its threshold."""

    level: str = Field(description="liveness, integrity, loss or tuning.", examples=["integrity"])
    alert: str = Field(examples=["contamination"])
    run_id: UUID | None = Field(description="Null: no run in particular.")
    subject: str
    value: float
    threshold: float
    out_of: int | None = Field(description="What a share is of; null where that doesn't matter.")
    view: str = Field(description="The view that shows it.")
    advice: str


class Alerts(BaseModel):
    """What is over its threshold; what stands still is first."""

    position: str = Field(description="Where the book was, as positions of the log.")
    measures: int = Field(description="How many were looked at.")
    rows: list[AlertModel]


def router(desk: Desk, thresholds: Thresholds) -> APIRouter:
    """The endpoint above."""
    routes = APIRouter(prefix="/v1", tags=["alerts"], responses=problems(409, 422, 503))

    @routes.get("/alerts", response_model=Alerts)
    async def alerts(request: Request, run_id: RunId = None, as_of: AsOf = None) -> Response:
        """Measures over their threshold in [alerts], by level, the worst first."""

        def look(reading: Reading) -> dict[str, Any]:
            found = measures(reading.cursor, _moment(reading, as_of), thresholds)
            if as_of is None:
                behind = float(desk.owner.standing.behind)
                found.append(Measure(PROJECTOR_BEHIND, None, "topic events", behind))
            if run_id is not None:
                found = [each for each in found if each.run_id in (None, run_id)]
            rows = [dataclasses.asdict(each) for each in alerts_of(found, thresholds)]
            return {"position": show(reading.positions), "measures": len(found), "rows": rows}

        key = ("alerts", run_id, int(time.monotonic() / FRESH_S) if as_of is None else None)
        return await desk.give(request, key, look, as_of)

    return routes


def _moment(reading: Reading, as_of: str | None) -> datetime:
    """Now; of a book of then, when its newest fact reached the log."""
    row = reading.one("SELECT max(log_time) AS it FROM facts") if as_of is not None else None
    return datetime.now(UTC) if row is None or row["it"] is None else row["it"]
