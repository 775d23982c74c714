"""The policy's clock: the seconds that an attempt spent on its own account.

It leaves out what the policy can only wait for: the engine's queue, pauses while weights change,
requests that failed. A cap on it can't be reached by an overloaded engine alone; and where a
wall-clock limit ends an attempt before this clock reaches the cap, the judgement can tell that the
attempt was starved.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class ClockRanOut(Exception):
    """The policy's clock reached its cap."""


class PolicyClock:
    """Runs from `start` to `stop`."""

    def __init__(self, cap_s: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self.cap_s = cap_s
        """Most seconds; None: no cap."""
        self._now = now
        self._started: float | None = None
        self._stopped: float | None = None
        self._excused_s = 0.0

    def start(self) -> None:
        self._started = self._now()

    def stop(self) -> None:
        if self._started is not None and self._stopped is None:
            self._stopped = self._now()

    def excuse(self, seconds: float | None) -> None:
        """These seconds were not the policy's."""
        self._excused_s += max(seconds or 0.0, 0.0)

    @property
    def elapsed_s(self) -> float | None:
        """None before the start."""
        if self._started is None:
            return None
        end = self._now() if self._stopped is None else self._stopped
        return max(end - self._started - self._excused_s, 0.0)

    @property
    def left_s(self) -> float | None:
        """Seconds until the cap, 0 at the least; None without a cap."""
        if self.cap_s is None:
            return None
        return max(self.cap_s - (self.elapsed_s or 0.0), 0.0)
