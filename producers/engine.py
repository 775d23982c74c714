"""The client of one SGLang engine: token in, token out, over its own HTTP API.

    engine = Engine("http://127.0.0.1:30000")
    info = await engine.check()
    generation = await engine.generate([3, 1, 4], max_new_tokens=16, sampling=Sampling(),
                                       request_id="a-17")
    await engine.close()

Invariants:

1. A prompt reaches the engine as the token ids it is, and what comes back is what was sampled, with
   the logprob of each token: nothing is rendered to text in between.
2. No request is left running for nobody: one that ran out of time or whose caller was cancelled is
   ended on the engine, too (by the engine itself, seconds later, where it was paused meanwhile).
3. A prompt that would end the engine (a token outside of its vocabulary) is not sent, once `check`
   has learned the vocabulary.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from producers import engine_failures as failures
from producers import engine_state as state
from producers import engine_wire as wire
from producers.engine_calls import UNREACHABLE, Answer, Calls
from producers.engine_json import Json, WrongAnswer, error_text
from producers.engine_types import (
    ContextTooLong,
    EngineError,
    EngineGone,
    EngineInfo,
    EngineLoad,
    EngineRefused,
    Generation,
    Health,
    Sampling,
)

__all__ = [
    "ContextTooLong",
    "Engine",
    "EngineError",
    "EngineGone",
    "EngineInfo",
    "EngineLoad",
    "EngineRefused",
    "Generation",
    "Health",
    "Sampling",
]

PROBE_S = 10.0
"""Most seconds for a question that an engine answers at once."""
ENDED_S = 3.0
"""Most seconds that a request that ran out of time is waited for when it was ended: an engine that
is well answers within one step."""


class Engine:
    """One engine. Serves any number of callers on one event loop."""

    def __init__(self, url: str, *, timeout_s: float = 600.0, max_connections: int = 512) -> None:
        """`timeout_s`: most seconds of one request, its wait here included; a pause of the engine
        counts. `max_connections`: most requests in flight from here; others wait."""
        self.url = url.rstrip("/")
        self.info: EngineInfo | None = None
        """What `check` found."""
        self.policy_version: int | None = None
        """The version that it was last seen to sample from; None: not seen yet, or it has none."""
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(max_connections)
        self._max_connections = max_connections
        self._calls = Calls(self.url)
        self._endings: set[asyncio.Task[Health]] = set()

    async def check(self) -> EngineInfo:
        """What this engine is. Raises EngineRefused for one that can't be used: it doesn't answer,
        is no SGLang server, or one of another version or with settings that change what is sampled.
        """
        if not self.url.startswith(("http://", "https://")):
            raise EngineRefused(f"an engine must be an http or https URL, got {self.url!r}")
        try:
            server, model, models = [
                await self._calls.get_json(path, PROBE_S)
                for path in ("/server_info", "/model_info", "/v1/models")
            ]
            vocabulary = None
            if await self.health() is Health.READY:  # a paused one answers when it goes on
                refusal = await self._calls.post("/generate", state.vocabulary_body(), PROBE_S)
                vocabulary = state.vocabulary_size(error_text(refusal.body))
            self.info = state.read_info(self.url, server, model, models, vocabulary)
        except WrongAnswer as error:
            raise EngineRefused(f"{self.url} can't be used: {error}") from error
        except UNREACHABLE as error:
            raise EngineRefused(
                f"{self.url} must be a running SGLang server: {failures.told(error)}"
            ) from error
        self.policy_version = self.info.policy_version
        return self.info

    async def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: Sampling,
        request_id: str,
    ) -> Generation:
        """Sample up to `max_new_tokens` behind `input_ids`, a (prompt,) list of token ids.

        `request_id` must be unique among the requests in flight. Raises ContextTooLong, EngineGone,
        or EngineError."""
        began = time.monotonic()
        if wrong := failures.wrong_prompt(self.url, input_ids, self.info and self.info.vocab_size):
            raise wrong
        rid = wire.rid_of(request_id)
        body = wire.generate_body(input_ids, max_new_tokens, sampling, rid)
        await self._take_slot(began)
        try:
            answer = await self._answer(rid, body, began)
        finally:
            self._slots.release()
        return self._read(answer, len(input_ids), rid, began)

    async def abort(self, request_id: str) -> None:
        """End a request; its `generate` returns what was sampled, with finish reason abort.

        A paused engine isn't told: it ends what it holds once it finds its client gone. Never
        raises for an engine that doesn't answer."""
        await self._end(wire.rid_of(request_id))

    async def loads(self) -> EngineLoad:
        """Its load now. Raises EngineError when it gives none."""
        began = time.monotonic()
        try:
            loads = await self._calls.get_json("/v1/loads", PROBE_S)
            model = await self._calls.get_json("/model_info", PROBE_S)
            load = state.read_load(loads, model)
        except UNREACHABLE as error:
            raise failures.gone(self.url, error, time.monotonic() - began) from error
        except WrongAnswer as error:
            raise failures.wrong_answer(self.url, error, time.monotonic() - began) from error
        self.policy_version = load.policy_version
        return load

    async def health(self) -> Health:
        """Whether it takes requests. A 503 alone is no death: a paused engine says that, too."""
        try:
            if (await self._calls.get("/ready", PROBE_S)).status == 200:
                return Health.READY
            there = await self._calls.get("/model_info", PROBE_S)
        except UNREACHABLE:
            return Health.DEAD
        return Health.PAUSED if there.status == 200 else Health.DEAD

    async def close(self) -> None:
        """Send the aborts that are under way, and close the connections."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=PROBE_S)
        await self._calls.close()

    async def _take_slot(self, began: float) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise failures.no_slot(
                self.url, self._max_connections, self._timeout_s, time.monotonic() - began
            ) from None

    async def _answer(self, rid: str, body: Json, began: float) -> Answer:
        """The answer to a request; one that ends without is ended on the engine, too."""
        request = asyncio.create_task(self._calls.post("/generate", body, None))
        try:
            left_s = max(began + self._timeout_s - time.monotonic(), 0.0)
            done, _ = await asyncio.wait({request}, timeout=left_s)
            if not done:
                raise await self._timed_out(rid, request, body, began)
            return request.result()
        except asyncio.CancelledError:
            ending = asyncio.create_task(self._end(rid))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            raise
        except UNREACHABLE as error:
            raise failures.gone(self.url, error, time.monotonic() - began) from error
        finally:
            request.cancel()

    async def _timed_out(
        self, rid: str, request: asyncio.Task[Answer], body: Json, began: float
    ) -> EngineError:
        """Ends the request; what the engine had sampled by then tells how far it had come."""
        seconds = time.monotonic() - began
        told, partial = Health.DEAD, None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDED_S):
                told = await self._end(rid)
                if told is Health.READY:
                    await asyncio.wait({request})
        with contextlib.suppress(asyncio.InvalidStateError, EngineError, *UNREACHABLE):
            partial = self._read(request.result(), len(body["input_ids"]), rid, began)
        return failures.timed_out(
            self.url, self._timeout_s, seconds, partial, paused=told is Health.PAUSED
        )

    async def _end(self, rid: str) -> Health:
        """Abort a request unless the engine is paused, and say how it was found.

        A paused engine holds new requests in front of its scheduler. It would take an abort for one
        as done, run the request all the same when it goes on, and then ignore that the client
        is gone, because it was aborted before. Left alone it looks for the client 4 s after it went
        on without an answer, so such a request costs it no more than that.
        """
        health = await self.health()
        if health is Health.READY:
            with contextlib.suppress(*UNREACHABLE):
                await self._calls.post("/abort_request", {"rid": rid}, PROBE_S)
        return health

    def _read(self, answer: Answer, sent: int, rid: str, began: float) -> Generation:
        seconds = time.monotonic() - began
        if answer.status != 200:
            raise failures.refused(self.url, answer, seconds)
        try:
            generation = wire.read_generation(
                answer.body,
                sent=sent,
                engine=self.url,
                model=self.info.model if self.info else None,
                request_id=rid.removesuffix(wire.RID_END),
                client_s=seconds,
            )
        except WrongAnswer as error:
            raise failures.wrong_answer(self.url, error, seconds) from error
        if generation.version_spans:
            self.policy_version = generation.version_spans[-1].policy_version
        return generation
