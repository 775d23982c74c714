"""Where a step's time goes, on this process's monotonic clock.

Invariant: stretches exclude one another, and a step begins at the instant at which the one before
it ended. So phases and what they leave of the wall time sum to it, and steps to the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step."""

    started_at: datetime
    """UTC: this machine's clock at the first step, the monotonic one from there."""
    wall_s: float
    """Seconds until the next one began."""
    phases: list[PhaseSpan]
    """In order."""

    @property
    def ended_at(self) -> datetime:
        """UTC."""
        return self.started_at + timedelta(seconds=self.wall_s)


class StepClock:
    """Runs from its making; used by one thread."""

    def __init__(
        self,
        settle: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settle` waits for what a phase has started on the device, or the next one gets its
        time."""
        self._settle = settle
        self._now = now
        self._began = now()
        self._began_at = datetime.now(UTC)
        self._phases: list[PhaseSpan] = []
        self._in: Phase | None = None

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """What happens inside is spent on `phase`. Raises RuntimeError inside another one."""
        if self._in is not None:
            raise RuntimeError(f"phases exclude one another: {phase} begins inside {self._in}")
        self._in, start = phase, self._now()
        try:
            yield
            self._settle()
        finally:
            self._in = None
            span = PhaseSpan(phase, start - self._began, self._now() - start)
            self._phases.append(span)

    def end_step(self) -> StepTime:
        """The step's time; the next one begins. Raises RuntimeError inside a phase."""
        if self._in is not None:
            raise RuntimeError(f"a step ends outside of phases, not inside {self._in}")
        ended = self._now()
        time_of_step = StepTime(self._began_at, ended - self._began, self._phases)
        self._began, self._began_at, self._phases = ended, time_of_step.ended_at, []
        return time_of_step
