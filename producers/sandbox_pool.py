"""The sandboxes of one process: slots, starts with their tries, kills, and the sweep.

Invariants:

1. A sandbox that came up is killed, whatever happens in between: also when its start was cancelled
   or given up, and its answer came later or got lost. What can't be killed while the backend is
   away is tried again at `close`, then by a later process's `sweep`, and ends with its lifetime.
2. A slot is held from before the first try until the sandbox is dead, so that the backend never has
   more of ours than `slots`, but for starts that were given up.
3. Every try is a fact, `sandbox_started` or `sandbox_failed`; so is every kill, `sandbox_stopped`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from typing import Self

from ledger.facts import PoolUse
from ledger.facts.lists import Stage
from ledger.recorder import BoundRecorder, Recorder
from producers.sandbox import Sandbox
from producers.sandbox_errors import SandboxError, classify
from producers.sandboxes.backend import Backend
from producers.sandboxes.calls import Held, Limit
from producers.sandboxes.check import check
from producers.sandboxes.custody import Custody
from producers.sandboxes.owner import OURS, Owner, ids_of, metadata
from producers.sandboxes.settings import SandboxSettings

__all__ = ["SandboxSettings", "Sandboxes"]


class Sandboxes:
    """All sandboxes that one process has from one backend. For one event loop.

    async with Sandboxes(settings) as sandboxes:
        await sandboxes.check()
        async with sandboxes.open(recorder) as sandbox:
            result = await sandbox.run("pytest -q", timeout_s=60)

    Close it before its recorders: the last kills are facts too."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._id = str(uuid.uuid4())
        self._backend = Backend(settings)
        self._custody = Custody(self._backend, self._id)
        self._slots = Limit("sandbox_slots", settings.slots)
        self._connections = Limit("sandbox_connections", settings.http_connections)
        self._live: set[Sandbox] = set()
        self._closed = False

    async def check(self) -> None:
        """Raise SandboxRefused unless a sandbox could be had with these settings."""
        await check(self._settings)

    @contextlib.asynccontextmanager
    async def open(
        self, recorder: BoundRecorder, template: str | None = None, *, first_try: int = 0
    ) -> AsyncGenerator[Sandbox]:
        """A sandbox for as long as the block lasts. Waits for a slot, then tries up to
        `start_tries` starts, numbered from `first_try`: a trajectory's second sandbox goes on
        counting. `recorder` is bound to the trajectory.

        Raises the last try's SandboxError. One that leaves the block and is this sandbox's is
        recorded as its failure."""
        if self._closed:
            raise RuntimeError("these Sandboxes are closed")
        slot = await self._slots.take()
        try:
            sandbox = await self._start(
                recorder, template or self._settings.template, first_try, slot
            )
        except BaseException:
            slot.release()
            raise
        self._live.add(sandbox)
        reason = "cancelled"
        watch = asyncio.create_task(sandbox.watch())
        try:
            await sandbox.introduce(slot.waited_s)
            yield sandbox
            reason = "finished"
        except Exception as error:
            reason = "finished"  # the block ended by itself
            if isinstance(error, SandboxError) and error.sandbox_id == sandbox.id:
                await sandbox.failed(error)
            raise
        finally:
            watch.cancel()
            await sandbox.stop(reason)

    @contextlib.asynccontextmanager
    async def instead_of(
        self,
        sandbox: Sandbox,
        recorder: BoundRecorder,
        template: str | None = None,
        *,
        first_try: int = 0,
    ) -> AsyncGenerator[Sandbox]:
        """Like `open`, behind the end of `sandbox`, whose slot this frees. Who held one and waited
        for a second might wait for ever: with one slot, or for others who do the same."""
        await sandbox.kill()
        async with self.open(recorder, template, first_try=first_try) as another:
            yield another

    def pools(self) -> list[PoolUse]:
        """Use of the slots, and of the SDK's HTTP connections to the sandboxes."""
        return [self._slots.use, self._connections.use]

    async def sweep(self, recorder: Recorder | None = None) -> list[str]:
        """Kill what processes of this machine left behind when they died, recorded with
        `recorder`; the ids. Raises SandboxError when the backend doesn't list them."""
        try:
            found = await self._backend.list(OURS)
        except Exception as error:
            raise classify(error, Stage.SANDBOX_START) from error
        swept: list[str] = []
        for info in found:
            owner = Owner.of(info.metadata)
            if owner is None or not owner.is_dead or not await self._backend.kill(info.sandbox_id):
                continue
            swept.append(info.sandbox_id)
            if recorder is not None and (ids := ids_of(info.metadata)) is not None:
                recorder.sandbox_stopped(
                    **ids,
                    backend=self._settings.backend,
                    sandbox_id=info.sandbox_id,
                    reason="swept",
                    lifetime_s=(datetime.now(UTC) - info.started_at).total_seconds(),
                )
        return swept

    async def close(self, timeout_s: float = 30.0) -> None:
        """Kill what is left. Starts still unanswered after `timeout_s` are no longer waited for."""
        self._closed = True
        for sandbox in list(self._live):
            sandbox.begin_stop("cancelled")
        await self._custody.close(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _start(
        self, recorder: BoundRecorder, template: str, first_try: int, slot: Held
    ) -> Sandbox:
        """Try until one is up, which then holds the slot."""
        last_try = first_try + self._settings.start_tries - 1
        for try_no in range(first_try, last_try + 1):
            bound = recorder.bind(try_no=try_no, backend=self._settings.backend, template=template)
            start = str(uuid.uuid4())
            labels = metadata(bound.ids, pool=self._id, start=start)
            began = time.monotonic()
            try:
                sdk = await self._custody.start(
                    labels, template, bound, self._settings.start_timeout_s
                )
            except asyncio.CancelledError:
                seconds = time.monotonic() - began
                bound.sandbox_failed(
                    stage=Stage.SANDBOX_START, error_type="CancelledError", seconds=seconds
                )
                raise
            except Exception as error:
                failure = self._record_failed_start(error, bound, began)
                if not failure.transient or try_no == last_try:
                    raise failure from error
                await asyncio.sleep(self._backend.backoff_s(try_no - first_try))
                continue
            return Sandbox(
                sdk,
                self._settings,
                self._connections,
                bound.bind(sandbox_id=sdk.sandbox_id),
                try_no=try_no,
                requested_at=began,
                stop=partial(self._begin_stop, start, slot),
            )
        raise AssertionError("there is at least one try")

    def _record_failed_start(
        self, error: Exception, recorder: BoundRecorder, began: float
    ) -> SandboxError:
        failure = classify(error, Stage.SANDBOX_START)
        failure.seconds = seconds = time.monotonic() - began
        recorder.sandbox_failed(
            stage=failure.stage,
            error_type=failure.error_type,
            error=self._settings.without_key(failure.message),
            http_status=failure.http_status,
            seconds=seconds,
        )
        return failure

    def _begin_stop(
        self, start: str, slot: Held, sandbox: Sandbox, reason: str
    ) -> asyncio.Task[None]:
        return self._custody.later(self._end(start, slot, sandbox, reason))

    async def _end(self, start: str, slot: Held, sandbox: Sandbox, reason: str) -> None:
        try:
            up_s = time.monotonic() - sandbox.up_since
            await self._custody.end(start, sandbox.id, reason, up_s, sandbox.failure_recorded)
        finally:
            self._live.discard(sandbox)
            slot.release()
