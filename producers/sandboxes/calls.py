"""Deadlines and limits around calls of the SDK.

Invariants:

1. `within` returns when its time is up, whatever the call does about it. The SDK waits inside
   `asyncio.wait_for`, which on Python 3.11 can swallow a cancellation, and so that of an
   `asyncio.timeout` around it; a call runs in a task of its own, and is waited for from outside.
2. A call that was given up is cancelled and kept until it ends, so that it is neither collected in
   mid-flight nor its exception reported as never retrieved.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

import httpx

from ledger.facts import PoolUse
from producers.sandbox_errors import CallCancelled, NoAnswer, TransportPanic

T = TypeVar("T")

_given_up: set[asyncio.Future[Any]] = set()


async def within(timeout_s: float, call: Coroutine[Any, Any, T]) -> T:
    """What `call` returns or raises; NoAnswer after `timeout_s` seconds."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        give_up(task)
        raise
    if not task.done():
        give_up(task)
        raise NoAnswer(f"no answer within {timeout_s:g} s")
    return outcome(task)


def outcome(task: asyncio.Future[T]) -> T:
    """What a task that is done returned or raised. That it was cancelled is no cancellation of
    whoever asks."""
    if task.cancelled():
        raise CallCancelled("the SDK cancelled its own call")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise TransportPanic(repr(error)) from error
    return task.result()


def give_up(task: asyncio.Future[Any]) -> None:
    """Cancel `task` without waiting for its end."""
    _given_up.add(task)
    task.add_done_callback(_ended)
    task.cancel()


def _ended(task: asyncio.Future[Any]) -> None:
    _given_up.discard(task)
    if not task.cancelled():
        task.exception()


class Held:
    """One of a bounded resource."""

    def __init__(self, release: Callable[[], None], waited_s: float) -> None:
        self.waited_s = waited_s
        """Seconds that it was waited for."""
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give it back. Once: another time does nothing."""
        if self._release is not None:
            self._release()
            self._release = None


class Limit:
    """A bounded resource: who comes first is served first, and it is known who waits."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._free = asyncio.Semaphore(limit)
        self._used = 0
        self._waiting = 0

    async def take(self) -> Held:
        """Wait for one."""
        began = time.monotonic()
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        self._used += 1
        return Held(self._give_back, time.monotonic() - began)

    @contextlib.asynccontextmanager
    async def one(self, timeout_s: float) -> AsyncGenerator[None]:
        """Hold one. Raises httpx.PoolTimeout when none is free for `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                held = await self.take()
        except TimeoutError as error:
            raise httpx.PoolTimeout(
                f"none of {self._limit} {self._name} was free for {timeout_s:g} s,"
                f" {self._waiting} more wait"
            ) from error
        try:
            yield
        finally:
            held.release()

    @property
    def use(self) -> PoolUse:
        return PoolUse(self._name, self._used, self._limit, self._waiting)

    def _give_back(self) -> None:
        self._used -= 1
        self._free.release()
