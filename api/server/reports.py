"""Collections and single runs and batches.

GET /v1/runs  /v1/runs/{run_id}        GET /v1/batches  /v1/batches/{batch_id}
GET /v1/steps                          GET /v1/policy-versions
GET /v1/tasks                          GET /v1/producers
GET /v1/conservation                   GET /v1/rules  /v1/rules/{number}
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, JsonValue, create_model

from api.server.desk import Desk, Paged
from api.server.pages import AsOf, page_model, total_order
from api.server.places import show
from api.server.problems import Problem, problems
from api.server.reading import Reading
from api.server.rows import row_model
from ledger.facts.lists import RunKind
from ledger.judgement import rule_numbers

RunId = Annotated[UUID | None, Query(description="Of this run only.")]

Parts = Mapping[str, tuple[str, str, str]]
"""Name in the answer -> view or table, order, what it is."""


class RuleSetModel(BaseModel):
    """A numbered rule set."""

    number: int
    rules: dict[str, JsonValue] = Field(description="The rule set as it is written.")


def _rule_set(number: int) -> RuleSetModel:
    text = resources.files("ledger.rules").joinpath(f"rules-{number}.toml").read_text()
    return RuleSetModel(number=number, rules=tomllib.loads(text))


def position_field() -> Any:
    """A field for models that are no page."""
    return (str, Field(description="Where the book was, as positions of the log."))


def one_model(view: str, **more: Any) -> Any:
    """The model of one row of a view, with what belongs to it."""
    row: Any = row_model(view)
    return create_model(
        row.__name__.removesuffix("Row") + "Answer",
        position=position_field(),
        row=(row, ...),
        **more,
    )


def found(reading: Reading, view: str, column: str, value: UUID) -> dict[str, Any]:
    """The row of a view with this id. Raises Problem where there is none."""
    row = reading.one(f'FROM "{view}" WHERE "{column}" = ?', [value])
    if row is None:
        raise Problem(
            404,
            "not_found",
            rule=f"the book must have it, as of {show(reading.positions) or 'its start'}",
            place=f"path {column}",
            value=value,
        )
    return row


def part_models(parts: Parts) -> dict[str, Any]:
    """The fields of a model for the parts that belong to a row."""
    return {
        name: (list[row_model(view)], Field(description=what))
        for name, (view, _, what) in parts.items()
    }


def whole(
    reading: Reading, view: str, column: str, value: UUID, parts: Parts | None = None
) -> dict[str, Any]:
    """The row of a view with this id, and its parts. Raises Problem where there is none."""
    row = found(reading, view, column, value)
    told = {
        name: reading.rows(f"FROM {part} WHERE {column} = ? ORDER BY {order}", [value])
        for name, (part, order, _) in (parts or {}).items()
    }
    return {"position": show(reading.positions), "row": row, **told}


def router(desk: Desk) -> APIRouter:
    """The endpoints above."""
    routes = APIRouter(prefix="/v1", tags=["reports"], responses=problems(409, 422, 503))
    _runs(routes, desk)
    _training(routes, desk)
    _checks(routes, desk)
    return routes


def _runs(routes: APIRouter, desk: Desk) -> None:
    @routes.get("/runs", response_model=page_model("runs"))
    async def runs(
        request: Request,
        paging: Paged,
        kind: Annotated[RunKind | None, Query(description="Of this kind only.")] = None,
    ) -> Response:
        """Runs, the newest first."""
        order = "declared_at DESC NULLS LAST, run_id"
        return await desk.page(
            request, "runs", order, {"kind": None if kind is None else kind.value}, paging
        )

    @routes.get("/runs/{run_id}", response_model=one_model("runs"), responses=problems(404))
    async def run(request: Request, run_id: UUID, as_of: AsOf = None) -> Response:
        """One run: its scope, and how much of it the book has."""

        def look(reading: Reading) -> Any:
            return whole(reading, "runs", "run_id", run_id)

        return await desk.give(request, ("run", run_id), look, as_of)

    @routes.get("/tasks", response_model=page_model("tasks"))
    async def tasks(request: Request, paging: Paged, run_id: RunId = None) -> Response:
        """Tasks of runs."""
        return await desk.page(request, "tasks", "run_id, task_id", {"run_id": run_id}, paging)

    @routes.get("/producers", response_model=page_model("producers"))
    async def producers(request: Request, paging: Paged, run_id: RunId = None) -> Response:
        """Who recorded: each start of each program, and whether it ended well."""
        order = "first_alive_at DESC NULLS LAST, incarnation"
        return await desk.page(request, "producers", order, {"run_id": run_id}, paging)


def _training(routes: APIRouter, desk: Desk) -> None:
    @routes.get("/steps", response_model=page_model("steps"))
    async def steps(request: Request, paging: Paged, run_id: RunId = None) -> Response:
        """Training steps with their phases, the newest first."""
        order = total_order("steps", "ended_at DESC NULLS LAST", "run_id", "step DESC")
        return await desk.page(request, "steps", order, {"run_id": run_id}, paging)

    @routes.get("/batches", response_model=page_model("batches"))
    async def batches(request: Request, paging: Paged, run_id: RunId = None) -> Response:
        """Batches, the newest first."""
        order = "assembled_at DESC NULLS LAST, run_id, batch_id"
        return await desk.page(request, "batches", order, {"run_id": run_id}, paging)

    more = {"members": (list[row_model("members")], Field(description="In the order of training."))}

    @routes.get(
        "/batches/{batch_id}", response_model=one_model("batches", **more), responses=problems(404)
    )
    async def batch(request: Request, batch_id: UUID, as_of: AsOf = None) -> Response:
        """One batch with the members of its groups."""

        def look(reading: Reading) -> Any:
            told = whole(reading, "batches", "batch_id", batch_id)
            groups = told["row"]["group_ids"]
            members = reading.rows(
                "FROM members WHERE list_contains(?::UUID[], group_id)"
                " ORDER BY list_position(?::UUID[], group_id), member_no",
                [groups, groups],
            )
            return {**told, "members": members}

        return await desk.give(request, ("batch", batch_id), look, as_of)

    @routes.get("/policy-versions", response_model=page_model("policy_versions"))
    async def policy_versions(request: Request, paging: Paged, run_id: RunId = None) -> Response:
        """Policy versions: published when, and how the engines took them."""
        order = "run_id, policy_version DESC"
        return await desk.page(request, "policy_versions", order, {"run_id": run_id}, paging)


def _checks(routes: APIRouter, desk: Desk) -> None:
    @routes.get("/conservation", response_model=page_model("conservation"))
    async def conservation(request: Request, paging: Paged, run_id: RunId = None) -> Response:
        """Identities that don't hold; none when the books balance."""
        order = total_order("conservation", "identity")
        return await desk.page(request, "conservation", order, {"run_id": run_id}, paging)

    @routes.get("/rules", response_model=list[RuleSetModel])
    async def rules() -> list[RuleSetModel]:
        """The numbered rule sets by which attempts can be judged."""
        return [_rule_set(number) for number in rule_numbers()]

    @routes.get("/rules/{number}", response_model=RuleSetModel, responses=problems(404))
    async def rule_set(number: Annotated[int, Path(ge=0, lt=2**31)]) -> RuleSetModel:
        """One rule set."""
        if number not in rule_numbers():
            known = ", ".join(map(str, rule_numbers()))
            raise Problem(
                404, "not_found", rule=f"rule sets are {known}", place="path number", value=number
            )
        return _rule_set(number)
