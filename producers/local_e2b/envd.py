"""E2B's envd, processes: of the sandbox that the header E2b-Sandbox-Id names.

    GET  /health                           204; 502 where the sandbox is gone
    POST /process.Process/Start, Connect   streams of events, see connect_wire.py
    POST /process.Process/List, SendInput, CloseStdin, SendSignal

A command runs until it ends, its time (`connect-timeout-ms`) is up, or its sandbox ends: a client
that goes away doesn't end it, and another may connect to it.
"""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from producers.local_e2b import connect_wire
from producers.local_e2b.box import Box
from producers.local_e2b.channel import BoxGone, BoxRefused
from producers.local_e2b.faults import Rule
from producers.local_e2b.process import End, Event, Lost, Output, Process, describe
from producers.local_e2b.server import (
    Refusal,
    Server,
    box_of,
    gone,
    read_json,
    server_of,
)
from producers.local_e2b.settings import USERS

router = APIRouter()
KEEPALIVE_S = 50.0


class StreamDropped(Exception):
    """Breaks a response off: the client sees the connection end in the middle."""


@router.get("/health")
async def health(request: Request) -> Response:
    box_of(request)
    return Response(status_code=204)


@router.post("/process.Process/Start")
async def start(request: Request) -> Response:
    server, box = server_of(request), box_of(request)
    try:
        (message,) = connect_wire.read_envelopes(await request.body())
        timeout_s = connect_wire.timeout_s(request.headers.get("connect-timeout-ms"))
        config = message["process"]
        argv = [config["cmd"], *config.get("args", [])]
        envs = {**_user_envs(request), **config.get("envs", {})}
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(400, f"no start request: {error!r}", "invalid_argument") from error
    rule = await _strike(server, box)
    try:
        process = await box.run(argv, envs, config.get("cwd"), bool(message.get("stdin", True)))
    except BoxGone as error:
        raise gone(box.id) from error
    except BoxRefused as error:
        end = connect_wire.last(error.code, str(error))
        return Response(end, media_type=connect_wire.STREAM_TYPE)
    if timeout_s is not None:
        deadline = asyncio.get_running_loop().call_later(timeout_s, _time_out, server, box, process)
        process.when_ended(deadline.cancel)
    if rule is not None and rule.kind == "lost" and rule.seconds:
        asyncio.get_running_loop().call_later(rule.seconds, server.store.end_soon, box, "lost")
    elif rule is not None and rule.kind == "lost":
        # Before it can tell its end: a loss behind the last command would strike nobody.
        await server.store.end(box, "lost")
    stream = _stream(process, process.first, rule)
    if rule is not None and rule.kind == "lost_idle":
        stream = _lost_behind(server, box, stream)
    return StreamingResponse(stream, media_type=connect_wire.STREAM_TYPE)


