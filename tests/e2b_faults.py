"""A scripted E2B server: what a backend can do to the SDK on the wire.

    async with FaultyE2B() as server:
        server.will("create", status(503), status(503))    # then as usual
        server.will("run", stream(STARTED, dropped=True))

It stands for the remote service, not for our code: the unmodified SDK talks to it over HTTP. Its
sandboxes are names only; a command does what the script says, and by default ends well at once.
Whatever isn't scripted is answered as E2B does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from producers.sandbox_pool import SandboxSettings

KEY = "e2b_secret_key"
NOT_FOUND = {"code": 404, "message": "sandbox was not found"}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def command(self) -> str:
        """Of a run: what bash is given."""
        return json.loads(self.body[5:])["process"]["args"][-1]


Answer = Callable[["FaultyE2B", Request, asyncio.StreamWriter], Awaitable[bool | None]]
"""Writes an answer. True: go on with the usual one."""


class FaultyE2B:
    """A server on the running event loop."""

    def __init__(self) -> None:
        self.up: dict[str, dict[str, str]] = {}
        """Metadata of the sandboxes that are up."""
        self.ended: list[str] = []
        """Ids of those that were killed."""
        self.commands: list[str] = []
        self.asked: list[str] = []
        """Routes, as they were asked for."""
        self._plan: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._made = 0
        self._connections: set[asyncio.Task[None]] = set()

    def will(self, route: str, *answers: Answer) -> None:
        """Answer the next requests of a route so. Routes: create list info kill metrics health run
        files."""
        self._plan[route].extend(answers)

    def settings(self, **changes: Any) -> SandboxSettings:
        usual: dict[str, Any] = {
            "api_url": self.url,
            "sandbox_url": self.url,
            "api_key": KEY,
            "start_timeout_s": 5.0,
            "request_timeout_s": 5.0,
            "backoff_s": 0.01,
        }
        return SandboxSettings(**(usual | changes))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(await _request(reader), writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        route, usual = self._route(request)
        self.asked.append(route)
        if route == "run":
            self.commands.append(request.command)
        plan = self._plan[route]
        if plan and not await plan.popleft()(self, request, writer):
            return
        await usual(self, request, writer)

    def _route(self, request: Request) -> tuple[str, Answer]:
        parts = request.path.strip("/").split("/")
        match request.method, parts:
            case "POST", ["v2", "sandboxes"]:
                return "create", FaultyE2B._create
            case "GET", ["v2", "sandboxes"]:
                return "list", FaultyE2B._list
            case "GET", ["sandboxes", _, "metrics"]:
                return "metrics", status(200, METRICS)
            case "GET", ["sandboxes", sandbox_id]:
                up = sandbox_id in self.up
                return "info", status(200, self.detail(sandbox_id)) if up else status(404)
            case "DELETE", ["sandboxes", sandbox_id]:
                return "kill", FaultyE2B._kill
            case "GET", ["health"]:
                return "health", status(204) if self._is_up(request) else status(502, NOT_FOUND)
            case "POST", ["process.Process", "Start"]:
                return "run", stream(STARTED, ENDED, END)
            case "POST", ["files"]:
                return "files", status(200, [{"name": "a", "type": "file", "path": "/a"}])
            case "GET", ["files"]:
                return "files", status(200, "content")
        return "unknown", status(404)

    def _is_up(self, request: Request) -> bool:
        return request.headers.get("e2b-sandbox-id") in self.up

    async def _create(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self._made += 1
        sandbox_id = f"i{self._made}"
        self.up[sandbox_id] = request.json.get("metadata", {})
        await status(201, self.detail(sandbox_id))(self, request, writer)

    async def _list(self, request: Request, writer: asyncio.StreamWriter) -> None:
        asked = parse_qs(request.query.get("metadata", [""])[0])
        found = [
            self.detail(sandbox_id)
            for sandbox_id, metadata in self.up.items()
            if {name: values[0] for name, values in asked.items()}.items() <= metadata.items()
        ]
        await status(200, found)(self, request, writer)

    async def _kill(self, request: Request, writer: asyncio.StreamWriter) -> None:
        sandbox_id = request.path.rpartition("/")[2]
        was_up = self.up.pop(sandbox_id, None) is not None
        if was_up:
            self.ended.append(sandbox_id)
        await status(204 if was_up else 404)(self, request, writer)

    def detail(self, sandbox_id: str) -> dict[str, Any]:
        return {
            "sandboxID": sandbox_id,
            "templateID": "base",
            "clientID": "c",
            "envdVersion": "0.6.4",
            "startedAt": STARTED_AT.isoformat(),
            "endAt": END_AT.isoformat(),
            "state": "running",
            "cpuCount": 2,
            "memoryMB": 512,
            "diskSizeMB": 1024,
            "metadata": self.up[sandbox_id],
        }


STARTED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
END_AT = STARTED_AT + timedelta(hours=1)
METRICS = [
    {
        "timestamp": (STARTED_AT + timedelta(seconds=after)).isoformat(),
        "timestampUnix": int((STARTED_AT + timedelta(seconds=after)).timestamp()),
        "cpuCount": 2,
        "cpuUsedPct": 12.5,
        "memUsed": 1000 + after,
        "memTotal": 512 << 20,
        "memCache": 0,
        "diskUsed": 2000 + after,
        "diskTotal": 1 << 30,
    }
    for after in (5, 0)
]


def frame(message: Any, flag: int = 0) -> bytes:
    """One envelope of a Connect stream."""
    body = json.dumps(message).encode()
    return struct.pack(">BI", flag, len(body)) + body


def printed(text: str, where: str = "stdout") -> bytes:
    return frame({"event": {"data": {where: base64.b64encode(text.encode()).decode()}}})


def ended(exit_code: int) -> bytes:
    return frame({"event": {"end": {"exitCode": exit_code, "exited": True, "status": "ended"}}})


STARTED = frame({"event": {"start": {"pid": 7}}})
ENDED = ended(0)
END = frame({}, flag=2)


def broken_off(code: str) -> bytes:
    """The end of a stream by an error of the server."""
    return frame({"error": {"code": code, "message": f"said {code}"}}, flag=2)


def status(code: int, body: Any = None, headers: str = "") -> Answer:
    """A whole answer; a body that is no text is sent as JSON, None as E2B's error for the code."""

    async def answer(_: FaultyE2B, request: Request, writer: asyncio.StreamWriter) -> None:
        said = {"code": code, "message": f"said {code}"} if body is None and code >= 400 else body
        data = (
            b"" if said is None else (said if isinstance(said, str) else json.dumps(said)).encode()
        )
        kind = "text/html" if isinstance(said, str) else "application/json"
        head = f"HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-type: {kind}\r\n{headers}"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()

    return answer


