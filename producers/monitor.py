"""The monitor: the state of every engine and pool, sampled into facts.

Its samples are the source of the capacity account. A sample that can't be taken is no fact, and a
gap in the samples is what an unreachable engine looks like; the monitor itself goes on.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence

from ledger.facts import PoolUse
from ledger.facts.lists import Stage
from ledger.recorder import Recorder
from producers.engine import Engine, EngineError
from producers.occupancy import Occupancy

logger = logging.getLogger(__name__)


def cluster_run_id(engine_urls: Sequence[str]) -> str:
    """The run id of the engines themselves, which may serve several runs: the same for the same
    engines (UUID version 5)."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(sorted(engine_urls))))


class Monitor:
    """Samples until it is cancelled."""

    def __init__(
        self,
        recorder: Recorder,
        engines: Sequence[Engine],
        pools: Callable[[], Sequence[PoolUse]],
        occupancy: Occupancy,
        every_s: float = 1.0,
    ) -> None:
        """`pools` tells the use of each bounded resource. The engines' samples go under the run id
        `cluster_run_id`."""
        if every_s <= 0:
            raise ValueError(f"every_s must be more than 0 seconds, got {every_s}")
        self._recorder = recorder
        self._engines = engines
        self._pools = pools
        self._occupancy = occupancy
        self._every_s = every_s
        self._cluster = cluster_run_id([engine.url for engine in engines])

    async def run(self) -> None:
        """Sample every `every_s` seconds; a slow engine delays no other."""
        async with asyncio.TaskGroup() as samplers:
            for engine in self._engines:
                samplers.create_task(self._every(lambda engine=engine: self._engine(engine)))
            samplers.create_task(self._every(self._pool))

    async def _every(self, sample: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await sample()
            # A late sample is not made up for: two at once would say the same twice.
            due = max(due + self._every_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _engine(self, engine: Engine) -> None:
        try:
            async with asyncio.timeout(max(self._every_s, 1.0)):
                load = await engine.loads()
        except (EngineError, TimeoutError) as error:
            logger.debug("%s gave no sample: %s", engine.url, error)
            return
        self._recorder.engine_sampled(
            run_id=self._cluster,
            engine=engine.url,
            policy_version=load.policy_version,
            kv_used_tokens=load.kv_used_tokens,
            kv_capacity_tokens=load.kv_capacity_tokens,
            running=load.running,
            queued=load.queued,
            retracted=load.retracted,
            paused=load.paused,
            generation_tokens_per_s=load.generation_tokens_per_s,
        )

    async def _pool(self) -> None:
        # in_queue stays unknown: an attempt is counted from its start on. How long it waited until
        # then is in its trajectory_started.
        at = self._occupancy
        self._recorder.pool_sampled(
            pools=list(self._pools()),
            in_sandbox_start=at[Stage.SANDBOX_START],
            in_setup=at[Stage.SETUP],
            in_model=at[Stage.MODEL],
            in_tool=at[Stage.TOOL],
            in_verify=at[Stage.VERIFY],
        )
