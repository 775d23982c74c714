"""One command in a sandbox, from its request until none of its processes is left.

Invariant: behind `run`, whether it returned a result or `aftermath` was asked about what it raised,
every process of the command has ended or been killed, or the sandbox counts as lost. (Apart from
what ran on in the background after the command had ended well, and from what hides from its user:
a process of root, an orphan with another environment.)
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from e2b import AsyncSandbox, CommandExitException, TimeoutException
from e2b.sandbox_async.commands.command_handle import AsyncCommandHandle

from producers.sandbox_errors import Lost, NoAnswer, had_no_effect, treatment
from producers.sandboxes.calls import within
from producers.sandboxes.command import CALL, CommandResult, Output, killer
from producers.sandboxes.settings import SandboxSettings

BACKSTOP_S = 30.0
"""The backend's own time limit comes so much later than ours: it is there for commands whose client
has died."""
KILL_TRIES = 2
KILL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a failed call left behind."""

    answers: bool | None
    """Whether the sandbox can still be used; None: it wasn't asked."""
    in_command: bool | None
    """Whether a command ran when it failed; None: can't be told."""


class Run:
    """One command. Used once."""

    def __init__(self, sdk: AsyncSandbox, settings: SandboxSettings, call: str) -> None:
        """`call` names it, unique over all sandboxes."""
        self._sdk = sdk
        self._settings = settings
        self._call = call
        self._opened = False
        self._unkillable = False

    async def run(
        self, script: str, marker: str, timeout_s: float, envs: dict[str, str] | None
    ) -> CommandResult:
        """Run a `script`, made with `marker`. Raises what the SDK raises, and NoAnswer; ask
        `aftermath` what that means."""
        stdout = Output(self._settings.output_limit)
        stderr = Output(self._settings.output_limit)
        began = time.monotonic()
        handle = await within(
            self._settings.request_timeout_s,
            self._sdk.commands.run(
                script,
                background=True,
                cwd="/",
                envs={**(envs or {}), CALL: self._call},
                on_stdout=stdout.add,
                on_stderr=stderr.add,
                timeout=timeout_s + BACKSTOP_S,
                request_timeout=0,
                retain_output=False,
            ),
        )
        self._opened = True
        exit_code = await self._exit_code(handle, timeout_s)
        wall_s = time.monotonic() - began
        if exit_code is None:
            await self._put_down()
        printed, stdout_size, sandbox_s = stdout.text(marker)
        complained, stderr_size, _ = stderr.text(marker)
        if sandbox_s is not None and sandbox_s > wall_s + 1.0:
            sandbox_s = None  # its clock was set meanwhile
        return CommandResult(
            exit_code,
            printed,
            complained,
            wall_s,
            sandbox_s,
            exit_code is None,
            stdout_size,
            stderr_size,
        )

    async def aftermath(self, error: Exception) -> Aftermath:
        """What `error`, which `run` raised, left behind. The command's processes are killed where
        the sandbox can be reached."""
        known = treatment(error).lost
        in_command = True if self._opened else (False if had_no_effect(error) else None)
        if self._unkillable or known is Lost.YES:
            return Aftermath(answers=False, in_command=in_command)
        if in_command is False:
            return Aftermath(answers=None, in_command=False)
        with contextlib.suppress(Exception):
            await self._put_down()
        return Aftermath(answers=not self._unkillable, in_command=in_command)

    async def _exit_code(self, handle: AsyncCommandHandle[None], timeout_s: float) -> int | None:
        """None: the time limit came first."""
        opened = time.monotonic()
        try:
            await within(timeout_s, handle.wait())
        except CommandExitException as ended:
            return ended.exit_code
        except NoAnswer:
            return None
        except TimeoutException as error:
            # The backend's own limit, when this process was held up until then. The same class
            # says earlier that the stream was cut, and its subclasses that the sandbox is gone.
            if type(error) is TimeoutException and time.monotonic() - opened >= timeout_s:
                return None
            raise
        return 0

    async def _put_down(self) -> None:
        """Kill every process of the command. Raises what the last try raised."""
        for left in reversed(range(KILL_TRIES)):
            try:
                kill = self._sdk.commands.run(
                    killer(self._call), cwd="/", timeout=KILL_TIMEOUT_S, request_timeout=0
                )
                await within(min(KILL_TIMEOUT_S, self._settings.request_timeout_s), kill)
                return
            except Exception:
                if not left:
                    self._unkillable = True
                    raise
