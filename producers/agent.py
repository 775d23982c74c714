"""The agent loop: one attempt at one task, from sandbox to reward.

    sandbox ─▶ setup ─▶ action loop (producers/action_loop.py) ─▶ verify ─▶ killed

Invariants:

1. An attempt that started finishes: `trajectory_finished` is said in every case, also when it is
   cancelled, and declares how many turns, tool calls and rewards belong to it.
2. Status and reward are apart: an attempt that ran into a cap is verified all the same; a verifier
   that gave no verdict gives a null reward, never 0.
3. The sandbox is killed in every case (`Sandboxes.open` sees to it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial

from ledger.facts.lists import Stage, StopReason
from ledger.recorder import BoundRecorder
from producers.action_loop import ActionLoop, AgentSettings
from producers.engine import EngineError
from producers.engine_pool import EnginePool
from producers.occupancy import Occupancy, Whereabouts
from producers.raw_type import raw_type
from producers.sandbox import Sandbox, SandboxError
from producers.sandbox_pool import Sandboxes
from producers.tasks.task import Task, TaskError, Verdict

logger = logging.getLogger(__name__)

SETUP_TRIES = 3
"""Sandboxes that one attempt tries to set up."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    stop_reason: StopReason
    stage: Stage
    """Where the attempt was."""
    error: BaseException | None = None
    """What ended it, where that was an error."""
    reward: float | None = None
    """What the verifier said; None: nothing."""


class Agent:
    """Makes attempts. One object serves all attempts of a run, on one event loop."""

    def __init__(
        self,
        engines: EnginePool,
        sandboxes: Sandboxes,
        settings: AgentSettings,
        occupancy: Occupancy,
    ) -> None:
        self._engines = engines
        self._sandboxes = sandboxes
        self._settings = settings
        self._occupancy = occupancy

    async def attempt(self, task: Task, recorder: BoundRecorder, trajectory_id: str) -> Ending:
        """Try `task` once. `recorder` is bound to group, slot and trajectory.

        Never raises for what a policy, an engine, a sandbox or a task does: that is an Ending.
        Raises CancelledError, behind the attempt's last fact."""
        with self._occupancy.attempt() as whereabouts:
            loop = ActionLoop(
                task.scaffold, recorder, self._engines, self._settings, trajectory_id, whereabouts
            )
            return await _Attempt(task, recorder, self._sandboxes, loop, whereabouts).run()


