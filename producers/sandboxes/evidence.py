"""What is known about a sandbox when it fails, for a later judgement.

The backend's answer to `get_info` (state and end) and the last metrics. Evidence is sampled so that
it survives the sandbox; asking for it never raises and never takes long.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import datetime
from typing import Any

from e2b import AsyncSandbox, SandboxNotFoundException
from e2b.sandbox.sandbox_api import SandboxInfo, SandboxMetrics

from producers.sandboxes.calls import within
from producers.sandboxes.settings import SandboxSettings

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
NOT_FOUND = "not_found"
"""State of a sandbox that the backend doesn't know any more."""


class Evidence:
    """The evidence about one sandbox."""

    def __init__(self, sdk: AsyncSandbox, settings: SandboxSettings) -> None:
        self._sdk = sdk
        self._api = settings.api()
        self._timeout_s = min(ASK_TIMEOUT_S, settings.request_timeout_s)
        self._state: str | None = None
        self._end_at: datetime | None = None
        self._metrics: SandboxMetrics | None = None

    async def describe(self) -> float | None:
        """vCPUs by the backend's account, None where it gives none; its declared end is kept."""
        info = await self._ask_info()
        return float(info.cpu_count) if info and info.cpu_count else None

    async def collect(self) -> None:
        """Ask for the state, and for metrics if there are none yet."""
        asked = [self._ask_info()]
        if self._metrics is None:
            asked.append(self._ask_metrics())
        await asyncio.gather(*asked)

    async def keep_metrics(self, every_s: float) -> None:
        """Ask for metrics again and again, until cancelled."""
        while True:
            # Sandboxes that started together must not all ask together.
            await asyncio.sleep(every_s * random.uniform(0.5, 1.5))
            await self._ask_metrics()

    def fields(self) -> dict[str, Any]:
        """Fields of `sandbox_failed`."""
        metrics = self._metrics
        return {
            "backend_state": self._state,
            "backend_end_at": self._end_at,
            "memory_used_bytes": metrics and metrics.mem_used,
            "memory_limit_bytes": metrics and metrics.mem_total,
            "disk_used_bytes": metrics and metrics.disk_used,
            "disk_limit_bytes": metrics and metrics.disk_total,
        }

    async def _ask_info(self) -> SandboxInfo | None:
        try:
            info = await within(self._timeout_s, self._sdk.get_info(**self._api))
        except SandboxNotFoundException:
            # The end that it had declared stays: was it due?
            self._state = NOT_FOUND
            return None
        except Exception as error:
            logger.debug("%s: no state: %r", self._sdk.sandbox_id, error)
            return None
        self._state = str(getattr(info.state, "value", info.state))
        self._end_at = info.end_at
        return info

    async def _ask_metrics(self) -> None:
        try:
            found = await within(self._timeout_s, self._sdk.get_metrics(**self._api))
        except Exception as error:
            logger.debug("%s: no metrics: %r", self._sdk.sandbox_id, error)
            return
        if found:
            self._metrics = max(found, key=lambda sample: sample.timestamp)
