"""A campaign: engines, sandboxes and tasks brought together, checked, declared, and run.

What is wrong with an engine, a key or a task is said before the first trajectory; from then on,
what goes wrong is a fact.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.log import EventLog
from ledger.recorder import Recorder
from producers.action_loop import AgentSettings
from producers.agent import Agent
from producers.engine import Engine, EngineInfo
from producers.engine_pool import EnginePool
from producers.monitor import Monitor
from producers.occupancy import Occupancy
from producers.pace import KINDS, Course, Pace, PaceSettings
from producers.refills import Refills
from producers.rollout import Group, Rollout, Tally
from producers.sandbox import SandboxError
from producers.sandbox_pool import Sandboxes
from producers.sandboxes.settings import SandboxSettings
from producers.scope import Limits, RunScope, declare
from producers.tail import Tail
from producers.tasks.task import Task, TaskSet, TasksRefused
from producers.tasks.validation import validate

logger = logging.getLogger(__name__)

SWEEP_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a campaign is told."""

    scope: RunScope
    tasks: TaskSet
    agent: AgentSettings
    engine_urls: tuple[str, ...]
    """SGLang servers."""
    sandboxes: SandboxSettings
    concurrency: int = 16
    """Attempts in flight."""
    groups: int | None = None
    """How many to open; tasks come again in a new order when they are used up. None: each once, or
    with a pace for as long as that gives leave."""
    pace: PaceSettings | None = None
    """How to keep step with training; None: groups are opened as fast as they go."""
    shuffle_seed: int | None = None
    """Order of the tasks; None: that of the dataset."""
    validate_repeats: int = 0
    """How often each task's tests are tried before use; 0: not at all."""
    sample_every_s: float = 1.0
    """Seconds between samples of engines and pools."""


class Campaign:
    """One campaign, on one event loop."""

    def __init__(self, plan: Plan, recorder: Recorder, log: EventLog | None = None) -> None:
        """With a `log`, where `recorder` records to, it keeps the plan's pace; if there is none, it
        ends when an assembler has decided all its groups, and refills slots as asked until then.
        Without a `log` it does neither."""
        self._plan = plan
        self._recorder = recorder
        self._log = log
        self.tally = Tally()
        """What became of the attempts so far."""

    async def run(self) -> Tally:
        """Run all groups. Raises EngineRefused, SandboxRefused, TasksRefused before the first
        trajectory; CancelledError once all attempts in flight are recorded as cancelled."""
        plan, recorder = self._plan, self._recorder
        async with contextlib.AsyncExitStack() as stack:
            pool = EnginePool([Engine(url) for url in plan.engine_urls])
            stack.push_async_callback(pool.close)
            engines = await pool.start()
            check_model(plan.tasks, engines)
            sandboxes = Sandboxes(plan.sandboxes)
            stack.push_async_callback(sandboxes.close)
            await sandboxes.check()
            await stack.enter_async_context(_beside(_sweep(sandboxes, recorder)))
            limits = Limits(plan.concurrency, plan.sandboxes.backend, plan.sandboxes.slots)
            declare(recorder, plan.scope, plan.tasks, plan.agent, engines, limits)
            tasks = await self._validated(sandboxes)
            occupancy = Occupancy()
            every_s = plan.sample_every_s
            monitor = Monitor(recorder, pool.engines, sandboxes.pools, occupancy, every_s)
            await stack.enter_async_context(_beside(monitor.run()))
            agent = Agent(pool, sandboxes, plan.agent, occupancy)
            rollout = Rollout(agent, recorder, plan.concurrency, self.tally)
            pace, refills = None, None
            if self._log is not None and plan.pace is not None:
                pace = await self._pace(self._log, plan.pace, stack)
            elif self._log is not None:
                refills = await stack.enter_async_context(Refills(self._log, recorder.run_id))
            await rollout.run(_groups(plan, tasks, pool, pace), refills)
        return self.tally

    async def _pace(
        self, log: EventLog, settings: PaceSettings, stack: contextlib.AsyncExitStack
    ) -> Pace:
        """It knows what was in the log before: training may have begun."""
        start = await asyncio.to_thread(log.start_positions, "events")
        tail = await stack.enter_async_context(Tail(log, self._recorder.run_id, KINDS, start))
        pace = Pace(Course(settings, self._plan.engine_urls), tail)
        await stack.enter_async_context(_beside(pace.follow()))
        return pace

    async def _validated(self, sandboxes: Sandboxes) -> Sequence[Task]:
        """The tasks that are fit for use."""
        plan = self._plan
        if not plan.validate_repeats:
            return plan.tasks.tasks
        room = asyncio.Semaphore(plan.concurrency)

        async def one(task: Task) -> bool:
            async with room:
                recorder = self._recorder.bind()
                return (await validate(task, sandboxes, recorder, plan.validate_repeats)).valid

        async with asyncio.TaskGroup() as trials:
            valid = [trials.create_task(one(task)) for task in plan.tasks.tasks]
        fit = [task for task, trial in zip(plan.tasks.tasks, valid, strict=True) if trial.result()]
        if not fit:
            raise TasksRefused(f"{plan.tasks.dataset} has no valid task: see task_validated facts")
        return fit


def check_model(tasks: TaskSet, engines: Sequence[EngineInfo]) -> None:
    """Raises TasksRefused for engines that serve another vocabulary than the tasks are written
    in."""
    for engine in engines:
        if tasks.vocab_size and engine.vocab_size and tasks.vocab_size != engine.vocab_size:
            raise TasksRefused(
                f"{tasks.dataset} needs a model of {tasks.vocab_size} tokens,"
                f" got {engine.vocab_size} ({engine.model} at {engine.url})"
            )


async def _groups(
    plan: Plan, tasks: Sequence[Task], pool: EnginePool, pace: Pace | None
) -> AsyncGenerator[Group]:
    """Of each task once, or over and over until there were `groups`, or the pace ends them."""
    endless = plan.groups is None and pace is not None
    left = len(tasks) if plan.groups is None else plan.groups
    for task in itertools.islice(_order(plan, tasks), None if endless else left):
        turn = None
        if pace is not None and (turn := await pace.turn()) is None:
            return
        step = None if turn is None else turn.target_step
        group = Group(task, plan.scope.group_size, pool.policy_version, step)
        if pace is not None:
            pace.opened(group.group_id)
        yield group


def _order(plan: Plan, tasks: Sequence[Task]) -> Iterator[Task]:
    """The tasks again and again, each time in another order if they are shuffled."""
    shuffle = None if plan.shuffle_seed is None else random.Random(plan.shuffle_seed)
    while True:
        order = list(tasks)
        if shuffle is not None:
            shuffle.shuffle(order)
        yield from order


async def _sweep(sandboxes: Sandboxes, recorder: Recorder) -> None:
    """Kill what processes that died left behind, now and every so often: it holds slots."""
    while True:
        try:
            swept = await sandboxes.sweep(recorder)
        except SandboxError as error:
            logger.warning("leaked sandboxes can't be looked for: %s", error)
        else:
            if swept:
                logger.warning("%d leaked sandboxes killed", len(swept))
        await asyncio.sleep(SWEEP_EVERY_S)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Runs beside the block, and is cancelled at its end."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
