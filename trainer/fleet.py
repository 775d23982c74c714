"""All engines of a trainer, looked after in a thread of its own.

Invariant: engines are changed on one event loop, each under its keeper's lock; so a publication and
a look never meet at an engine.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ledger.recorder import Recorder
from trainer.engine_keeper import EngineKeeper, Target
from trainer.engines import Engine
from trainer.publish_settings import PublishSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
CLOSE_S = 10.0
"""Most seconds that `close` waits for changes under way."""


class Fleet:
    """All engines, on an event loop in a thread of its own."""

    def __init__(self, settings: PublishSettings, recorder: Recorder) -> None:
        self.keepers = [
            EngineKeeper(Engine(url, limit_s=settings.limit_s), settings, recorder)
            for url in settings.engines
        ]
        self._every_s = settings.look_every_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publish", daemon=True)
        self._thread.start()
        self._watches = self.run(self._watched())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Called from the trainer's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def aim(self, target: Target) -> None:
        """From now on every engine is brought to this target."""
        for keeper in self.keepers:
            keeper.target = target

    async def settled(self) -> tuple[str, ...]:
        """URLs of the engines that have the target once each was tried."""
        settled = await asyncio.gather(*[keeper.settle() for keeper in self.keepers])
        return tuple(
            keeper.engine.url for keeper, done in zip(self.keepers, settled, strict=True) if done
        )

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self._closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()

    async def _watched(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._watch(keeper)) for keeper in self.keepers]

    async def _watch(self, keeper: EngineKeeper) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await keeper.settle(patient=True)
            except Exception:  # a watch that ends would leave its engine behind, unseen
                logger.exception("%s was not looked after", keeper.engine.url)

    async def _closed(self) -> None:
        """A change under way is let come to its end: an engine must not be left paused."""
        locks = asyncio.gather(*[keeper.lock.acquire() for keeper in self.keepers])
        await asyncio.wait({asyncio.ensure_future(locks)}, timeout=CLOSE_S)
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for keeper in self.keepers:
            await keeper.engine.close()
