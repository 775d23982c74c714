"""E2B's control plane.

POST   /v2/sandboxes               create: 201; 401, 404 no such template, 429 no slot
GET    /v2/sandboxes               list: ?metadata=&state=&template=&limit=&nextToken=&order=
GET    /sandboxes/{id}             info
POST   /v2/sandboxes/{id}/connect  its time runs anew, if that is later
POST   /sandboxes/{id}/timeout     its time runs anew
GET    /sandboxes/{id}/metrics     use so far
DELETE /sandboxes/{id}             204 when nothing of it is left
GET    /admin/status               slots, queue and counts
GET    /admin/faults               every injected fault
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from producers.local_e2b.box import Box
from producers.local_e2b.channel import BoxGone
from producers.local_e2b.server import Refusal, Server, check_key, read_json
from producers.local_e2b.store import NoSlot
from producers.local_e2b.templates import Template

router = APIRouter()
ENVD_VERSION = "0.6.4"
"""What we speak; the SDK looks at it."""
DEFAULT_TIMEOUT_S = 300
TIMEOUT_MAX_S = 86_400
PAGE_MAX = 100


@router.post("/v2/sandboxes")
async def create(request: Request) -> Response:
    server = check_key(request)
    body = await read_json(request)
    template = server.templates.get(str(body.get("templateID")))
    if template is None:
        raise Refusal(404, f"template '{body.get('templateID')}' not found")
    timeout_s = _timeout(body, DEFAULT_TIMEOUT_S)
    metadata = _strings(body, "metadata")
    envs = _strings(body, "envVars")
    key = request.headers.get("idempotency-key")
    if key and (box := server.store.get(server.by_key.get(key, ""))):
        return JSONResponse(tell(server, box), 201)
    box = await _start(server, template, timeout_s)
    box.metadata, box.envs = metadata, envs
    if key:
        server.by_key[key] = box.id
    if await request.is_disconnected():  # nobody has its id: it would live to its time's end
        await server.store.end(box, "killed")
    return JSONResponse(tell(server, box), 201)


async def _start(server: Server, template: Template, timeout_s: float) -> Box:
    create_no, server.creates = server.creates, server.creates + 1
    delay_s = server.settings.start_latency.draw(server.settings.seed, create_no)
    for rule in server.plan.strike("create", create_no, create_no):
        server.faults.add(rule, create_no, None, create_no)
        if rule.kind == "start_refused":
            raise Refusal(rule.status, f"injected: {rule.text}")
        delay_s += rule.seconds
    await asyncio.sleep(delay_s)
    try:
        return await server.store.create(template, timeout_s, create_no)
    except NoSlot as error:
        raise Refusal(429, f"you have reached the maximum number of sandboxes: {error}") from error
    except BoxGone as error:
        raise Refusal(500, f"the sandbox did not start: {error}") from error


@router.get("/v2/sandboxes")
async def listing(request: Request) -> Response:
    server = check_key(request)
    query = request.query_params
    wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
    boxes = sorted(
        (
            box
            for box in server.store.boxes.values()
            if not box.gone
            and wanted.items() <= box.metadata.items()
            and query.get("template", box.template.name) == box.template.name
            and "running" in query.get("state", "running")
        ),
        key=lambda box: (box.started_s, box.id),
        reverse=query.get("order") == "desc",
    )
    start = _number(query.get("nextToken"), 0)
    end = start + min(_number(query.get("limit"), PAGE_MAX), PAGE_MAX)
    headers = {"x-next-token": str(end)} if end < len(boxes) else None
    return JSONResponse([tell(server, box) for box in boxes[start:end]], headers=headers)


@router.get("/sandboxes/{box_id}")
async def info(request: Request, box_id: str) -> Response:
    return JSONResponse(tell(*_find(request, box_id)))


@router.post("/v2/sandboxes/{box_id}/connect")
async def connect(request: Request, box_id: str) -> Response:
    server, box = _find(request, box_id)
    timeout_s = _timeout(await read_json(request), DEFAULT_TIMEOUT_S)
    if datetime.now(UTC).timestamp() + timeout_s > box.end_s:
        server.store.set_timeout(box, timeout_s)
    return JSONResponse(tell(server, box))


@router.post("/sandboxes/{box_id}/timeout")
async def set_timeout(request: Request, box_id: str) -> Response:
    server, box = _find(request, box_id)
    server.store.set_timeout(box, _timeout(await read_json(request), DEFAULT_TIMEOUT_S))
    return Response(status_code=204)


@router.get("/sandboxes/{box_id}/metrics")
async def metrics(request: Request, box_id: str) -> Response:
    server, box = _find(request, box_id)
    try:
        await box.measure()
    except BoxGone as error:
        raise Refusal(404, f"sandbox '{box_id}' was not found") from error
    start, end = (_number(request.query_params.get(name), None) for name in ("start", "end"))
    samples = list(box.samples)
    rows: list[dict[str, Any]] = []
    before = {"cpu_s": 0.0, "time_s": box.started_s}
    for sample in samples:
        if (start or 0) <= sample["time_s"] <= (end or sample["time_s"]):
            rows.append(_metric(server, sample, before))
        before = sample
    return JSONResponse(rows)


def _metric(server: Server, sample: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    seconds = max(sample["time_s"] - before["time_s"], 1e-3)
    return {
        "timestamp": iso(sample["time_s"]),
        "timestampUnix": int(sample["time_s"]),
        "cpuCount": os.cpu_count() or 1,
        "cpuUsedPct": round(100 * max(0.0, sample["cpu_s"] - before["cpu_s"]) / seconds, 2),
        "memUsed": sample["memory"],
        "memTotal": server.settings.limits.memory_mb << 20,
        "memCache": 0,
        "diskUsed": sample["disk_used"],
        "diskTotal": sample["disk_total"],
    }


@router.delete("/sandboxes/{box_id}")
async def kill(request: Request, box_id: str) -> Response:
    server, box = _find(request, box_id)
    await server.store.end(box, "killed")
    return Response(status_code=204)


@router.get("/admin/status")
async def status(request: Request) -> Response:
    server = check_key(request)
    store = server.store
    return JSONResponse(
        {
            "isolated": store.host.isolated,
            "slots": server.settings.slots,
            "used": store.used,
            "waiting": store.waiting,
            "most_used": store.most,
            "creates": server.creates,
            "faults": len(server.faults.injected),
            "counts": dict(store.counts),
            "templates": sorted(server.templates),
        }
    )


@router.get("/admin/faults")
async def faults(request: Request) -> Response:
    return JSONResponse(check_key(request).faults.injected)


def _find(request: Request, box_id: str) -> tuple[Server, Box]:
    server = check_key(request)
    if (box := server.store.get(box_id)) is None:
        raise Refusal(404, f"sandbox '{box_id}' was not found")
    return server, box


def tell(server: Server, box: Box) -> dict[str, Any]:
    """A sandbox as the control plane tells it."""
    limits = server.settings.limits
    return {
        "sandboxID": box.id,
        "templateID": box.template.name,
        "alias": box.template.name,
        "clientID": "local",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": box.token,
        "domain": None,
        "startedAt": iso(box.started_s),
        "endAt": iso(box.end_s),
        "state": "running",
        "cpuCount": os.cpu_count() or 1,
        "memoryMB": limits.memory_mb,
        "diskSizeMB": limits.disk_mb,
        "metadata": box.metadata,
    }


def iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="microseconds")


def _timeout(body: dict[str, Any], default: float) -> float:
    value = body.get("timeout", default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(400, f"timeout must be a number of seconds, got {value!r}")
    if not 0 <= value <= TIMEOUT_MAX_S:
        raise Refusal(400, f"timeout must be within 0..{TIMEOUT_MAX_S} seconds, got {value}")
    return value


def _strings(body: dict[str, Any], name: str) -> dict[str, str]:
    value = body.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise Refusal(400, f"{name} must be an object of strings, got {value!r}")
    return value


def _number(text: str | None, default: Any) -> Any:
    return int(text) if text is not None and text.isdecimal() else default
