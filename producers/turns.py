"""Turns: requests to the engine, each a fact, tried again where another try can help.

Invariant: every request that was sent is a `turn_completed` or a `turn_failed` fact, whatever
became of it, also when the attempt is cancelled in it.

A failed try keeps its turn's number: turn 3 may fail twice and then complete. An answer that the
engine cut off because its weights change (finish reason `abort`) is a turn of its own; the next
one goes on behind its tokens, under the new version.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ledger.facts.lists import EngineStage
from ledger.recorder import BoundRecorder
from producers.engine import Engine, EngineError, EngineGone, Generation, Sampling
from producers.engine_pool import EnginePool
from producers.history import History
from producers.policy_clock import ClockRanOut, PolicyClock
from producers.raw_type import raw_type

ABORT_TIMEOUT_S = 5.0
"""An aborted request answers in milliseconds; an engine that takes longer is left alone."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is tried, and how long between."""

    tries: int = 4
    """Tries of one turn, the first included."""
    first_wait_s: float = 0.2
    """Wait behind the first failure; it doubles, and is jittered by half."""
    patience_s: float = 60.0
    """While no engine lives, a try waits so much longer: one may be starting again."""


class Turns:
    """The turns of one attempt."""

    def __init__(
        self,
        pool: EnginePool,
        recorder: BoundRecorder,
        session: str,
        sampling: Sampling,
        history: History,
        clock: PolicyClock,
        retries: Retries,
    ) -> None:
        """`session` keeps the attempt on one engine, whose prefix cache holds its tokens."""
        self._pool = pool
        self._recorder = recorder
        self._session = session
        self._sampling = sampling
        self._history = history
        self._clock = clock
        self._retries = retries
        self.completed = 0
        """turn_completed facts so far: the next turn's number."""
        self.failed = 0
        """turn_failed facts so far."""

    async def next(self, max_new_tokens: int) -> Generation:
        """Up to `max_new_tokens` further tokens, which the history then has.

        Raises EngineError when no try succeeded, ClockRanOut at the cap of the policy's clock."""
        wait_s = self._retries.first_wait_s
        for tries_left in reversed(range(self._retries.tries)):
            try:
                return await self._try(max_new_tokens)
            except EngineError as error:
                if not error.retryable or not tries_left:
                    raise
            began = time.monotonic()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
            await self._pool.wait_for_one(self._retries.patience_s)
            self._clock.excuse(time.monotonic() - began)
            wait_s *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    async def _try(self, max_new_tokens: int) -> Generation:
        request_id = uuid.uuid4().hex
        began = time.monotonic()
        engine: Engine | None = None
        try:
            engine = self._pool.engine_for(self._session)
            generation, ran_out = await self._within_clock(
                engine,
                request_id,
                engine.generate(
                    self._history.ids,
                    max_new_tokens=max_new_tokens,
                    sampling=self._sampling,
                    request_id=request_id,
                ),
            )
        except (EngineError, ClockRanOut, asyncio.CancelledError) as error:
            seconds = time.monotonic() - began
            self._record_failure(engine, request_id, error, seconds)
            if isinstance(error, EngineError):
                self._clock.excuse(seconds)
            if isinstance(error, EngineGone) and engine is not None:
                self._pool.report_failure(engine)
            raise
        self._clock.excuse((generation.queue_s or 0.0) + (generation.paused_s or 0.0))
        self._record(generation)
        if ran_out:
            raise ClockRanOut
        return generation

    async def _within_clock(
        self, engine: Engine, request_id: str, request: Coroutine[Any, Any, Generation]
    ) -> tuple[Generation, bool]:
        """The engine's answer, and whether the clock ran out first. The request is aborted then and
        answers with what it has: its tokens are kept, and its seconds in the queue are known, so
        the judgement can tell whether the policy was slow or starved."""
        answer = asyncio.ensure_future(request)
        try:
            done, _ = await asyncio.wait({answer}, timeout=self._clock.left_s)
            if done:
                return answer.result(), False
            await engine.abort(request_id)
            done, _ = await asyncio.wait({answer}, timeout=ABORT_TIMEOUT_S)
            if not done:
                raise ClockRanOut(f"no answer within {self._clock.cap_s} s on the policy's clock")
            return answer.result(), True
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait({answer})

    def _record(self, generation: Generation) -> None:
        segment_reason = self._history.segment_reason
        tokens = self._history.sampled(generation.token_ids, generation.logprobs)
        self._recorder.turn_completed(
            turn_no=self.completed,
            segment=self._history.segment,
            segment_reason=segment_reason,
            engine=generation.engine,
            model=generation.model,
            request_id=generation.request_id,
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            completion_tokens=len(generation.token_ids),
            client_s=generation.client_s,
            engine_s=generation.engine_s,
            queue_s=generation.queue_s,
            first_token_s=generation.first_token_s,
            paused_s=generation.paused_s,
            finish_reason=generation.finish_reason,
            retractions=generation.retractions,
            version_spans=list(generation.version_spans),
            tokens=tokens,
        )
        self.completed += 1

    def _record_failure(
        self, engine: Engine | None, request_id: str, error: BaseException, seconds: float
    ) -> None:
        told = error if isinstance(error, EngineError) else None
        self._recorder.turn_failed(
            turn_no=self.completed,
            segment=self._history.segment,
            engine=engine.url if engine else None,
            request_id=request_id,
            stage=told.stage if told else EngineStage.UNKNOWN,
            error_type=raw_type(error),
            error=str(error),
            http_status=told.http_status if told else None,
            seconds=seconds,
            tokens_so_far=told.tokens_so_far if told else None,
        )
        self.failed += 1
