"""What may be up on the backend on our account, until it is certainly dead.

Invariants:

1. A start is never cancelled while its answer may come: the backend may be making the sandbox, and
   only the answer has its id. What comes of a start that nobody waits for is killed.
2. What could not be seen or killed stays in doubt, and is looked for by its labels at `close`.
3. Who waits here may be cancelled; the kill goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from e2b import AsyncSandbox

from ledger.recorder import BoundRecorder
from producers.sandbox_errors import NoAnswer, had_no_effect
from producers.sandboxes.backend import Backend
from producers.sandboxes.calls import give_up, outcome
from producers.sandboxes.owner import POOL, START

logger = logging.getLogger(__name__)

GIVEN_UP_S = 60.0
"""How long the answer to a start that was given up is waited for."""


class Custody:
    """The starts and kills of one `Sandboxes` object, whose id is `pool`."""

    def __init__(self, backend: Backend, pool: str) -> None:
        self._backend = backend
        self._pool = pool
        self._in_doubt: dict[str, BoundRecorder] = {}
        """By start: what is or may be up, and who records its end."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self, labels: dict[str, str], template: str, recorder: BoundRecorder, timeout_s: float
    ) -> AsyncSandbox:
        """A sandbox with these labels; whoever gets it ends it with `end`. Raises NoAnswer, and
        what the SDK raises."""
        start = labels[START]
        task = asyncio.ensure_future(self._backend.create(template, labels, start))
        self._in_doubt[start] = recorder
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            self.later(self._adopt(start, task))
            raise
        if not task.done():
            self.later(self._adopt(start, task))
            raise NoAnswer(f"no answer within {timeout_s:g} s")
        try:
            return outcome(task)
        except Exception as error:
            self.later(self._nothing_came(start, error))
            raise

    async def end(
        self, start: str, sandbox_id: str, reason: str, lifetime_s: float | None, told: bool
    ) -> None:
        """Kill a sandbox and record that, unless it was gone and that is `told` already."""
        recorder = self._in_doubt[start]
        killed = await self._backend.kill(sandbox_id)
        if killed is None:
            return
        if killed or not told:
            recorder.sandbox_stopped(sandbox_id=sandbox_id, reason=reason, lifetime_s=lifetime_s)
        self._in_doubt.pop(start, None)

    def later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do `work` even if nobody waits for it; `close` does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, timeout_s: float) -> None:
        """See all ended. Answers that aren't there after `timeout_s` are no longer waited for."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            give_up(task)
        if self._in_doubt:
            await self._find_and_end({POOL: self._pool})
        if self._in_doubt:
            logger.error("%d sandboxes may live until their lifetime ends", len(self._in_doubt))

    async def _adopt(self, start: str, task: asyncio.Future[AsyncSandbox]) -> None:
        """Kill what comes of a start that was given up."""
        try:
            await asyncio.wait({task}, timeout=GIVEN_UP_S)
        finally:
            if not task.done():
                give_up(task)
        if not task.done():
            await self._find_and_end({START: start})
            return
        try:
            sandbox_id = outcome(task).sandbox_id
        except Exception as error:
            await self._nothing_came(start, error)
        else:
            await self.end(start, sandbox_id, "cancelled", None, told=False)

    async def _nothing_came(self, start: str, error: Exception) -> None:
        """After a failed start: the sandbox may be there all the same, if its answer got lost."""
        if had_no_effect(error):
            self._in_doubt.pop(start, None)
        else:
            await self._find_and_end({START: start})

    async def _find_and_end(self, labels: Mapping[str, str]) -> None:
        """End what has these labels. A start that isn't found stays in doubt until the backend was
        asked at `close`: it may come up later."""
        try:
            found = await self._backend.list(labels)
        except Exception as error:
            logger.warning("sandboxes could not be listed: %r", error)
            return
        for info in found:
            if (start := info.metadata.get(START, "")) in self._in_doubt:
                await self.end(start, info.sandbox_id, "cancelled", None, told=False)
        if POOL in labels:
            up = {info.metadata.get(START) for info in found}
            for start in self._in_doubt.keys() - up:
                del self._in_doubt[start]
