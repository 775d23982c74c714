"""Where the attempts in flight are: one counter per stage, which the monitor samples.

An attempt is counted from its start on; what waits in the queue is not.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator

from ledger.facts.lists import Stage


class Occupancy:
    """How many attempts are in each stage; an attempt is in one stage at a time."""

    def __init__(self) -> None:
        self._counts: Counter[Stage] = Counter()

    def __getitem__(self, stage: Stage) -> int:
        return self._counts[stage]

    @contextlib.contextmanager
    def attempt(self) -> Generator[Whereabouts]:
        """An attempt that was started, and waits for its sandbox, until the block ends."""
        whereabouts = Whereabouts(self._counts)
        try:
            yield whereabouts
        finally:
            self._counts[whereabouts.stage] -= 1


class Whereabouts:
    """The stage of one attempt."""

    def __init__(self, counts: Counter[Stage]) -> None:
        self._counts = counts
        self.stage = Stage.SANDBOX_START
        counts[self.stage] += 1

    def move(self, stage: Stage) -> None:
        self._counts[self.stage] -= 1
        self.stage = stage
        self._counts[stage] += 1
