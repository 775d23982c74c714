"""One measurement: what it took, as one line of JSON between processes."""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Self


@dataclass(slots=True)
class Measured:
    """Wall and CPU seconds of one process for so many facts."""

    facts: int = 0
    seconds: float = 0.0
    """Wall."""
    cpu_s: float = 0.0
    """User and system, all threads of the process; the broker's are not in it."""
    peak_mb: float = 0.0
    """Largest resident set of the process since its start, MB of 1,000,000 bytes."""
    more: dict[str, float] = field(default_factory=dict[str, float])
    """Further figures, by name; units are in the names."""

    @property
    def rate(self) -> float:
        """Facts a second."""
        return self.facts / self.seconds

    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Self:
        """From a line of JSON."""
        return cls(**json.loads(line))


class Clock:
    """Times a block, after a collection of what was made for it."""

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()  # what was prepared isn't walked again by every later collection
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu_s = time.process_time() - self._cpu

    def measured(self, facts: int, **more: float) -> Measured:
        """What the block took for so many facts."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        unit = 1 if sys.platform == "darwin" else 1024
        return Measured(facts, self.seconds, self.cpu_s, peak * unit / 1e6, more)


def middle(rounds: Sequence[Measured]) -> Measured:
    """The round of median wall time (the better of the two in the middle)."""
    ordered = sorted(rounds, key=lambda each: each.seconds / max(each.facts, 1))
    return ordered[(len(ordered) - 1) // 2]


def paired(ours: Sequence[Measured], theirs: Sequence[Measured]) -> float:
    """Our rate over theirs: median over rounds that ran one behind the other."""
    return statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))


def paired_cpu(ours: Sequence[Measured], theirs: Sequence[Measured]) -> float:
    """Facts per CPU second, ours over theirs: median over paired rounds."""
    return statistics.median(
        a.facts / a.cpu_s / (b.facts / b.cpu_s) for a, b in zip(ours, theirs, strict=True)
    )
