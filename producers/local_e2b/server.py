"""What the routes share: the store, templates, faults, and who may ask."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from producers.local_e2b.box import Box
from producers.local_e2b.connect_wire import STATUS_OF_CODE
from producers.local_e2b.fault_log import FaultLog
from producers.local_e2b.faults import FaultPlan
from producers.local_e2b.settings import Settings
from producers.local_e2b.store import Store
from producers.local_e2b.templates import Template


@dataclass(slots=True)
class Server:
    """One server's parts."""

    settings: Settings
    store: Store
    templates: dict[str, Template]
    plan: FaultPlan
    faults: FaultLog
    creates: int = 0
    """Create requests so far, also those that were refused."""
    by_key: dict[str, str] = field(default_factory=dict[str, str])
    """Sandbox id by Idempotency-Key."""


class Refusal(Exception):
    """An answer other than success; both kinds of client read this body."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        """`code` is a Connect code where a Connect client asks."""
        super().__init__(message)
        self.status = status
        self.code = code

    def response(self) -> JSONResponse:
        code = self.status if self.code is None else self.code
        headers = {"Retry-After": "1"} if self.status == 429 else None
        return JSONResponse({"code": code, "message": str(self)}, self.status, headers)


def server_of(request: Request) -> Server:
    return request.app.state.server


def check_key(request: Request) -> Server:
    """The control plane's key. Raises Refusal(401)."""
    server = server_of(request)
    given = request.headers.get("x-api-key", "")
    wanted = server.settings.api_key
    if not given:
        raise Refusal(401, "authorization header is missing: no X-API-KEY")
    if wanted is not None and not secrets.compare_digest(given.encode(), wanted.encode()):
        raise Refusal(401, "Invalid API key")
    return server


def box_of(request: Request) -> Box:
    """The sandbox that an envd request is for. Raises Refusal: 502 in the words of E2B's proxy,
    from which the SDK tells that the sandbox is gone, or 401."""
    box_id = request.headers.get("e2b-sandbox-id", "")
    box = server_of(request).store.get(box_id)
    if box is None:
        raise gone(box_id)
    if not secrets.compare_digest(request.headers.get("x-access-token", ""), box.token):
        raise Refusal(401, "access token is missing or wrong", "unauthenticated")
    return box


def gone(box_id: str) -> Refusal:
    return Refusal(502, f"The sandbox {box_id} was not found")


def refused(code: str, message: str) -> Refusal:
    """By the code of the sandbox's first process."""
    status = STATUS_OF_CODE.get(code, 500)
    return Refusal(status, message, "resource_exhausted" if code == "no_space" else code)


async def read_json(request: Request) -> dict[str, Any]:
    """A JSON object, or Refusal(400)."""
    try:
        body = await request.json()
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}", "invalid_argument") from error
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object", "invalid_argument")
    return body
