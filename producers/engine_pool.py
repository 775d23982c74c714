"""Several engines: each session stays on one, and moves only when that one dies.

A session's turns extend one another, so the engine that had the last one has its tokens in the
prefix cache. The engine is chosen by rendezvous hashing: of the engines that live, the one with the
highest hash of (session, engine). When an engine dies only its own sessions move, and when it is
back they return.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from hashlib import blake2b

from ledger.facts.lists import EngineStage
from producers.engine import Engine, EngineGone, EngineInfo, EngineRefused, Health

logger = logging.getLogger(__name__)

REVIVE_EVERY_S = 2.0
"""Seconds between looks at a dead engine."""


class EnginePool:
    """Engines of one model, on one event loop."""

    def __init__(
        self, engines: Sequence[Engine], *, revive_every_s: float = REVIVE_EVERY_S
    ) -> None:
        """Raises ValueError for no engine, or the same one twice."""
        urls = [engine.url for engine in engines]
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"engines must be at least one, each once, got {urls}")
        self.engines = tuple(engines)
        self._dead: set[Engine] = set()
        self._looks: dict[Engine, asyncio.Task[None]] = {}
        """One for each engine that is dead, or may be."""
        self._revive_every_s = revive_every_s

    async def start(self) -> list[EngineInfo]:
        """Check every engine; (engines,) in their order. Raises EngineRefused for one that can't be
        used, or that has another model or vocabulary than the first."""
        infos = list(await asyncio.gather(*[engine.check() for engine in self.engines]))
        for info in infos[1:]:
            for what in ("model", "vocab_size"):
                first, other = getattr(infos[0], what), getattr(info, what)
                if first != other and None not in (first, other):
                    raise EngineRefused(
                        f"{what} must be the same at all engines, got {first!r}"
                        f" at {infos[0].url} and {other!r} at {info.url}"
                    )
        return infos

    async def close(self) -> None:
        """Close the engines' clients; the engines go on."""
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        await asyncio.gather(*[engine.close() for engine in self.engines])

    def engine_for(self, session: str) -> Engine:
        """The engine of a session. A paused engine keeps its sessions: it will go on. Raises
        EngineGone when none lives."""
        alive = [engine for engine in self.engines if engine not in self._dead]
        trusted = [engine for engine in alive if engine not in self._looks]
        if not alive:
            raise EngineGone(
                f"none of {len(self.engines)} engines answers:"
                f" {', '.join(engine.url for engine in self.engines)}",
                stage=EngineStage.CLIENT_POOL,
                error_type="NoEngine",
                seconds=0.0,
                retryable=True,
            )
        return max(trusted or alive, key=lambda engine: _weight(session, engine.url))

    async def wait_for_one(self, timeout_s: float) -> bool:
        """Wait until some engine lives; False if none does in time."""
        deadline = time.monotonic() + timeout_s
        while len(self._dead) == len(self.engines):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.2)
        return True

    def report_failure(self, engine: Engine) -> None:
        """A request to this engine failed, for whatever reason. It is looked at now, and while it
        doesn't answer sessions go to others: one that hangs costs nobody a time-out more."""
        if engine not in self._looks:
            self._looks[engine] = asyncio.create_task(self._look(engine))
            self._looks[engine].add_done_callback(lambda _: self._looks.pop(engine))

    @property
    def policy_version(self) -> int | None:
        """The newest version that any engine was seen to sample from; None: unknown."""
        seen = [engine.policy_version for engine in self.engines]
        return max((version for version in seen if version is not None), default=None)

    @property
    def dead(self) -> tuple[Engine, ...]:
        """Engines that get no session for now."""
        return tuple(engine for engine in self.engines if engine in self._dead)

    async def _look(self, engine: Engine) -> None:
        """Look at an engine until it answers."""
        while await engine.health() is Health.DEAD:
            if engine not in self._dead:
                logger.warning("%s doesn't answer; its sessions move", engine.url)
                self._dead.add(engine)
            await asyncio.sleep(self._revive_every_s)
        if engine in self._dead:
            logger.warning("%s answers again", engine.url)
            self._dead.discard(engine)


def _weight(session: str, url: str) -> bytes:
    return blake2b(f"{session}\0{url}".encode(), digest_size=8).digest()
