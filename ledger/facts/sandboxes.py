"""Facts about sandboxes. A retried start is another `try_no` inside one trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledger.facts.base import Excerpt, TrajectoryFact
from ledger.facts.lists import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFact(TrajectoryFact):
    """A fact about one try at having a sandbox."""

    try_no: int = 0
    """Which try of the trajectory, from 0."""
    backend: str | None = None
    """Who runs it."""
    template: str | None = None
    """Template or image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStarted(SandboxFact):
    """A sandbox is up."""

    sandbox_id: str
    """The backend's id."""
    host: str | None = None
    """Machine that it runs on, where known."""
    vcpus: float | None = None
    """vCPUs that it has."""
    queue_s: float | None = None
    """Seconds waited for a slot."""
    start_s: float | None = None
    """Seconds from the request to its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPrepared(SandboxFact):
    """The agent and the task are installed in the sandbox."""

    sandbox_id: str
    """The backend's id."""
    setup_s: float | None = None
    """Seconds that this took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFailed(SandboxFact):
    """A sandbox didn't start, wasn't prepared, or was lost."""

    sandbox_id: str | None = None
    """The backend's id; null when it never had one."""
    stage: Stage
    """Where the trajectory was."""
    error_type: str
    """Raw type of the error."""
    error: Excerpt | None = None
    """The error's text."""
    http_status: int | None = None
    """Status of the backend's answer, where it gave one."""
    seconds: float | None = None
    """Seconds spent on this try."""
    backend_state: str | None = None
    """State by the backend's own account afterwards."""
    backend_end_at: datetime | None = None
    """When the backend says that it ended or will end, UTC."""
    in_command: bool | None = None
    """Whether a command ran when it was lost; false: idle."""
    memory_used_bytes: int | None = None
    """Last metrics that the client kept."""
    memory_limit_bytes: int | None = None
    """Last metrics that the client kept."""
    disk_used_bytes: int | None = None
    """Last metrics that the client kept."""
    disk_limit_bytes: int | None = None
    """Last metrics that the client kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStopped(SandboxFact):
    """A sandbox was killed by its owner, or swept up."""

    sandbox_id: str
    """The backend's id."""
    reason: str
    """Why: finished, cancelled, swept."""
    lifetime_s: float | None = None
    """Seconds that it was up."""
