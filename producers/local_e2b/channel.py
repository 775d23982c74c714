"""The server's end of one sandbox's socket: requests out, answers and ends of processes in.

Invariant: when the sandbox's first process is gone, for whatever reason, every answer that is
awaited fails with BoxGone and `on_close` is called, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

PACKET = 1 << 20


class BoxGone(Exception):
    """The sandbox is gone, or going."""


class BoxRefused(Exception):
    """The sandbox's first process refused a request."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Channel:
    """JSON packets both ways, with file descriptors on the way out."""

    def __init__(
        self,
        sock: socket.socket,
        on_exit: Callable[[int, int], None],
        on_close: Callable[[], None],
    ) -> None:
        """`on_exit(pid, status)` for each process that ended, orphans too."""
        sock.setblocking(False)
        self._sock = sock
        self._on_exit = on_exit
        self._on_close = on_close
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sending = asyncio.Lock()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        asyncio.get_running_loop().add_reader(sock, self._read)

    async def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request and await its answer. Raises BoxGone, BoxRefused."""
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self.tell({**request, "id": number}, fds)
            found = await answer
        finally:
            self._waiting.pop(number, None)
        if "code" in found:
            raise BoxRefused(found["code"], found["message"])
        return found

    async def tell(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send what has no answer. Raises BoxGone, and BoxRefused where it is too long."""
        data = json.dumps(request).encode()
        async with self._sending:
            while True:
                if self.closed:
                    raise BoxGone
                try:
                    socket.send_fds(self._sock, [data], fds)
                    return
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    if isinstance(error, ConnectionError):
                        raise BoxGone from error
                    raise BoxRefused("invalid_argument", f"{len(data)} bytes: {error}") from error

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable = loop.create_future()
        loop.add_writer(self._sock, lambda: writable.done() or writable.set_result(None))
        try:
            await asyncio.wait_for(writable, 5.0)
        except TimeoutError as error:
            raise BoxGone("its first process doesn't read") from error
        finally:
            if not self.closed:
                loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            data = self._sock.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        message = json.loads(data)
        if "exit" in message:
            self._on_exit(message["exit"], message["status"])
        elif "ready" in message:
            if not self.ready.done():
                self.ready.set_result(None)
        elif (answer := self._waiting.get(message["id"])) and not answer.done():
            answer.set_result(message)

    def close(self) -> None:
        """Close our end: without a pid namespace that is what ends the sandbox."""
        if self.closed:
            return
        self.closed = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        with contextlib.suppress(ValueError, OSError):
            loop.remove_writer(self._sock)
        self._sock.close()
        for answer in [*self._waiting.values(), self.ready]:
            if not answer.done():
                answer.set_exception(BoxGone())
                answer.exception()  # nobody may be waiting any more
        self._on_close()
