"""Attempts.

GET /v1/trajectories                      filtered by run, group, task, state, outcome
GET /v1/trajectories/{trajectory_id}      with all that is known of it, and as a timeline
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.server.desk import Desk, Paged
from api.server.pages import AsOf, page_model
from api.server.problems import problems
from api.server.reading import Reading
from api.server.reports import Parts, RunId, one_model, part_models, whole
from ledger.facts.lists import Outcome

PARTS: Parts = {
    "turns": ("turns", "turn_no, ended_at, state", "Requests to the engine."),
    "tool_calls": ("tool_calls", "tool_call_no, ended_at", "Commands in the sandbox."),
    "sandboxes": ("sandboxes", "try_no", "Each try at having a sandbox."),
    "rewards": ("reward_assigned", "log_time, log_offset", "What verifiers said; the last counts."),
    "judgements": ("trajectory_judged", "rule_set, log_time, log_offset", "By each rule set."),
    "decisions": ("members", "member_no", "What the decision on its group says of it."),
    "timeline": (
        "timeline",
        "coalesce(started_at, ended_at) NULLS LAST, ended_at, stage, number, label",
        "Stretches of time by stage, in order; what is in none was not told of.",
    ),
}


def router(desk: Desk) -> APIRouter:
    """The endpoints above."""
    routes = APIRouter(prefix="/v1", tags=["trajectories"], responses=problems(409, 422, 503))

    @routes.get("/trajectories", response_model=page_model("trajectories"))
    async def trajectories(
        request: Request,
        paging: Paged,
        run_id: RunId = None,
        group_id: Annotated[UUID | None, Query(description="Of this group only.")] = None,
        task_id: Annotated[str | None, Query(description="At this task only.")] = None,
        state: Annotated[Literal["in_flight", "finished"] | None, Query()] = None,
        outcome: Annotated[Outcome | None, Query(description="With this outcome only.")] = None,
    ) -> Response:
        """Attempts, those that started last first."""
        filters = {
            "run_id": run_id,
            "group_id": group_id,
            "task_id": task_id,
            "state": state,
            "outcome": None if outcome is None else outcome.value,
        }
        order = "started_at DESC NULLS LAST, trajectory_id, group_id, slot, run_id"
        return await desk.page(request, "trajectories", order, filters, paging)

    @routes.get(
        "/trajectories/{trajectory_id}",
        response_model=one_model("trajectories", **part_models(PARTS)),
        responses=problems(404),
    )
    async def trajectory(request: Request, trajectory_id: UUID, as_of: AsOf = None) -> Response:
        """One attempt with its turns, tool calls, sandboxes, rewards, judgements and decision, and
        all of it as a timeline."""

        def look(reading: Reading) -> Any:
            return whole(reading, "trajectories", "trajectory_id", trajectory_id, PARTS)

        return await desk.give(request, ("trajectory", trajectory_id), look, as_of)

    return routes
