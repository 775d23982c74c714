"""Attempts whose task or sandbox is at fault: each ends as a fact; only a lack ends the rollout.

The engine and the sandbox service are scripted on the wire; the rest is the real thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from ledger.facts.lists import EngineStage, Stage, StopReason
from producers.action_loop import AgentSettings
from producers.agent import Agent, Ending
from producers.engine import Engine, EngineError, Sampling
from producers.engine_pool import EnginePool
from producers.occupancy import Occupancy
from producers.rollout import FailureRow, RolloutBroken
from producers.sandbox import Sandbox, SandboxError
from producers.sandbox_pool import Sandboxes
from producers.tasks.micro_repair.bugs import draw_bugs
from producers.tasks.micro_repair.task import CAPS, MicroRepair
from producers.tasks.micro_repair.vocabulary import TEST
from producers.tasks.task import TaskError
from tests.e2b_faults import STARTED, FaultyE2B, loses_sandbox, stream
from tests.engine_answers import ANSWER, changed
from tests.recorded import IDS, TRAJECTORY, Make, facts_in, of


async def answer_test(request: web.Request) -> web.Response:
    """The policy runs the tests, whatever it sees."""
    asked = await request.json()
    answer = changed(ANSWER, "output_ids", [TEST])
    answer["meta_info"] |= {
        "id": asked["rid"],
        "prompt_tokens": len(asked["input_ids"]),
        "completion_tokens": 1,
        "output_token_logprobs": [[-0.5, TEST, None]],
        "output_token_logprobs_length": 1,
        "weight_versions": [{"version": "3", "start": 0, "end": 1}],
        "finish_reason": {"type": "length", "length": 1},
    }
    return web.json_response(answer)


@asynccontextmanager
async def an_engine() -> AsyncIterator[EnginePool]:
    app = web.Application()
    app.router.add_post("/generate", answer_test)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    pool = EnginePool([Engine(f"http://{host}:{port}")])
    try:
        yield pool
    finally:
        await pool.close()
        await runner.cleanup()


def attempted(
    make: Make, url: str, task: MicroRepair, script: Callable[[FaultyE2B], None]
) -> tuple[Ending, list[Any], Occupancy]:
    """How an attempt ended, its facts, and where attempts are behind it."""
    recorder = make(url)
    occupancy = Occupancy()

    async def main() -> Ending:
        async with (
            an_engine() as engines,
            FaultyE2B() as server,
            Sandboxes(server.settings()) as sandboxes,
        ):
            script(server)
            settings = AgentSettings(CAPS, Sampling(), action_tokens=1)
            agent = Agent(engines, sandboxes, settings, occupancy)
            return await agent.attempt(task, recorder.bind(**IDS), TRAJECTORY)

    ending = asyncio.run(main())
    assert recorder.close()
    return ending, facts_in(url), occupancy


class NoScaffold(MicroRepair):
    """A task that can't make its scaffold."""

    def scaffold(self) -> Any:
        raise KeyError("no prompt")


class NoPrompt(MicroRepair):
    """A task whose scaffold can't write its prompt."""

    def scaffold(self) -> Any:
        class Broken:
            def prompt(self) -> list[int]:
                raise KeyError("no prompt")

        return Broken()


@pytest.mark.parametrize("kind", [NoScaffold, NoPrompt])
def test_a_scaffold_that_slips_ends_its_attempt_and_nothing_else(
    make: Make, sqlite_url: str, kind: type[MicroRepair]
) -> None:
    task = kind.of(draw_bugs("train", 0)[0])
    ending, facts, occupancy = attempted(make, sqlite_url, task, lambda server: None)
    assert (ending.stop_reason, ending.reward) == (StopReason.ERROR, None)
    assert isinstance(ending.error, KeyError)
    (finished,) = of(facts, "TrajectoryFinished")
    assert (finished.stop_reason, finished.error_type) == ("error", "KeyError")
    assert (finished.turns_completed, finished.reward_due) == (0, False)
    assert [fact.reason for fact in of(facts, "SandboxStopped")] == ["finished"]
    assert [occupancy[stage] for stage in Stage] == [0] * len(Stage)


class SetUpOnce(MicroRepair):
    """A task that can be installed in the first sandbox only."""

    async def setup(self, sandbox: Sandbox) -> None:
        if sandbox.try_no > 0:
            raise TaskError("the repository could not be written")


def test_a_task_that_fails_behind_a_loss_does_not_hide_it(make: Make, sqlite_url: str) -> None:
    def script(server: FaultyE2B) -> None:
        server.will("run", loses_sandbox(stream(STARTED, dropped=True)))

    task = SetUpOnce.of(draw_bugs("train", 0)[0])
    ending, facts, _ = attempted(make, sqlite_url, task, script)
    assert isinstance(ending.error, SandboxError)
    (finished,) = of(facts, "TrajectoryFinished")
    assert (finished.error_type, finished.stage) == ("SandboxNotRunningException", "tool")
    assert (finished.tool_calls, finished.reward_due) == (1, False)
    assert [fact.try_no for fact in of(facts, "SandboxStarted")] == [0, 1]


# Failures in a row

LOST = SandboxError(Stage.TOOL, "SandboxNotRunningException", "gone", lost=True)
NO_ENGINE = EngineError("none", stage=EngineStage.CLIENT_POOL, error_type="NoEngine", seconds=0.0)


def an_ending(error: BaseException | None, reward: float | None = None) -> Ending:
    return Ending(StopReason.ERROR, Stage.TOOL, error, reward)


@pytest.mark.parametrize(
    "between",
    [
        an_ending(LOST, reward=0.0),  # the policy broke its sandbox, and was scored
        an_ending(None, reward=1.0),
        an_ending(None),
        an_ending(TaskError("its own files")),
    ],
)
def test_what_is_no_lack_of_engines_or_sandboxes_ends_a_row_of_failures(between: Ending) -> None:
    row = FailureRow(patience=3)
    for ending in (an_ending(LOST), an_ending(NO_ENGINE), between, between, between):
        row.add(ending)
    row.add(an_ending(LOST))
    row.add(an_ending(NO_ENGINE))
    with pytest.raises(RolloutBroken, match="fewer than 3 attempts in a row may fail, got 3"):
        row.add(an_ending(LOST))
