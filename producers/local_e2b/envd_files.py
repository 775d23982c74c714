"""E2B's envd, files: of the sandbox that the header E2b-Sandbox-Id names.

    GET  /files?path=     read: 404 nothing there, 400 no file
    POST /files?path=     write, octet-stream or multipart: 507 no space
    POST /filesystem.Filesystem/ListDir, Stat, MakeDir, Move, Remove

Each operation runs inside the sandbox (inside/files.py), so no path leads out of it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import UploadFile

from producers.local_e2b.box import Box
from producers.local_e2b.channel import BoxGone, BoxRefused
from producers.local_e2b.control import iso
from producers.local_e2b.server import Refusal, box_of, gone, read_json, refused, server_of

router = APIRouter()
CHUNK = 1 << 16


@router.get("/files")
async def read_file(request: Request) -> Response:
    told = await _operate(box_of(request), "read", {"path": _path(request)})
    return Response(told, media_type="application/octet-stream")


@router.post("/files")
async def write_files(request: Request) -> Response:
    server, box = server_of(request), box_of(request)
    served, box.writes = box.writes, box.writes + 1
    for rule in server.plan.strike("write", box.create_no, served):
        server.faults.add(rule, box.create_no, box.id, served)
        raise Refusal(507, f"not enough disk space: injected: {rule.text}")
    if not request.headers.get("content-type", "").startswith("multipart/"):
        data = request.stream()
        if request.headers.get("content-encoding") == "gzip":
            data = _one(gzip.decompress(await request.body()))
        return JSONResponse([await _write(box, _path(request), data)])
    written: list[Any] = []
    async with request.form(max_files=10_000) as form:
        for _, part in form.multi_items():
            if not isinstance(part, UploadFile):
                raise Refusal(400, "each part must be a file with a name")
            path = request.query_params.get("path") or part.filename or ""
            written.append(await _write(box, path, _pieces(part)))
    return JSONResponse(written)


async def _write(box: Box, path: str, data: AsyncIterator[bytes]) -> dict[str, Any]:
    if not box.isolated and await box.is_full():
        raise Refusal(507, f"not enough disk space for '{path}'")
    return json.loads(await _operate(box, "write", {"path": path}, data))


async def _pieces(part: UploadFile) -> AsyncIterator[bytes]:
    while data := await part.read(CHUNK):
        yield data


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _path(request: Request) -> str:
    path = request.query_params.get("path")
    if not path:
        raise Refusal(400, "path is missing")
    return path


@router.post("/filesystem.Filesystem/ListDir")
async def list_dir(request: Request) -> Response:
    body = await read_json(request)
    arguments = {"path": str(body.get("path", ".")), "depth": int(body.get("depth") or 1)}
    found = json.loads(await _operate(box_of(request), "list", arguments))
    return JSONResponse({"entries": [_entry(each) for each in found["entries"]]})


@router.post("/filesystem.Filesystem/Stat")
async def stat(request: Request) -> Response:
    return await _one_entry(request, "stat", "path")


@router.post("/filesystem.Filesystem/MakeDir")
async def make_dir(request: Request) -> Response:
    return await _one_entry(request, "make_dir", "path")


@router.post("/filesystem.Filesystem/Move")
async def move(request: Request) -> Response:
    return await _one_entry(request, "move", "source", "destination")


@router.post("/filesystem.Filesystem/Remove")
async def remove(request: Request) -> Response:
    return await _one_entry(request, "remove", "path")


async def _one_entry(request: Request, operation: str, *names: str) -> Response:
    box, body = box_of(request), await read_json(request)
    arguments = {name: str(body.get(name, "")) for name in names}
    found = json.loads(await _operate(box, operation, arguments))
    return JSONResponse({"entry": _entry(found["entry"])} if "entry" in found else {})


def _entry(found: dict[str, Any]) -> dict[str, Any]:
    modified_s = found.pop("modified_s")
    return {**found, "size": str(found["size"]), "modifiedTime": iso(modified_s)}


async def _operate(
    box: Box,
    operation: str,
    arguments: dict[str, Any],
    data: AsyncIterator[bytes] | None = None,
) -> bytes:
    try:
        return await box.files(operation, arguments, data)
    except BoxGone as error:
        raise gone(box.id) from error
    except BoxRefused as error:
        raise refused(error.code, str(error)) from error
