"""One sandbox: commands and files in it, and the evidence when it is lost.

Invariants:

1. Every call returns within its deadline, also when the backend hangs or its stream stalls.
2. A time limit is a result of the command. Behind it, and behind any failure of a command that left
   the sandbox usable, the command's processes are dead; if that can't be had, the sandbox is lost.
3. Every other failure is a SandboxError, whose raw class and text are the SDK's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from e2b import AsyncSandbox

from ledger.facts.lists import Stage
from ledger.recorder import BoundRecorder
from producers.sandbox_errors import SandboxError, classify, is_unclear
from producers.sandboxes.calls import Limit, within
from producers.sandboxes.command import (
    NOT_EXECUTABLE,
    CommandResult,
    new_marker,
    script,
    unrunnable,
)
from producers.sandboxes.evidence import Evidence
from producers.sandboxes.run import Aftermath, Run
from producers.sandboxes.settings import SandboxSettings

__all__ = ["CommandResult", "Sandbox", "SandboxError"]

ASK_TIMEOUT_S = 5.0


class Sandbox:
    """A running sandbox. Made by `Sandboxes.open`; used by one trajectory, on one event loop."""

    def __init__(
        self,
        sdk: AsyncSandbox,
        settings: SandboxSettings,
        connections: Limit,
        recorder: BoundRecorder,
        *,
        try_no: int,
        requested_at: float,
        stop: Callable[[Sandbox, str], asyncio.Future[None]],
    ) -> None:
        """`recorder` fills in everything that names this try; `requested_at` is when the start was
        asked for (`time.monotonic`); `stop` begins to kill a sandbox, for a reason."""
        self.id: str = sdk.sandbox_id
        self.try_no = try_no
        self.stage = Stage.TOOL
        """Where the trajectory is, for the errors raised from here. Whoever moves it on sets it."""
        self.up_since = time.monotonic()
        self._sdk = sdk
        self._settings = settings
        self._connections = connections
        self._recorder = recorder
        self._requested_at = requested_at
        self._stop = stop
        self._stopping: asyncio.Future[None] | None = None
        self._calls = 0
        self._evidence = Evidence(sdk, settings)
        self.failure_recorded = False
        """Whether `sandbox_failed` has been recorded for it."""

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        envs: dict[str, str] | None = None,
    ) -> CommandResult:
        """Run `command` in bash. It gets `timeout_s` seconds from its start; waiting for a
        connection and opening the stream are apart from them. It ends when everything that holds
        its outputs has ended.

        A non-zero exit, a time limit and a command that no shell can run are results. Raises
        SandboxError for the rest, and ValueError for a time limit that isn't positive."""
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0, got {timeout_s} (Sandbox.run)")
        marker = new_marker()
        text = script(command, cwd, marker)
        if (refusal := unrunnable(text)) is not None:
            size = len(refusal)
            return CommandResult(NOT_EXECUTABLE, "", refusal, 0.0, None, False, stderr_size=size)
        self._calls += 1
        run = Run(self._sdk, self._settings, f"{self.id}.{self._calls}")
        async with self._request(run.aftermath):
            return await run.run(text, marker, timeout_s, envs)

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file, with the folders above it. Raises SandboxError."""
        async with self._request(self._aftermath):
            await within(self._settings.request_timeout_s, self._sdk.files.write(path, data))

    async def read(self, path: str) -> bytes:
        """What a file holds. Raises SandboxError."""
        async with self._request(self._aftermath):
            read = self._sdk.files.read(path, format="bytes")
            return bytes(await within(self._settings.request_timeout_s, read))

    async def kill(self) -> None:
        """Kill it now, and free its slot. Also the second time, and after it was lost."""
        await self.stop("finished")

    async def stop(self, reason: str) -> None:
        """Kill it for this reason. It is killed also when whoever waits for that is cancelled."""
        await asyncio.shield(self.begin_stop(reason))

    def begin_stop(self, reason: str) -> asyncio.Future[None]:
        """Begin to kill it, if that hasn't begun. The first reason is the one that is recorded."""
        if self._stopping is None:
            self._stopping = self._stop(self, reason)
        return self._stopping

    def prepared(self, setup_s: float) -> None:
        """Record that the task is installed in it, which took `setup_s` seconds."""
        self._recorder.sandbox_prepared(setup_s=setup_s)

    async def failed(self, error: BaseException, stage: Stage | None = None) -> None:
        """Record that this sandbox couldn't be used further, once, with the evidence there is.

        `stage` is where the trajectory was; None: what the error says. A SandboxError of another
        sandbox is not ours to tell."""
        ours = error if isinstance(error, SandboxError) else None
        if self.failure_recorded or (ours and ours.sandbox_id not in (None, self.id)):
            return
        self.failure_recorded = True
        try:
            await self._evidence.collect()
        finally:  # cancelled or not, the failure is told
            self._recorder.sandbox_failed(
                stage=stage or (ours.stage if ours else self.stage),
                error_type=ours.error_type if ours else type(error).__name__,
                error=self._settings.without_key(ours.message if ours else str(error)),
                http_status=ours.http_status if ours else None,
                seconds=time.monotonic() - self._requested_at,
                in_command=ours.in_command if ours else False,
                **self._evidence.fields(),
            )

    async def watch(self) -> None:
        """Keep its metrics up to date until cancelled, if the settings ask for that."""
        if self._settings.metrics_every_s is not None:
            await self._evidence.keep_metrics(self._settings.metrics_every_s)

    async def introduce(self, queue_s: float) -> None:
        """Record that it is up, after `queue_s` seconds of waiting for a slot, with the backend's
        account of it."""
        vcpus: float | None = None
        try:
            vcpus = await self._evidence.describe()
        finally:  # it is up also if nobody wants it any more
            self._recorder.sandbox_started(
                vcpus=vcpus, queue_s=queue_s, start_s=self.up_since - self._requested_at
            )

    async def answers(self) -> bool:
        """Whether it answers right now."""
        with contextlib.suppress(Exception):
            return await within(ASK_TIMEOUT_S, self._sdk.is_running())
        return False

    @property
    def sdk(self) -> AsyncSandbox:
        """The SDK's own object, for what has no method here; its deadlines are not ours."""
        return self._sdk

    @contextlib.asynccontextmanager
    async def _request(
        self, aftermath: Callable[[Exception], Awaitable[Aftermath]]
    ) -> AsyncGenerator[None]:
        """A connection, with what goes wrong on it or while waiting for it as a SandboxError."""
        stage = self.stage
        began = time.monotonic()
        try:
            async with self._connections.one(self._settings.request_timeout_s):
                began = time.monotonic()
                yield
        except Exception as error:
            seconds = time.monotonic() - began
            left = await aftermath(error)
            failure = classify(error, stage, left.answers)
            failure.in_command = left.in_command
            failure.sandbox_id = self.id
            failure.seconds = seconds
            raise failure from error

    async def _aftermath(self, error: Exception) -> Aftermath:
        """Of a transfer: no command ran."""
        return Aftermath(await self.answers() if is_unclear(error) else None, in_command=False)