def stream(*frames: bytes, hangs: bool = False, dropped: bool = False) -> Answer:
    """A Connect stream of these frames; afterwards it says nothing, or the connection goes."""

    async def answer(_: FaultyE2B, request: Request, writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/connect+json\r\n"
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for one in frames:
            writer.write(f"{len(one):x}\r\n".encode() + one + b"\r\n")
            await writer.drain()
        if hangs:
            await asyncio.sleep(3600)
        if not dropped:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    return answer


async def hangs(_: FaultyE2B, request: Request, writer: asyncio.StreamWriter) -> None:
    """No answer at all."""
    await asyncio.sleep(3600)


async def drops(_: FaultyE2B, request: Request, writer: asyncio.StreamWriter) -> None:
    """The connection goes before an answer."""


async def loses_its_answer(
    server: FaultyE2B, request: Request, writer: asyncio.StreamWriter
) -> None:
    """A create that is carried out, and its answer never sent."""
    server.up[f"lost{len(server.asked)}"] = request.json["metadata"]


def late(seconds: float) -> Answer:
    """The usual answer, later; the request is carried out whether or not somebody waits."""

    async def answer(_: FaultyE2B, request: Request, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        return True

    return answer


def loses_sandbox(then: Answer) -> Answer:
    """The sandbox is gone, and then this."""

    async def answer(server: FaultyE2B, request: Request, writer: asyncio.StreamWriter) -> None:
        server.up.pop(request.headers["e2b-sandbox-id"], None)
        await then(server, request, writer)

    return answer


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
    }
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    parts = urlsplit(target)
    return Request(method, parts.path, parse_qs(parts.query), headers, body)
