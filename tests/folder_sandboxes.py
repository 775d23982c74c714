"""Sandboxes for tests of tasks: a folder and bash, without a server in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FolderResult:
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    sandbox_s: float | None = None
    timed_out: bool = False


class FolderSandbox:
    """Runs commands with a folder as their home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.id = home.name
        self.try_no = 0
        self.commands: list[str] = []

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        envs: dict[str, str] | None = None,
    ) -> Any:
        self.commands.append(command)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        child = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            cwd=self.home / (cwd or "."),
            env={"HOME": str(self.home), "PATH": path, **(envs or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await child.communicate()
        except TimeoutError:
            os.killpg(child.pid, 9)
            out, err = await child.communicate()
            wall_s = time.monotonic() - began
            return FolderResult(None, out.decode(), err.decode(), wall_s, timed_out=True)
        wall_s = time.monotonic() - began
        return FolderResult(
            child.returncode, out.decode(errors="replace"), err.decode(errors="replace"), wall_s
        )

    async def write(self, path: str, data: bytes | str) -> None:
        target = self.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)

    async def read(self, path: str) -> bytes:
        return (self.home / path).read_bytes()

    async def kill(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.asynccontextmanager
async def folder_sandbox(template: str | None = None) -> AsyncGenerator[Any]:
    """A new sandbox, removed at the end."""
    with tempfile.TemporaryDirectory() as home:
        yield FolderSandbox(Path(home))
