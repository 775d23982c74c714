"""What the policy does in its sandbox, turn by turn, until it is done or runs into a cap.

    ┌─▶ turn: engine.generate ─▶ scaffold.read ─▶ sandbox.run ─▶ scaffold.observe ─┐
    └───────────────────────────────────────────────────────────────────────────────┘

Invariant: each cap ends the loop with a stop reason of its own, and every command that was started
is a `tool_call_completed` fact, whatever became of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from ledger.facts.lists import EngineStage, Stage, StopReason
from ledger.recorder import BoundRecorder
from producers.engine import ContextTooLong, EngineError, Sampling
from producers.engine_pool import EnginePool
from producers.history import History
from producers.occupancy import Whereabouts
from producers.policy_clock import ClockRanOut, PolicyClock
from producers.raw_type import raw_type
from producers.sandbox import CommandResult, Sandbox, SandboxError
from producers.tasks.task import Action, Caps, Nothing, Observation, Scaffold, Submit, ToolCall
from producers.turns import Retries, Turns

MAX_ABORTS = 100
"""How often an engine may cut one turn off to change its weights, before that ends it."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What all attempts of a run share."""

    caps: Caps
    sampling: Sampling
    action_tokens: int | None = None
    """An action is exactly this many tokens; None: it ends with a stop token."""
    retries: Retries = field(default_factory=Retries)


class ActionLoop:
    """The loop of one attempt."""

    def __init__(
        self,
        scaffold: Callable[[], Scaffold],
        recorder: BoundRecorder,
        engines: EnginePool,
        settings: AgentSettings,
        session: str,
        whereabouts: Whereabouts,
    ) -> None:
        """`scaffold` makes that of the attempt, once the loop runs: a slip of it ends the attempt
        like any other of the task. `session` keeps the attempt on one engine."""
        self._make_scaffold = scaffold
        self._recorder = recorder
        self._caps = settings.caps
        self._action_tokens = settings.action_tokens
        self._whereabouts = whereabouts
        self._history = History(())
        self.clock = PolicyClock(settings.caps.clock_s)
        self.turns = Turns(
            engines,
            recorder,
            session,
            settings.sampling,
            self._history,
            self.clock,
            settings.retries,
        )
        self.tool_calls = 0
        """tool_call_completed facts so far."""

    async def run(self, sandbox: Sandbox) -> StopReason:
        """Act until there is a reason to stop. Raises EngineError, SandboxError, and what the
        scaffold raises."""
        scaffold = self._make_scaffold()
        self._history.observe(scaffold.prompt())
        self.clock.start()
        try:
            for _ in range(self._caps.turns):
                if (stop := self._reached_cap() or await self._turn(sandbox, scaffold)) is not None:
                    return stop
            return StopReason.TURN_CAP
        except ClockRanOut:
            return StopReason.CLOCK_CAP
        except ContextTooLong:
            return StopReason.CONTEXT_CAP
        finally:
            self.clock.stop()

    def _reached_cap(self) -> StopReason | None:
        if self.clock.left_s == 0:
            return StopReason.CLOCK_CAP
        if len(self._history.ids) >= self._caps.context_tokens:
            return StopReason.CONTEXT_CAP
        return None

    async def _turn(self, sandbox: Sandbox, scaffold: Scaffold) -> StopReason | None:
        """One action and its result; why the loop ends here, or None."""
        self._whereabouts.move(Stage.MODEL)
        completion, cut_off = await self._completion()
        if cut_off is not None:
            return cut_off
        self._whereabouts.move(Stage.TOOL)
        action = scaffold.read(completion)
        result = await self._do(sandbox, action)
        if isinstance(action, Submit):
            return StopReason.SUBMITTED
        observation = scaffold.observe(action, result)
        if observation.done:
            return StopReason.SUBMITTED
        self._observe(observation)
        return None

    async def _completion(self) -> tuple[list[int], StopReason | None]:
        """What the policy wrote, and which cap cut it off. An engine that cut it off to change its
        weights is asked to go on behind the tokens there are."""
        completion: list[int] = []
        for _ in range(MAX_ABORTS):
            output_room = self._caps.output_tokens - len(completion)
            context_room = self._caps.context_tokens - len(self._history.ids)
            if not (room := min(output_room, context_room)):
                break
            generation = await self.turns.next(room)
            completion += generation.token_ids
            if generation.finish_reason == "stop":
                return completion, None
            if generation.finish_reason == "length":
                break
        else:
            raise EngineError(
                f"an engine must answer a turn within {MAX_ABORTS} requests, and cut each off",
                stage=EngineStage.DECODE,
                error_type="TooManyAborts",
                seconds=0.0,
            )
        if len(completion) == self._action_tokens:
            return completion, None
        full = len(self._history.ids) >= self._caps.context_tokens
        return completion, StopReason.CONTEXT_CAP if full else StopReason.OUTPUT_CAP

    async def _do(self, sandbox: Sandbox, action: Action) -> CommandResult | None:
        match action:
            case ToolCall():
                return await self._call(sandbox, action)
            case Submit() | Nothing():
                return None
            case _:
                assert_never(action)

    async def _call(self, sandbox: Sandbox, call: ToolCall) -> CommandResult:
        """Run the command and record it, whatever becomes of it."""
        left_s = self.clock.left_s
        timeout_s = call.timeout_s if left_s is None else min(call.timeout_s, left_s)
        if timeout_s <= 0:
            raise ClockRanOut
        began = time.monotonic()
        try:
            result = await sandbox.run(call.command, timeout_s=timeout_s)
        except (SandboxError, asyncio.CancelledError) as error:
            # Without the wait for a connection, where that is known.
            seconds = error.seconds if isinstance(error, SandboxError) else None
            self._record_call(sandbox, call, error, seconds or time.monotonic() - began)
            raise
        self._record_call(sandbox, call, result, result.wall_s)
        return result

    def _record_call(
        self,
        sandbox: Sandbox,
        call: ToolCall,
        ended: CommandResult | BaseException,
        wall_s: float,
    ) -> None:
        result = ended if isinstance(ended, CommandResult) else None
        failure = ended if isinstance(ended, BaseException) else None
        self._recorder.tool_call_completed(
            turn_no=self.turns.completed - 1,
            tool_call_no=self.tool_calls,
            sandbox_id=sandbox.id,
            name=call.name,
            arguments=call.arguments,
            wall_s=wall_s,
            sandbox_s=result.sandbox_s if result else None,
            exit_code=result.exit_code if result else None,
            timed_out=result.timed_out if result else None,
            output=result.stdout + result.stderr if result else None,
            error_type=None if failure is None else raw_type(failure),
            error=None if failure is None else str(failure),
        )
        self.tool_calls += 1

    def _observe(self, observation: Observation) -> None:
        if observation.new_segment is None:
            self._history.observe(observation.token_ids)
        else:
            reason = observation.segment_reason or "the scaffold wrote the history anew"
            self._history.restart(observation.new_segment, reason)