class _Attempt:
    """One attempt around its action loop."""

    def __init__(
        self,
        task: Task,
        recorder: BoundRecorder,
        sandboxes: Sandboxes,
        loop: ActionLoop,
        whereabouts: Whereabouts,
    ) -> None:
        self._task = task
        self._recorder = recorder
        self._sandboxes = sandboxes
        self._loop = loop
        self._whereabouts = whereabouts
        self._reward_due = False
        self._next_try = 0

    async def run(self) -> Ending:
        try:
            ending = await self._in_sandbox()
        except asyncio.CancelledError:
            self._finish(self._ended(StopReason.CANCELLED))
            raise
        except (EngineError, SandboxError) as error:
            ending = self._ended(StopReason.ERROR, error)
        except Exception as error:
            # A task's or a scaffold's own slip: the run goes on, and the books name it.
            logger.exception("%s: an attempt failed in %s", self._task.task_id, self._stage)
            ending = self._ended(StopReason.ERROR, error)
        self._finish(ending)
        return ending

    @property
    def _stage(self) -> Stage:
        return self._whereabouts.stage

    def _ended(self, stop_reason: StopReason, error: BaseException | None = None) -> Ending:
        return Ending(stop_reason, self._stage, error)

    async def _in_sandbox(self) -> Ending:
        """Nothing was sampled before the sandbox was set up, so until then another may be tried."""
        tries = 0
        while True:
            self._whereabouts.move(Stage.SANDBOX_START)
            try:
                async with self._sandboxes.open(
                    self._recorder, self._task.template, first_try=self._next_try
                ) as sandbox:
                    self._next_try = sandbox.try_no + 1
                    await self._set_up(sandbox)
                    return await self._act(sandbox)
            except SandboxError:
                tries += 1
                if self._stage is not Stage.SETUP or tries == SETUP_TRIES:
                    raise

    async def _act(self, sandbox: Sandbox) -> Ending:
        sandbox.stage = Stage.TOOL
        try:
            stop_reason = await self._loop.run(sandbox)
        except SandboxError as error:
            if not (error.lost and error.in_command):
                raise
            await sandbox.failed(error)
            return await self._scored_all_the_same(sandbox, self._ended(StopReason.ERROR, error))
        stage = self._stage
        return Ending(stop_reason, stage, reward=await self._verify(sandbox))

    async def _scored_all_the_same(self, lost: Sandbox, ending: Ending) -> Ending:
        """A sandbox that was lost in a command: the policy may have broken it, and nothing of its
        work is left. The tests say what that is worth, in a fresh one: an attempt without a score
        would be a way out of a bad one. Whether it votes is for the judgement."""
        self._whereabouts.move(Stage.VERIFY)
        try:
            async with self._fresh(lost, self._task.template) as fresh:
                await self._task.setup(fresh)
                return replace(ending, reward=await self._verify(fresh))
        except (SandboxError, TaskError):
            return ending  # without a score; the loss is what ended the attempt

    async def _set_up(self, sandbox: Sandbox) -> None:
        self._whereabouts.move(Stage.SETUP)
        sandbox.stage = Stage.SETUP
        began = time.monotonic()
        await self._task.setup(sandbox)
        sandbox.prepared(time.monotonic() - began)

    async def _verify(self, sandbox: Sandbox) -> float | None:
        """Have the tests run, and record what they said."""
        self._whereabouts.move(Stage.VERIFY)
        sandbox.stage = Stage.VERIFY
        self._reward_due = True
        failure: BaseException | None = None
        verdict = Verdict(None)
        began = time.monotonic()
        try:
            verdict = await self._task.verify(sandbox, partial(self._fresh, sandbox))
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds = time.monotonic() - began
            self._record_reward(verdict, failure, seconds)
        return verdict.value

    @contextlib.asynccontextmanager
    async def _fresh(self, sandbox: Sandbox, template: str | None) -> AsyncGenerator[Sandbox]:
        """Another sandbox for the tests, instead of the policy's."""
        async with self._sandboxes.instead_of(
            sandbox, self._recorder, template, first_try=self._next_try
        ) as fresh:
            self._next_try = fresh.try_no + 1
            fresh.stage = Stage.VERIFY
            yield fresh

    def _record_reward(
        self, verdict: Verdict, failure: BaseException | None, seconds: float
    ) -> None:
        self._recorder.reward_assigned(
            value=verdict.value,
            components=verdict.components,
            verifier=self._task.verifier,
            verifier_version=self._task.verifier_version,
            task_checksum=self._task.checksum,
            tests_passed=verdict.tests_passed,
            tests_failed=verdict.tests_failed,
            verify_s=seconds if verdict.verify_s is None else verdict.verify_s,
            isolated=verdict.isolated,
            sandbox_id=verdict.sandbox_id,
            error_type=verdict.error_type if failure is None else raw_type(failure),
            error=verdict.error if failure is None else str(failure),
        )

    def _finish(self, ending: Ending) -> None:
        loop = self._loop
        self._recorder.trajectory_finished(
            stop_reason=ending.stop_reason,
            stage=ending.stage,
            turns_completed=loop.turns.completed,
            turns_failed=loop.turns.failed,
            tool_calls=loop.tool_calls,
            reward_due=self._reward_due,
            clock_cap_s=loop.clock.cap_s,
            policy_clock_s=loop.clock.elapsed_s,
            error_type=None if ending.error is None else raw_type(ending.error),
            error=None if ending.error is None else str(ending.error),
        )
