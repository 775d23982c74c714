"""Settings of the local server, checked before anything starts."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

USER = "user"
HOME = f"/home/{USER}"
USERS = {USER: HOME, "root": "/root"}
"""Names that a command may run as, and their homes. Both are the same unprivileged user here."""

SLOTS_MAX = 1000

Isolation = Literal["auto", "bwrap", "none"]


class LocalE2BError(Exception):
    """A server that can't start or be reached; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    memory_mb: int = 1024
    """MiB of private memory a process (refused beyond) and of resident memory a sandbox (its
    largest process is killed, looked at every second)."""
    cpu_s: int = 600
    """Seconds of CPU time a process."""
    file_mb: int = 256
    """MiB a file."""
    processes: int = 256
    disk_mb: int = 512
    """MiB of all files. With bubblewrap the sandbox's own file system, in memory, has this size;
    without, only the files API looks."""

    @staticmethod
    def defaults() -> dict[str, int]:
        """Each limit's name and default."""
        return {each.name: each.default for each in fields(Limits)}  # type: ignore[misc]

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 1:
                raise LocalE2BError(f"{each.name} must be at least 1, got {value} (limits)")


@dataclass(frozen=True, slots=True)
class StartLatency:
    """How long a start takes at least: drawn from a lognormal; sigma 0 is a fixed time."""

    median_s: float = 0.0
    sigma: float = 0.0

    def draw(self, seed: int, create_no: int) -> float:
        """Seconds for the create request of this number; the same for the same seed."""
        draw = random.Random(f"latency/{seed}/{create_no}")
        return self.median_s * math.exp(draw.gauss(0.0, self.sigma)) if self.median_s else 0.0

    @staticmethod
    def parse(text: str) -> StartLatency:
        """`fixed:SECONDS` or `lognormal:MEDIAN_SECONDS,SIGMA`. Raises LocalE2BError."""
        number = r"(\d+(?:\.\d+)?)"
        if match := re.fullmatch(f"fixed:{number}", text):
            return StartLatency(float(match[1]))
        if match := re.fullmatch(f"lognormal:{number},{number}", text):
            return StartLatency(float(match[1]), float(match[2]))
        raise LocalE2BError(
            f"start latency must be fixed:SECONDS or lognormal:MEDIAN,SIGMA, got {text!r}"
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """One server."""

    folder: Path
    """Everything of this server; one server at a time."""
    slots: int = 16
    """Sandboxes that live at the same time."""
    queue: int = 256
    """Create requests that wait for a slot; the next one gets 429 at once."""
    queue_timeout_s: float = 30.0
    """Longest wait for a slot, then 429."""
    seed: int = 0
    """Of faults and start latencies."""
    faults: tuple[str, ...] = ()
    """Rules, see faults.py."""
    start_latency: StartLatency = StartLatency()
    api_key: str | None = field(default=None, repr=False)
    """None takes any key, but one must be there."""
    templates: Path | None = None
    """Folder of templates, see templates.py; `base` exists without one."""
    limits: Limits = Limits()
    isolation: Isolation = "auto"
    """`auto` is bubblewrap where it works, else none, which needs `unsafe`."""
    unsafe: bool = False
    """Consent to run without a security boundary."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= SLOTS_MAX:
            raise LocalE2BError(f"slots must be within 1..{SLOTS_MAX}, got {self.slots}")
        if self.queue < 0 or self.queue_timeout_s < 0:
            raise LocalE2BError(
                f"queue and its timeout can't be negative, got {self.queue} and"
                f" {self.queue_timeout_s:g} s"
            )
        if self.isolation not in ("auto", "bwrap", "none"):
            raise LocalE2BError(f"isolation is auto, bwrap or none, got {self.isolation!r}")
