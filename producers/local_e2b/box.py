"""One sandbox: its first process, its commands, its files, its end.

Invariant: after `kill` has returned no process of the sandbox exists and its folder is gone. With
bubblewrap the kernel sees to it (the first process of a pid namespace takes all others along, and
bubblewrap ends only after it); without, the first process is the subreaper of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from producers.local_e2b.channel import BoxGone, BoxRefused, Channel
from producers.local_e2b.first_process import FirstProcess, begin_message
from producers.local_e2b.isolation import Host
from producers.local_e2b.process import End, Output, Process
from producers.local_e2b.settings import Limits
from producers.local_e2b.templates import Template

BEGIN_TIMEOUT_S = 20.0


class Box:
    """Made by `start`; `on_gone` is called once when its first process is gone."""

    def __init__(self, box_id: str, slot: int, template: Template, folder: Path) -> None:
        self.id = box_id
        self.slot = slot
        self.template = template
        self.folder = folder
        self.token = secrets.token_hex(16)
        self.metadata: dict[str, str] = {}
        self.envs: dict[str, str] = {}
        self.started_s = time.time()
        self.end_s = self.started_s
        self.commands = 0
        """Commands that were asked for: what faults count."""
        self.writes = 0
        self.create_no = 0
        self.processes: dict[int, Process] = {}
        self.samples: deque[dict[str, Any]] = deque(maxlen=360)
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        """Called when its first process is gone without having been killed by us."""
        self._early: dict[int, int] = {}
        self._spawning = 0
        self._first: FirstProcess | None = None
        self._channel: Channel | None = None
        self._root = ""
        self.isolated = False
        self._limits = Limits()

    async def start(self, host: Host, limits: Limits) -> None:
        """Start the first process, copy the template. Raises BoxGone with what it said."""
        self._limits, self.isolated = limits, host.isolated
        self._root = "" if host.isolated else str(self.folder)
        first = FirstProcess(self.id, self.slot, self.template, self.folder, host, limits)
        self._first = first
        self._channel = channel = Channel(first.socket, self._exited, self._closed)
        begin = begin_message(self.id, self.template, self._root, host.isolated, limits)
        try:
            await channel.tell(begin)
            await asyncio.wait_for(asyncio.shield(channel.ready), BEGIN_TIMEOUT_S)
        except (BoxGone, TimeoutError) as error:
            raise BoxGone(f"the sandbox's first process did not start: {first.said()}") from error
        first.began()
        await self._fill()

    async def _fill(self) -> None:
        """The template's files, then its setup."""
        if self.template.archive is not None:
            with self.template.archive.open("rb") as archive:
                line = ["tar", "-xf", "-", "-C", self._root or "/"]
                await self._must(line, "copying the template", archive.fileno())
        if self.template.setup:
            await self._must(["/bin/bash", "-l", "-c", self.template.setup], "the template's setup")

    async def _must(self, argv: list[str], what: str, stdin: int | None = None) -> None:
        process = await self._spawn_in({"argv": argv, "env": {}}, argv, stdin)
        said = b""
        async for event in process.events(process.first):
            if isinstance(event, Output):
                said = (said + event.data)[-2000:]
            elif event != End(0):
                text = said.decode(errors="replace").strip()
                raise BoxGone(f"{what} ({self.template.name}) failed: {event}: {text}")

    async def run(
        self, argv: list[str], envs: dict[str, str], cwd: str | None, stdin: bool
    ) -> Process:
        """Start a command; its listener `first` gets all output. Raises BoxGone, BoxRefused."""
        request = {"argv": argv, "env": {**self.envs, **envs}, "cwd": cwd}
        if not stdin:
            return await self._spawn_in(request, argv, None)
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        try:
            process = await self._spawn_in(request, argv, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        process.stdin = ours
        return process

    async def files(
        self, operation: str, arguments: dict[str, Any], data: AsyncIterator[bytes] | None = None
    ) -> bytes:
        """One operation of the files API: what it tells. Raises BoxGone, and BoxRefused with its
        code."""
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        request = {"files": operation, "arguments": arguments, "cwd": "/"}
        try:
            process = await self._spawn_in(request, ["files", operation], theirs, hidden=True)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        process.stdin = ours
        feeding = asyncio.create_task(_feed(process, data))
        told: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        try:
            async for event in process.events(process.first):
                if isinstance(event, Output):
                    told[event.stream] += event.data
                    if len(told[event.stream]) > self._limits.file_mb << 20:
                        raise BoxRefused("invalid_argument", "more than the file limit")
                elif event == End(0):
                    return bytes(told["stdout"])
                elif isinstance(event, End):
                    raise _refusal(bytes(told["stderr"]), event)
        finally:
            feeding.cancel()
            process.leave(process.first)
        raise BoxGone

    async def _spawn_in(
        self,
        request: dict[str, Any],
        argv: list[str],
        stdin: int | None,
        hidden: bool = False,
    ) -> Process:
        channel = self._channel
        if self.gone or channel is None:
            raise BoxGone
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        self._spawning += 1
        try:
            fds = [stdin if stdin is not None else null, out_theirs, err_theirs]
            answer = await channel.ask({"op": "spawn", **request}, fds)
            process = Process(answer["pid"], argv, request.get("cwd"), request.get("env", {}))
            process.pump(out, err)
            out = err = None
            if (status := self._early.pop(process.pid, None)) is not None:
                process.exited(status)
            else:
                self.processes[process.pid] = process
                process.hidden = hidden
            return process
        finally:
            self._spawning -= 1
            if not self._spawning:
                self._early.clear()
            for fd in (out, err, out_theirs, err_theirs, null):
                if fd is not None:
                    os.close(fd)

    async def signal(self, pid: int, number: int) -> bool:
        """False: there is no such command."""
        if pid not in self.processes or self._channel is None:
            return False
        await self._channel.tell({"op": "signal", "pid": pid, "signal": number})
        return True

    async def measure(self) -> dict[str, Any]:
        """Its use now: `cpu_s` since the start, bytes of memory and disk, processes."""
        if self._channel is None:
            raise BoxGone
        found = await self._channel.ask({"op": "measure"})
        found["time_s"] = time.time()
        self.samples.append(found)
        return found

    def _exited(self, pid: int, status: int) -> None:
        process = self.processes.pop(pid, None)
        if process is not None:
            process.exited(status)
        elif self._spawning:
            self._early[pid] = status  # it ended before we heard of its start

    def _closed(self) -> None:
        was_gone, self.gone = self.gone, True
        for process in self.processes.values():
            process.lost()
        self.processes.clear()
        if not was_gone and self.on_gone is not None:
            self.on_gone()

    def last_words(self) -> str:
        """What its first process wrote to its standard error."""
        return self._first.said() if self._first is not None else ""

    async def kill(self) -> None:
        """End everything in it and remove its folder."""
        self.gone = True
        if self._first is not None:
            self._first.kill()
        if self._channel is not None:
            self._channel.close()
        await asyncio.to_thread(self._bury)

    def _bury(self) -> None:
        if self._first is not None:
            self._first.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def is_full(self) -> bool:
        """Whether its folder has reached the disk limit; looked at before a write through the API.
        Only without bubblewrap: with it the file system itself has that size."""
        size = await asyncio.to_thread(_size_of, self.folder)
        return size >= self._limits.disk_mb << 20


async def _feed(process: Process, data: AsyncIterator[bytes] | None) -> None:
    if data is not None:
        async for piece in data:
            if not await process.write_stdin(piece):
                return
    process.close_stdin()


def _refusal(said: bytes, end: End) -> BoxRefused:
    try:
        told = json.loads(said)
        return BoxRefused(told["code"], told["message"])
    except (ValueError, KeyError, TypeError):
        text = said.decode(errors="replace").strip() or f"status {end.status}"
        return BoxRefused("internal", f"the files operation failed: {text}")


def _size_of(folder: Path) -> int:
    size = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(Path(above, name)).st_blocks * 512
    return size