async def _lost_behind(
    server: Server, box: Box, stream: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """All that a command says; the sandbox is gone before the client has the last of it."""
    last = b""
    async for part in stream:
        if last:
            yield last
        last = part
    await server.store.end(box, "lost")
    yield last


async def _strike(server: Server, box: Box) -> Rule | None:
    """The fault that meets this command, if any; one of the pool strikes here."""
    served, box.commands = box.commands, box.commands + 1
    for rule in server.plan.strike("command", box.create_no, served):
        server.faults.add(rule, box.create_no, box.id, served)
        if rule.kind == "pool_exhausted":
            await asyncio.sleep(rule.seconds)
            raise Refusal(503, f"no connection is free in the pool: injected: {rule.text}")
        if rule.kind == "command_slow":
            await asyncio.sleep(rule.seconds)
        return rule
    return None


def _time_out(server: Server, box: Box, process: Process) -> None:
    process.timed_out = True
    server.store.later(box.signal(process.pid, signal.SIGKILL))


def _user_envs(request: Request) -> dict[str, str]:
    """By the user of `Authorization: Basic`. Raises Refusal."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return {}
    name = base64.b64decode(value).decode().partition(":")[0]
    if name not in USERS:
        raise Refusal(401, f"invalid username: '{name}'", "unauthenticated")
    return {} if name == "user" else {"USER": name, "LOGNAME": name}


async def _stream(
    process: Process, queue: asyncio.Queue[Event], rule: Rule | None = None
) -> AsyncIterator[bytes]:
    try:
        yield connect_wire.envelope({"event": {"start": {"pid": process.pid}}})
        if rule is not None and rule.kind == "dropped_stream":
            await asyncio.sleep(rule.seconds)
            raise StreamDropped
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
            except TimeoutError:
                yield connect_wire.envelope({"event": {"keepalive": {}}})
                continue
            struck = rule is not None and rule.kind == "lost" and not rule.seconds
            if isinstance(event, Lost) or (isinstance(event, End) and struck):
                raise StreamDropped
            if isinstance(event, End):
                yield _end(process, event)
                return
            yield _output(event)
    finally:
        process.leave(queue)


def _output(event: Output) -> bytes:
    data = base64.b64encode(event.data).decode()
    return connect_wire.envelope({"event": {"data": {event.stream: data}}})


def _end(process: Process, event: End) -> bytes:
    if process.timed_out:
        return connect_wire.last("deadline_exceeded", "the command's time is up")
    status, error = describe(event.status)
    end: dict[str, Any] = {"exitCode": max(event.status, -1), "exited": event.status >= 0}
    end["status"] = status
    if error is not None:
        end["error"] = error
    return connect_wire.envelope({"event": {"end": end}}) + connect_wire.last()


@router.post("/process.Process/Connect")
async def connect(request: Request) -> Response:
    box = box_of(request)
    try:
        (message,) = connect_wire.read_envelopes(await request.body())
    except ValueError as error:
        raise Refusal(400, f"no connect request: {error!r}", "invalid_argument") from error
    process = _process(box, message)
    return StreamingResponse(
        _stream(process, process.listen()), media_type=connect_wire.STREAM_TYPE
    )


def _process(box: Box, message: dict[str, Any]) -> Process:
    pid = (message.get("process") or {}).get("pid")
    process = box.processes.get(pid) if isinstance(pid, int) else None
    if process is None or process.hidden:
        raise Refusal(404, f"process with pid {pid} not found", "not_found")
    return process


@router.post("/process.Process/List")
async def list_processes(request: Request) -> Response:
    box = box_of(request)
    rows: list[dict[str, Any]] = []
    for process in box.processes.values():
        if not process.hidden:
            config = {"cmd": process.argv[0], "args": process.argv[1:], "envs": process.envs}
            if process.cwd is not None:
                config["cwd"] = process.cwd
            rows.append({"pid": process.pid, "config": config})
    return JSONResponse({"processes": rows})


@router.post("/process.Process/SendInput")
async def send_input(request: Request) -> Response:
    box = box_of(request)
    message = await read_json(request)
    process = _process(box, message)
    try:
        data = base64.b64decode((message.get("input") or {}).get("stdin") or "", validate=True)
    except (ValueError, TypeError) as error:
        raise Refusal(400, "input.stdin must be base64", "invalid_argument") from error
    if not await process.write_stdin(data):
        raise Refusal(400, "stdin is not open", "failed_precondition")
    return JSONResponse({})


@router.post("/process.Process/CloseStdin")
async def close_stdin(request: Request) -> Response:
    process = _process(box_of(request), await read_json(request))
    process.close_stdin()
    return JSONResponse({})


@router.post("/process.Process/SendSignal")
async def send_signal(request: Request) -> Response:
    box = box_of(request)
    message = await read_json(request)
    process = _process(box, message)
    names = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}
    number = names.get(str(message.get("signal")))
    if number is None:
        raise Refusal(400, f"unknown signal {message.get('signal')!r}", "invalid_argument")
    try:
        await box.signal(process.pid, number)
    except BoxGone as error:
        raise gone(box.id) from error
    return JSONResponse({})
