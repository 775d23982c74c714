"""Groups: who votes, who doesn't, and why.

GET /v1/groups                  filtered by run, decision
GET /v1/groups/{group_id}       with its members as decided, its slots and its decisions
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.server.desk import Desk, Paged
from api.server.pages import AsOf, page_model
from api.server.problems import problems
from api.server.reading import Reading
from api.server.reports import Parts, RunId, one_model, part_models, whole
from ledger.facts.lists import GroupDecision

PARTS: Parts = {
    "members": ("members", "member_no", "Who votes; who doesn't, and the reason and judgement."),
    "slots": ("dispositions", "slot", "What each slot has come to."),
    "trajectories": ("trajectories", "slot, started_at, trajectory_id", "Its attempts."),
    "decisions": ("group_decided", "log_offset", "As they were made, with their cuts."),
}


def router(desk: Desk) -> APIRouter:
    """The endpoints above."""
    routes = APIRouter(prefix="/v1", tags=["groups"], responses=problems(409, 422, 503))

    @routes.get("/groups", response_model=page_model("groups"))
    async def groups(
        request: Request,
        paging: Paged,
        run_id: RunId = None,
        decision: Annotated[GroupDecision | None, Query(description="Decided like this.")] = None,
    ) -> Response:
        """Opened groups, the newest first."""
        chosen = None if decision is None else decision.value
        filters = {"run_id": run_id, "decision": chosen}
        order = "opened_at DESC NULLS LAST, group_id"
        return await desk.page(request, "groups", order, filters, paging)

    @routes.get(
        "/groups/{group_id}",
        response_model=one_model("groups", **part_models(PARTS)),
        responses=problems(404),
    )
    async def group(request: Request, group_id: UUID, as_of: AsOf = None) -> Response:
        """One group: its slots, its attempts, who votes and why others don't."""

        def look(reading: Reading) -> Any:
            return whole(reading, "groups", "group_id", group_id, PARTS)

        return await desk.give(request, ("group", group_id), look, as_of)

    return routes
