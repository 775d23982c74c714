"""Errors as a client sees them: application/problem+json with value, rule and place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"
SHOWN = 200
"""Characters of a wrong value that are shown."""


class Fault(BaseModel):
    """One thing that is wrong."""

    place: str = Field(description="Where: a parameter, a header, a path in the body.")
    rule: str = Field(description="What has to hold there.")
    value: str | None = Field(None, description="What was found, shortened; null: nothing.")


class ProblemModel(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "not_found",
                "title": "not found",
                "status": 404,
                "detail": "the book must have this run, got '00000000-...' (path run_id)",
                "faults": [
                    {
                        "place": "path run_id",
                        "rule": "the book must have this run",
                        "value": "00000000-0000-4000-8000-000000000000",
                    }
                ],
            }
        }
    )

    type: str = Field(description="Kind of problem, for programs.")
    title: str = Field(description="The same for people.")
    status: int
    detail: str = Field(description="Value, rule and place in one sentence.")
    faults: list[Fault]


class Problem(Exception):
    """An answer that isn't given."""

    def __init__(
        self,
        status: int,
        kind: str,
        *,
        rule: str,
        place: str,
        value: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        shown = None if value is None else _shorten(str(value))
        self.status = status
        self.kind = kind
        self.faults = [Fault(place=place, rule=rule, value=shown)]
        self.headers = dict(headers or {})
        super().__init__(_sentence(self.faults[0]))

    @classmethod
    def of(cls, status: int, kind: str, faults: Sequence[Fault]) -> Problem:
        """A problem of several faults."""
        first = faults[0]
        problem = cls(status, kind, rule=first.rule, place=first.place, value=first.value)
        problem.faults = list(faults)
        return problem

    def response(self) -> Response:
        """The answer in its place."""
        body = ProblemModel(
            type=self.kind,
            title=self.kind.replace("_", " "),
            status=self.status,
            detail="; ".join(_sentence(each) for each in self.faults[:3]),
            faults=self.faults,
        )
        return JSONResponse(
            body.model_dump(), self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


def _sentence(fault: Fault) -> str:
    got = "" if fault.value is None else f", got {fault.value!r}"
    return f"{fault.rule}{got} ({fault.place})"


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented errors of an endpoint; 401 goes without saying."""
    told = {
        401: "The token is missing or wrong.",
        404: "The book doesn't have it.",
        409: "The book hasn't come that far, or not from this log; or an id has another fact.",
        413: "The body is too large.",
        422: "Something in the request is wrong.",
        429: "Too many at the same time: come again.",
        503: "Not now: the log is away, or an answer took too long.",
    }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemModel"}}}
    return {
        status: {"description": told[status], "content": content} for status in (401, *statuses)
    }


def add_handlers(app: FastAPI) -> None:
    """Every error of `app` is a problem."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        faults = [_fault(each) for each in error.errors()]
        return Problem.of(422, "invalid", faults).response()

    @app.exception_handler(Exception)
    async def _fault_of_ours(request: Request, error: Exception) -> Response:
        # The server logs it with its traceback; a message of its own might tell too much.
        place = f"{request.method} {request.url.path}"
        return Problem(
            500, "fault", rule="this must not happen", place=place, value=type(error).__name__
        ).response()

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        kinds = {404: "not_found", 405: "method_not_allowed"}
        return Problem(
            error.status_code,
            kinds.get(error.status_code, "refused"),
            rule=str(error.detail),
            place=f"{request.method} {request.url.path}",
            headers=error.headers,
        ).response()


def _fault(error: Mapping[str, Any]) -> Fault:
    where, *path = (str(each) for each in error["loc"])
    value = error.get("input")
    return Fault(
        place=f"{where} {'.'.join(path)}".strip(),
        rule=str(error["msg"]),
        value=None if error["type"] == "missing" else _shorten(repr(value)),
    )
