"""DuckDB's own protocol: any DuckDB client attaches to a copy of the book, and only reads.

The server runs in a process of its own, which shows a newer copy every few seconds without its
clients noticing. Quack knows no limit of time: the process looks at its queries and ends itself
when one is over the limit; another is started at once, and clients attach again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
from collections.abc import AsyncGenerator

from api.server.owner import Owner
from api.server.settings import ServeError
from api.server.snapshot import Snapshots

logger = logging.getLogger(__name__)

RESTART_S = 0.5
START_S = 60.0


class Quack:
    """The process and what it is told."""

    def __init__(self, owner: Owner, snapshots: Snapshots, token: str | None) -> None:
        self._owner = owner
        self._settings = owner.settings
        self._snapshots = snapshots
        self._token = token or secrets.token_urlsafe(16)  # Quack knows no access without one

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[str | None]:
        """Serve while the block runs; gives what clients attach to, None where nothing is served.
        Raises ServeError when the port can't be had."""
        port = self._settings.quack_port
        if port is None:
            yield None
            return
        process = await self._start(port)
        keeping = asyncio.create_task(self._keep(process, port))
        try:
            yield f"quack:localhost:{port}"
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self, process: asyncio.subprocess.Process, port: int) -> None:
        """Show newer copies, and start the process again when it has ended."""
        try:
            while True:
                try:
                    await self._show(process)
                    await asyncio.sleep(max(0.2, self._settings.snapshot_s))
                    if process.returncode is None:
                        continue
                    logger.warning("the Quack server ended and starts again")
                except OSError as error:
                    logger.warning("the Quack server starts again: %s", error)
                await asyncio.sleep(RESTART_S)
                await _end(process)
                with contextlib.suppress(ServeError):
                    process = await self._start(port)
        finally:
            await _end(process)

    async def _start(self, port: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "api.server.quack_child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        start = {
            "memory_mb": self._settings.sql_memory_mb,
            "folder": str(self._snapshots.folder),
            "limit_s": self._settings.sql_s,
            "port": port,
            "token": self._token,  # through the pipe: an argument could be seen by everybody
        }
        process.stdin.write(json.dumps(start).encode() + b"\n")
        try:
            await self._show(process)
            async with asyncio.timeout(START_S):
                told = (await process.stdout.readline()).decode().strip()
        except (OSError, TimeoutError) as error:
            told = str(error)
        if told != "ready":
            await _end(process)
            raise ServeError(
                f"DuckDB's Quack server can't be started on port {port}: {told or 'it ended'}"
                " ([serve] quack_port; --no-quack serves without it)"
            )
        return process

    async def _show(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        snapshot = await self._snapshots.newest(self._owner.standing.positions)
        process.stdin.write(json.dumps(snapshot.told).encode() + b"\n")
        await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
