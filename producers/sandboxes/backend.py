"""The control plane: create, kill, list. Every call is bounded; a kill is tried again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Mapping
from math import ceil
from typing import Any

from e2b import AsyncSandbox
from e2b.sandbox.sandbox_api import SandboxInfo, SandboxQuery

from producers.sandboxes.calls import within
from producers.sandboxes.settings import SandboxSettings

logger = logging.getLogger(__name__)

KILL_TRIES = 3
BACKOFF_MOST_S = 10.0


class Backend:
    """The control plane of one E2B server."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._api = settings.api()

    def create(
        self, template: str, labels: dict[str, str], start: str
    ) -> Coroutine[Any, Any, AsyncSandbox]:
        """The SDK's call, without a deadline. `start` keeps a server that knows idempotency keys
        from making two. The SDK doesn't try again: each of our tries has to be a fact."""
        return AsyncSandbox.create(
            template,
            timeout=ceil(self._settings.lifetime_s),
            metadata=labels,
            idempotency_key=start,
            **self._settings.api(retries=0),
        )

    async def kill(self, sandbox_id: str) -> bool | None:
        """True: killed. False: it was gone. None: the backend didn't answer, or refused."""
        for try_no in range(KILL_TRIES):
            try:
                kill = AsyncSandbox.kill(sandbox_id, **self._api)
                return await within(self._settings.request_timeout_s, kill)
            except Exception as error:
                logger.warning("sandbox %s could not be killed: %r", sandbox_id, error)
            if try_no + 1 < KILL_TRIES:
                await asyncio.sleep(self.backoff_s(try_no))
        return None

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """All that carry these labels. Raises what the SDK raises, and NoAnswer."""
        query = SandboxQuery(metadata=dict(labels))
        pages = AsyncSandbox.list(query=query, limit=100, **self._api)
        found: list[SandboxInfo] = []
        while pages.has_next:
            found += await within(self._settings.request_timeout_s, pages.next_items())
        # A server that ignores the query must not have other people's sandboxes killed.
        return [info for info in found if labels.items() <= info.metadata.items()]

    def backoff_s(self, try_no: int) -> float:
        """Seconds to wait after a try, with jitter."""
        return min(BACKOFF_MOST_S, self._settings.backoff_s * 2**try_no) * random.uniform(0.5, 1)
