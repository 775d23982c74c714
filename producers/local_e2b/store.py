"""The sandboxes of one server: slots, the queue for them, their time, their end.

Invariant: a slot is held from before a sandbox's first process exists until after its last one is
gone, so never more than `slots` sandboxes use the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import secrets
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from producers.local_e2b.box import Box
from producers.local_e2b.channel import BoxGone, BoxRefused
from producers.local_e2b.isolation import Host
from producers.local_e2b.settings import Settings
from producers.local_e2b.templates import Template


class NoSlot(Exception):
    """All slots are taken and the queue is full, or the wait in it too long."""


class Store:
    """All sandboxes that live."""

    def __init__(self, settings: Settings, host: Host, boxes: Path) -> None:
        self.settings = settings
        self.host = host
        self.boxes: dict[str, Box] = {}
        self.counts: Counter[str] = Counter()
        """created, failed, refused (no slot), and of ends: killed, expired, lost (by a fault),
        crashed."""
        self.most = 0
        """Highest number of slots in use at a time."""
        self._folder = boxes
        self._free = list(range(settings.slots))
        self._slots = asyncio.Semaphore(settings.slots)
        self._waiting = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def used(self) -> int:
        return self.settings.slots - len(self._free)

    @property
    def waiting(self) -> int:
        return self._waiting

    async def create(self, template: Template, timeout_s: float, create_no: int) -> Box:
        """A new sandbox. Raises NoSlot, BoxGone (it did not start)."""
        await self._take()
        slot = heapq.heappop(self._free)
        self.most = max(self.most, self.used)
        box_id = "i" + secrets.token_hex(10)[:19]
        folder = self._folder / box_id
        folder.mkdir(parents=True)
        box = Box(box_id, slot, template, folder)
        box.create_no = create_no
        try:
            if self._closing:
                raise BoxGone("the server ends")
            await box.start(self.host, self.settings.limits)
        except BaseException:
            self.counts["failed"] += 1
            await asyncio.shield(self.later(self._bury(box)))
            raise
        box.on_gone = lambda: self.end_soon(box, "crashed")
        self.boxes[box_id] = box
        self.counts["created"] += 1
        self.set_timeout(box, timeout_s)
        return box

    async def _take(self) -> None:
        if self._slots.locked() and self._waiting >= self.settings.queue:
            self.counts["refused"] += 1
            raise NoSlot(f"{self.used} sandboxes live and {self._waiting} starts wait")
        self._waiting += 1
        try:
            await asyncio.wait_for(self._slots.acquire(), self.settings.queue_timeout_s or 1e-3)
        except TimeoutError as error:
            self.counts["refused"] += 1
            raise NoSlot(
                f"no slot of {self.settings.slots} within {self.settings.queue_timeout_s:g} s"
            ) from error
        finally:
            self._waiting -= 1

    def get(self, box_id: str) -> Box | None:
        """A sandbox that lives."""
        box = self.boxes.get(box_id)
        return None if box is None or box.gone else box

    def set_timeout(self, box: Box, timeout_s: float) -> None:
        """It ends this many seconds from now."""
        self._forget_timer(box)
        box.end_s = time.time() + timeout_s
        loop = asyncio.get_running_loop()
        self._timers[box.id] = loop.call_later(timeout_s, self.end_soon, box, "expired")

    def _forget_timer(self, box: Box) -> None:
        if timer := self._timers.pop(box.id, None):
            timer.cancel()

    def end_soon(self, box: Box, how: str) -> None:
        self.later(self.end(box, how))

    def later(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it to its end, whatever becomes of who asked; a sandbox that went first is fine."""

        async def run() -> None:
            with contextlib.suppress(BoxGone, BoxRefused):
                await work

        task = asyncio.create_task(run())
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def end(self, box: Box, how: str) -> None:
        """End a sandbox; returns when nothing of it is left."""
        self._forget_timer(box)
        if self.boxes.pop(box.id, None) is None:
            return
        self.counts[how] += 1
        if how == "crashed":
            print(f"sandbox {box.id} crashed: {box.last_words()}", file=sys.stderr, flush=True)
        await asyncio.shield(self.later(self._bury(box)))

    async def _bury(self, box: Box) -> None:
        try:
            await box.kill()
        finally:
            heapq.heappush(self._free, box.slot)
            self._slots.release()

    async def close(self) -> None:
        """End all."""
        self._closing = True
        await asyncio.gather(*(self.end(box, "killed") for box in list(self.boxes.values())))
        if self._work:
            await asyncio.wait(self._work)
