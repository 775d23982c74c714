"""One process of a sandbox as the server sees it: its output for any number of listeners.

Invariant: a listener gets every byte that came after it began to listen, in order, then the end.
Output waits for the slowest listener (bounded); without one it is thrown away, so that a command
whose client is gone never blocks on a full pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

CHUNK = 1 << 16
CHUNKS_MAX = 64
"""Chunks that wait for one listener."""
AFTER_EXIT_S, DRAIN_MAX_S = 0.2, 5.0
"""How long output is awaited after the end while a child that stays holds the pipe open: when it is
silent, and at the most."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """How it ended."""

    status: int
    """Exit code, or the negative number of the signal."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The sandbox went before the process ended."""


Event = Output | End | Lost


class Process:
    """Made when the sandbox's first process has told the pid."""

    def __init__(self, pid: int, argv: list[str], cwd: str | None, envs: dict[str, str]) -> None:
        self.pid = pid
        self.argv = argv
        self.cwd = cwd
        self.envs = envs
        self.stdin: int | None = None
        """Our end of its stdin, which doesn't block; None: it has none, or it is closed."""
        self.hidden = False
        """Of our own making: not listed."""
        self._listeners: list[asyncio.Queue[Event]] = []
        self._ended: asyncio.Future[End | Lost] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._pipes: tuple[int, ...] = ()
        self.timed_out = False
        self.over = False
        """The end was told to all listeners."""
        self.first = self.listen()
        """A listener from the first byte on."""

    def listen(self) -> asyncio.Queue[Event]:
        """A new listener's queue; stop it with `leave`."""
        queue: asyncio.Queue[Event] = asyncio.Queue(CHUNKS_MAX)
        self._listeners.append(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Event]) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(queue)
        while not queue.empty():  # who waits to put into it finds room
            queue.get_nowait()

    async def events(self, queue: asyncio.Queue[Event]) -> AsyncIterator[Event]:
        """What comes, to the end."""
        while True:
            event = await queue.get()
            yield event
            if not isinstance(event, Output):
                return

    def pump(self, stdout: int, stderr: int) -> None:
        """Begin to read its pipes, which are ours from now on."""
        readers = [
            asyncio.create_task(self._pump("stdout", stdout)),
            asyncio.create_task(self._pump("stderr", stderr)),
        ]
        self._pipes = (stdout, stderr)
        self._tasks = [*readers, asyncio.create_task(self._finish(readers))]

    def exited(self, status: int) -> None:
        """Told by the sandbox."""
        if not self._ended.done():
            self._ended.set_result(End(status))

    def lost(self) -> None:
        """The sandbox is gone."""
        if not self._ended.done():
            self._ended.set_result(Lost())

    def when_ended(self, call: Callable[[], None]) -> None:
        self._ended.add_done_callback(lambda _: call())

    async def _pump(self, stream: Literal["stdout", "stderr"], fd: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
        )
        try:
            while data := await reader.read(CHUNK):
                await self._tell(Output(stream, data))
        finally:
            transport.close()

    async def _tell(self, event: Event) -> None:
        if self.over:
            return  # output of a child that stayed: nobody listens any more
        for queue in list(self._listeners):
            if queue in self._listeners:
                await queue.put(event)

    async def _finish(self, readers: list[asyncio.Task[None]]) -> None:
        end = await self._ended
        if isinstance(end, End):
            await self._drain(readers)
        await self._tell(end)
        self.over = True
        self.close_stdin()
        if isinstance(end, Lost):
            for reader in readers:
                reader.cancel()

    async def _drain(self, readers: list[asyncio.Task[None]]) -> None:
        """Wait for the rest of the output, not for a child that keeps the pipes open."""
        deadline = asyncio.get_running_loop().time() + DRAIN_MAX_S
        while True:
            _, pending = await asyncio.wait(readers, timeout=AFTER_EXIT_S)
            if not pending:
                return
            slow = any(queue.full() for queue in self._listeners)
            late = asyncio.get_running_loop().time() > deadline
            if not slow and (late or not any(map(_readable, self._pipes))):
                return

    async def write_stdin(self, data: bytes) -> bool:
        """False: it has no open stdin."""
        view = memoryview(data)
        while view:
            if self.stdin is None:
                return False
            try:
                view = view[os.write(self.stdin, view) :]
            except BlockingIOError:
                await _writable(self.stdin)
            except BrokenPipeError:
                self.close_stdin()
                return False
        return self.stdin is not None

    def close_stdin(self) -> bool:
        """False: it was not open."""
        if self.stdin is None:
            return False
        os.close(self.stdin)
        self.stdin = None
        return True


def _readable(fd: int) -> bool:
    try:
        return bool(select.select([fd], [], [], 0)[0])
    except (OSError, ValueError):  # closed: read to its end
        return False


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    writable = loop.create_future()
    loop.add_writer(fd, lambda: writable.done() or writable.set_result(None))
    try:
        await writable
    finally:
        loop.remove_writer(fd)


def describe(status: int) -> tuple[str, str | None]:
    """Go's words for an exit, as E2B tells them: status, and an error for a signal."""
    if status >= 0:
        return f"exit status {status}", None
    try:
        name = signal.strsignal(-status) or str(-status)
    except ValueError:
        name = str(-status)
    return f"signal: {name.lower()}", f"signal: {name.lower()}"
