"""The engine's client against the real SGLang server with a tiny model."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledger.facts import VersionSpan
from producers.engine import (
    ContextTooLong,
    Engine,
    EngineError,
    EngineGone,
    EngineRefused,
    Generation,
    Health,
    Sampling,
)
from producers.engine_pool import EnginePool
from tests.engine_lab import CONTEXT, KV_TOKENS, START_S, VOCABULARY, EngineLab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
PROMPT = [3, 1, 4, 1, 5]
LONG = 400
"""Tokens of a generation that takes seconds."""


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(url, **options)
    try:
        yield engine
    finally:
        await engine.close()


async def sample(
    engine: Engine, prompt: list[int] = PROMPT, tokens: int = 8, name: str = "a", **sampling: Any
) -> Generation:
    return await engine.generate(
        prompt, max_new_tokens=tokens, sampling=Sampling(**sampling), request_id=name
    )


async def until(true: Callable[[], bool]) -> None:
    """Wait until `true()`, which is asked in a thread."""
    deadline = time.monotonic() + 20
    while not await asyncio.to_thread(true):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def until_running(lab: EngineLab, requests: int = 1) -> None:
    await until(lambda: lab.running() >= requests)


@contextmanager
def restored(lab: EngineLab) -> Iterator[EngineLab]:
    """A lab that the block may pause and give other weights."""
    try:
        yield lab
    finally:
        lab.restore()


async def paused_in_it(lab: EngineLab, mode: str, version: int) -> Generation:
    """A long generation that is paused in its middle while the engine takes other weights."""
    async with client(lab.url) as engine:
        asked = asyncio.create_task(sample(engine, tokens=LONG))
        await until_running(lab)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(lab.ask, "/pause_generation", {"mode": mode})
        await asyncio.to_thread(lab.update, 1, version, flush_cache=mode != "in_place")
        await asyncio.to_thread(lab.ask, "/continue_generation", {})
        return await asked


def test_what_the_engine_is_is_found_out(engine_lab: EngineLab) -> None:
    async def check() -> None:
        async with client(engine_lab.url + "/") as engine:
            info = await engine.check()
            assert engine.info == info
            assert info.url == engine.url == engine_lab.url
            assert (info.version, info.model, info.policy_version) == ("0.5.23", "tiny", 0)
            assert (info.context_length, info.vocab_size) == (CONTEXT, VOCABULARY)
            assert (info.kv_capacity_tokens, info.max_running_requests) == (KV_TOKENS, 32)
            assert await engine.health() is Health.READY

    asyncio.run(check())


def test_logprobs_are_the_engines_own_for_the_same_tokens(engine_lab: EngineLab) -> None:
    async def twelve() -> list[Generation]:
        async with client(engine_lab.url) as engine:
            return await asyncio.gather(
                *[sample(engine, [3, 1, i], 24, f"a-{i}") for i in range(12)]
            )

    for i, generation in enumerate(asyncio.run(twelve())):
        assert (len(generation.token_ids), generation.finish_reason) == (24, "length")
        scored = engine_lab.score([3, 1, i, *generation.token_ids])[2:]
        assert generation.logprobs == pytest.approx(scored, abs=1e-4)
        assert generation.version_spans == (VersionSpan(0, 0, 24),)


def test_logprobs_are_those_that_transformers_computes(engine_lab: EngineLab) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    async def one() -> Generation:
        async with client(engine_lab.url) as engine:
            return await sample(engine, tokens=24, temperature=0.7)

    generation = asyncio.run(one())
    model = AutoModelForCausalLM.from_pretrained(engine_lab.weights[0])
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + list(generation.token_ids)])).logits[0]
    ours = torch.log_softmax(logits / 0.7, -1)[len(PROMPT) - 1 : -1]
    at = torch.tensor(generation.token_ids)[:, None]
    assert generation.logprobs == pytest.approx(ours.gather(1, at)[:, 0].tolist(), abs=1e-4)


def test_a_turn_extends_the_tokens_before_it_and_finds_them_cached(engine_lab: EngineLab) -> None:
    async def two_turns() -> None:
        async with client(engine_lab.url) as engine:
            first = await sample(engine, [7, *PROMPT], 16, "first")
            prompt = [7, *PROMPT, *first.token_ids, 9]
            second = await sample(engine, prompt, 4, "second")
        assert second.prompt_tokens == len(prompt) == 23
        assert second.cached_tokens is not None
        assert second.cached_tokens >= len(prompt) - 3
        assert second.request_id == "second"
        assert second.engine_s is not None
        assert second.first_token_s is not None
        assert 0 < second.first_token_s <= second.engine_s < second.client_s
        assert second.queue_s is not None
        assert second.paused_s is not None
        assert second.paused_s < 1
        assert second.retractions == 0

    asyncio.run(two_turns())


def test_a_stop_token_ends_a_generation_and_is_part_of_it(engine_lab: EngineLab) -> None:
    async def one() -> Generation:
        async with client(engine_lab.url) as engine:
            return await sample(engine, tokens=200, stop_token_ids=tuple(range(16)))

    generation = asyncio.run(one())
    assert generation.finish_reason == "stop"
    assert generation.token_ids[-1] < 16
    assert all(token >= 16 for token in generation.token_ids[:-1])


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [([3] * (CONTEXT + 1), 1), ([3], CONTEXT + 1), ([3] * (CONTEXT - 2), 1)],
)
def test_too_long_is_an_error_of_its_own(
    engine_lab: EngineLab, prompt: list[int], tokens: int
) -> None:
    async def ask() -> None:
        async with client(engine_lab.url) as engine:
            with pytest.raises(ContextTooLong, match="length") as raised:
                await sample(engine, prompt, tokens)
        assert (raised.value.http_status, raised.value.retryable) == (400, False)

    asyncio.run(ask())


def test_a_token_that_would_end_the_engine_is_not_sent(engine_lab: EngineLab) -> None:
    async def ask() -> None:
        async with client(engine_lab.url) as engine:
            await engine.check()
            with pytest.raises(EngineError, match=r"below the vocabulary of 32, got 32") as raised:
                await sample(engine, [3, VOCABULARY])
            assert raised.value.error_type == "TokenOutOfVocabulary"
            assert len((await sample(engine)).token_ids) == 8

    asyncio.run(ask())


def test_an_aborted_request_gives_what_it_had_and_no_other_is_touched(
    engine_lab: EngineLab,
) -> None:
    async def abort() -> None:
        async with client(engine_lab.url) as engine:
            aborted = asyncio.create_task(sample(engine, tokens=LONG, name="a-1"))
            other = asyncio.create_task(sample(engine, tokens=LONG, name="a-10"))
            await until_running(engine_lab, 2)
            await asyncio.sleep(0.1)
            await engine.abort("a-1")
            partial = await aborted
            assert partial.finish_reason == "abort"
            assert 0 < len(partial.token_ids) == len(partial.logprobs) < LONG
            assert len((await other).token_ids) == LONG

    asyncio.run(abort())


def test_a_request_out_of_time_is_ended_on_the_engine(engine_lab: EngineLab) -> None:
    async def ask() -> None:
        async with client(engine_lab.url, timeout_s=0.4) as engine:
            with pytest.raises(EngineError, match=r"longer than 0\.4 s \(timeout_s\)") as raised:
                await sample(engine, tokens=LONG)
        error = raised.value
        assert (error.error_type, error.retryable) == ("Timeout", True)
        assert error.stage == "decode"
        assert error.tokens_so_far is not None
        assert 0 < error.tokens_so_far < LONG

    asyncio.run(ask())
    assert engine_lab.wait_idle(1.0)


def test_a_cancelled_callers_request_is_ended_on_the_engine(engine_lab: EngineLab) -> None:
    async def cancel() -> None:
        async with client(engine_lab.url) as engine:
            asked = asyncio.create_task(sample(engine, tokens=LONG))
            await until_running(engine_lab)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    asyncio.run(cancel())
    assert engine_lab.wait_idle(1.0)


def test_more_requests_than_connections_wait_for_one(engine_lab: EngineLab) -> None:
    async def ask() -> None:
        async with client(engine_lab.url, max_connections=1) as engine:
            both = await asyncio.gather(sample(engine, name="a"), sample(engine, name="b"))
            assert [len(each.token_ids) for each in both] == [8, 8]

    asyncio.run(ask())


def test_a_request_that_never_gets_a_connection_failed_in_the_clients_pool() -> None:
    with silent_server() as url:

        async def ask() -> None:
            async with client(url, max_connections=1, timeout_s=0.5) as engine:
                first = asyncio.create_task(sample(engine, name="a"))
                await asyncio.sleep(0.25)
                with pytest.raises(EngineError, match=r"1 requests \(max_connections\)") as raised:
                    await sample(engine, name="b")
                assert (raised.value.stage, raised.value.retryable) == ("client_pool", True)
                with pytest.raises(EngineError, match="timeout_s"):
                    await first

        asyncio.run(ask())


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_new_weights_in_the_middle_give_two_spans(engine_lab: EngineLab, mode: str) -> None:
    with restored(engine_lab):
        generation = asyncio.run(paused_in_it(engine_lab, mode, 7))
        assert len(generation.token_ids) == len(generation.logprobs) == LONG
        first, second = generation.version_spans
        assert (first.policy_version, second.policy_version) == (0, 7)
        assert (first.start, first.end, second.end) == (0, second.start, LONG)
        assert generation.retractions == (1 if mode == "retract" else 0)
        assert generation.paused_s is None
        tokens = PROMPT + list(generation.token_ids)
        scored = engine_lab.score(tokens)[len(PROMPT) - 1 :]
        if mode == "retract":  # what follows is of the new weights alone
            at = second.start
            assert generation.logprobs[at:] == pytest.approx(scored[at:], abs=1e-4)
        assert generation.logprobs[0] != pytest.approx(scored[0], abs=1e-4)


def test_weights_updated_with_an_abort_give_back_what_was_sampled(engine_lab: EngineLab) -> None:
    with restored(engine_lab):
        generation = asyncio.run(paused_in_it(engine_lab, "abort", 7))
        assert generation.finish_reason == "abort"
        count = len(generation.token_ids)
        assert 0 < count == len(generation.logprobs) < LONG
        assert generation.version_spans == (VersionSpan(0, 0, count),)


def test_a_paused_engine_is_not_dead_and_holds_what_it_is_asked(engine_lab: EngineLab) -> None:
    async def ask() -> None:
        async with client(engine_lab.url) as engine:
            engine_lab.ask("/pause_generation", {"mode": "in_place"})
            assert await engine.health() is Health.PAUSED
            info = await engine.check()
            assert (info.vocab_size, info.version) == (None, "0.5.23")
            asked = asyncio.create_task(sample(engine))
            await asyncio.sleep(0.6)
            assert not asked.done()
            engine_lab.ask("/continue_generation", {})
            generation = await asked
            assert generation.paused_s is not None
            assert 0.4 < generation.paused_s < generation.client_s
            assert await engine.health() is Health.READY

    with restored(engine_lab):
        asyncio.run(ask())


def test_a_request_that_a_pause_held_until_it_ran_out_of_time_says_so(
    engine_lab: EngineLab,
) -> None:
    async def ask() -> None:
        async with client(engine_lab.url, timeout_s=0.3) as engine:
            with pytest.raises(EngineError, match="paused") as raised:
                await sample(engine, tokens=LONG)
            assert raised.value.stage == "queue"

    with restored(engine_lab):
        engine_lab.ask("/pause_generation", {"mode": "in_place"})
        asyncio.run(ask())
        before = engine_lab.steps()
        engine_lab.ask("/continue_generation", {})
        deadline = time.monotonic() + 20
        while engine_lab.steps() == before:  # it looks for a gone client only seconds later
            assert time.monotonic() < deadline
        assert engine_lab.wait_idle(20.0)


def test_the_load_shows_what_runs(engine_lab: EngineLab) -> None:
    async def busy() -> None:
        async with client(engine_lab.url) as engine:
            asked = [asyncio.create_task(sample(engine, tokens=300, name=f"{i}")) for i in range(8)]
            await until_running(engine_lab, 8)
            load = await engine.loads()
            assert load.running is not None
            assert load.queued is not None
            assert load.kv_used_tokens is not None
            assert load.running + load.queued > 0
            assert 0 < load.kv_used_tokens < KV_TOKENS == load.kv_capacity_tokens
            assert (load.policy_version, load.paused, load.retracted) == (0, 0, 0)
            await asyncio.gather(*asked)

    asyncio.run(busy())


def test_a_dead_port_is_refused_and_named() -> None:
    async def check() -> None:
        async with client(f"http://127.0.0.1:{closed_port()}") as engine:
            with pytest.raises(EngineRefused, match=f"{engine.url} must be a running SGLang"):
                await engine.check()
            assert await engine.health() is Health.DEAD
            with pytest.raises(EngineGone) as raised:
                await sample(engine)
            assert (raised.value.stage, raised.value.retryable) == ("unknown", True)
            with pytest.raises(EngineGone):
                await engine.loads()

    asyncio.run(check())


def test_a_server_of_another_kind_is_refused(tmp_path: Path) -> None:
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"

            async def check() -> None:
                async with client(url) as engine:
                    with pytest.raises(EngineRefused, match=r"GET /server_info must .* got 404"):
                        await engine.check()

            asyncio.run(check())
        finally:
            server.shutdown()


def test_a_server_that_never_answers_costs_no_more_than_the_limit() -> None:
    with silent_server() as url:

        async def ask() -> None:
            async with client(url, timeout_s=0.3) as engine:
                began = time.monotonic()
                with pytest.raises(EngineError) as raised:
                    await sample(engine)
                assert raised.value.stage == "unknown"
                assert 0.3 <= raised.value.seconds < time.monotonic() - began < 8

        asyncio.run(ask())


def test_sessions_leave_a_killed_engine_and_return_when_it_is_back(engine_lab: EngineLab) -> None:
    """One of the two is a port where nothing listens; the other is killed and started again."""

    async def live_through() -> None:
        engines = [Engine(engine_lab.url), Engine(f"http://127.0.0.1:{closed_port()}")]
        pool = EnginePool(engines, revive_every_s=0.1)
        try:
            sessions = [f"session-{i}" for i in range(64)]
            homes = [pool.engine_for(session) for session in sessions]
            assert 16 < homes.count(engines[0]) < 48
            assert [pool.engine_for(session) for session in sessions] == homes

            victim = asyncio.create_task(sample(engines[0], tokens=LONG))
            await until_running(engine_lab)
            await asyncio.to_thread(engine_lab.server.kill)
            killed = time.monotonic()
            with pytest.raises(EngineGone):
                await victim
            assert time.monotonic() - killed < 5

            pool.report_failure(engines[0])
            assert {pool.engine_for(session) for session in sessions} == {engines[1]}
            pool.report_failure(engines[1])
            await until(lambda: len(pool.dead) == 2)
            with pytest.raises(EngineGone, match="none of 2 engines answers"):
                pool.engine_for("session-0")

            await asyncio.to_thread(engine_lab.server.start, START_S)
            await until(lambda: pool.dead == (engines[1],))
            assert {pool.engine_for(session) for session in sessions} == {engines[0]}
            assert len((await sample(engines[0])).token_ids) == 8
        finally:
            await pool.close()

    try:
        asyncio.run(live_through())
    finally:
        engine_lab.server.start(START_S)


def test_a_pool_starts_only_when_every_engine_can_be_used(engine_lab: EngineLab) -> None:
    async def start() -> None:
        good = EnginePool([Engine(engine_lab.url)])
        assert [info.model for info in await good.start()] == ["tiny"]
        await good.close()
        bad = EnginePool([Engine(engine_lab.url), Engine(f"http://127.0.0.1:{closed_port()}")])
        with pytest.raises(EngineRefused, match="must be a running SGLang server"):
            await bad.start()
        await bad.close()

    asyncio.run(start())
    with pytest.raises(ValueError, match="at least one, each once"):
        EnginePool([])


@contextmanager
def silent_server() -> Iterator[str]:
    """The URL of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
