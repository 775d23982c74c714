"""The HTTP application of a served book: who may ask, what can be asked.

/v1/...                                  api/server/: reports, trajectories, groups, accounts,
                                         facts, stream
/sql                                     SQL that only reads
/healthz /readyz /metrics                for whoever operates it
/docs /openapi.json                      this interface, described
/                                        api/pages/: the live page, its panels and alerts
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.pages import alerts, panels
from api.pages.home import add_home
from api.pages.interface import add_interface
from api.server import accounts, facts, groups, operation, reports, stream, trajectories
from api.server.access import Gate
from api.server.desk import Desk
from api.server.operation import Measures, Timed
from api.server.owner import Owner
from api.server.parameters import check_parameters
from api.server.problems import ProblemModel, add_handlers, problems
from api.server.sql import router as sql_router
from api.server.sql_pool import SqlPool
from ledger.accounts.alerts import Thresholds

DESCRIPTION = """Reads a Rollbook book while its run goes on.

Every answer says at which position of the log the book was (`position`, and the header
`Rollbook-Position`). It may be up to three seconds older than the newest, or thirty times what it
costs to compute; `Age` says how old it is, `Cache-Control: no-cache` asks for a new one. `ETag`
changes with the position.
`as_of` answers as the book was then. Errors are application/problem+json."""


def make_app(
    owner: Owner, desk: Desk, posting: facts.Posting, sql: SqlPool, stop: asyncio.Event,
    token: str | None, thresholds: Thresholds,
) -> ASGIApp:  # fmt: skip
    """The application; `token` null: everybody may. `thresholds` are those of [alerts]."""
    # FastAPI's own page loads scripts from other hosts: api/pages/interface.py is ours.
    app = FastAPI(
        title="Rollbook",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_parameters)],
    )
    measures = Measures(owner)
    for routes in (
        reports.router(desk),
        trajectories.router(desk),
        groups.router(desk),
        accounts.router(desk),
        facts.router(posting, owner.readings),
        stream.router(owner, stop),
        panels.router(desk),
        alerts.router(desk, thresholds),
        sql_router(sql),
        operation.router(owner, measures),
    ):
        app.include_router(routes)
    add_handlers(app)
    gate = Gate(Bounded(app), token)
    add_home(app, gate)
    add_interface(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return Timed(gate, measures)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        parts = document.setdefault("components", {})
        parts.setdefault("schemas", {})["ProblemModel"] = _problem_schema(parts["schemas"])
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in document["paths"].values():
            for operation_ in path.values():
                # Of a 422, FastAPI documents a form that our handlers never answer with.
                operation_["responses"].update(
                    {str(k): v for k, v in problems(422).items()}
                    if "422" in operation_["responses"] else {}
                )  # fmt: skip
        app.openapi_schema = document
    return app.openapi_schema


def _problem_schema(schemas: dict[str, Any]) -> dict[str, Any]:
    schema = ProblemModel.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs"))
    return schema


class Bounded:
    """ASGI middleware: 413 for a body that is too large, however it comes."""

    def __init__(self, app: ASGIApp, most: int = facts.MOST_BYTES) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413, f"a body must be at most {self._most} bytes")
            return message

        await self._app(scope, bounded, send)
