"""Processes that answer SQL, each killed when it goes over a limit.

Invariant: no query outlives its limit. A process that is late, or grew too large and died, is gone
with all it did, and another takes its place.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from api.server.owner import Owner
from api.server.problems import Problem
from api.server.snapshot import Snapshot, Snapshots

WAIT_S = 5.0
"""How long a query waits for a process that is free."""
LINE_BYTES = 4 * 1024 * 1024
"""Names and types of an answer's columns are one line."""
PLACE = "body query"


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """What a query gave."""

    columns: list[tuple[str, str]]
    """Name and DuckDB type."""
    rows: bytes
    """A JSON array of arrays."""
    snapshot: Snapshot
    """What it was asked of."""
    seconds: float


class SqlPool:
    """Answers queries from copies of the owner's book."""

    def __init__(self, owner: Owner, snapshots: Snapshots) -> None:
        self._owner = owner
        self._settings = owner.settings
        self._snapshots = snapshots
        self._free: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        for _ in range(owner.settings.sql_processes):
            self._free.put_nowait(None)  # started when first needed
        self._running: set[asyncio.subprocess.Process] = set()

    async def ask(self, query: str) -> SqlAnswer:
        """Answer a query. Raises Problem."""
        try:
            process = await asyncio.wait_for(self._free.get(), WAIT_S)
        except TimeoutError:
            raise Problem(
                429,
                "busy",
                rule=f"{self._settings.sql_processes} queries are answered at the same time",
                place="[serve] sql_processes",
                headers={"Retry-After": "1"},
            ) from None
        try:
            process = process or await self._start()
            snapshot = await self._snapshots.newest(self._owner.standing.positions)
            began = time.monotonic()
            told, rows = await self._exchange(process, snapshot, query)
        except BaseException:  # also when the client has gone away
            self._free.put_nowait(None)
            if process is not None:
                await self._end(process)
            raise
        self._free.put_nowait(process)
        if told["kind"] != "answer":
            raise _problem(told["kind"], told["why"])
        return SqlAnswer(told["columns"], rows, snapshot, time.monotonic() - began)

    async def close(self) -> None:
        for process in list(self._running):
            await self._end(process)

    async def _exchange(
        self, process: asyncio.subprocess.Process, snapshot: Snapshot, query: str
    ) -> tuple[dict[str, Any], bytes]:
        question = snapshot.told | {
            "query": query,
            "rows": self._settings.sql_rows,
            "bytes_most": self._settings.sql_mb * 1024 * 1024,
        }
        try:
            return await asyncio.wait_for(_exchange(process, question), self._settings.sql_s)
        except TimeoutError:
            raise _problem("too_slow", f"a query may take {self._settings.sql_s:g} s") from None
        except (asyncio.IncompleteReadError, OSError, ValueError):
            raise _problem(
                "out_of_memory",
                "the process that answered died: a query may take"
                f" {self._settings.sql_memory_mb} MB of memory",
            ) from None

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "api.server.sql_child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
        )
        self._running.add(process)
        start = {"memory_mb": self._settings.sql_memory_mb, "folder": str(self._snapshots.folder)}
        _write(process, start)
        assert process.stdout is not None
        await process.stdout.readline()  # until it is there, no time of a query's has begun
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._running.discard(process)
        if process.returncode is None:
            process.kill()
        await process.wait()


def _problem(kind: str, rule: str) -> Problem:
    return Problem(422, kind, rule=rule, place=PLACE)


def _write(process: asyncio.subprocess.Process, told: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode() + b"\n")


async def _exchange(
    process: asyncio.subprocess.Process, question: dict[str, Any]
) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    _write(process, question)
    await process.stdin.drain()
    told = json.loads(await process.stdout.readline())
    return told, await process.stdout.readexactly(told["bytes"])
