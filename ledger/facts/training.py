"""Facts that the trainer records: steps, checkpoints and weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ledger.facts.base import ANY_NUMBER, Excerpt, Fact, Uuid
from ledger.facts.lists import PauseMode, Phase, WeightMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStarted(Fact):
    """A trainer is ready for its first batch."""

    resumed_from: str | None = None
    """Path of the checkpoint; null: a fresh start."""
    resumed_step: int | None = None
    """The last step inside that checkpoint."""
    policy_version: int | None = None
    """The version that it trains from."""
    startup_s: float | None = None
    """Seconds from its start until it was ready."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A stretch of one step on rank 0's monotonic clock."""

    phase: Phase
    """What it was spent on."""
    start_offset_s: float
    """Seconds after the step's start."""
    seconds: float
    """How long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted(Fact):
    """A training step ended. Checkpoint and publication of a step are phases of the next one."""

    step: int
    """From 1."""
    batch_id: Uuid | None
    """What it trained on."""
    from_version: int | None = None
    """The policy version that it trained from."""
    to_version: int | None = None
    """The policy version that it made."""
    started_at: datetime | None = None
    """When it began: the end of the step before it, or the trainer's readiness; null: unknown to
    an importer."""
    wall_s: float
    """Seconds by the monotonic clock."""
    phases: list[PhaseSpan] = field(default_factory=list[PhaseSpan])
    """Stretches that exclude one another; what they leave of wall_s has no name."""
    trajectories: int | None = None
    """Trajectories trained on."""
    trained_tokens: int | None = None
    """Tokens with a gradient."""
    computed_tokens: int | None = None
    """Tokens computed, padding included."""
    loss: float | None = field(default=None, metadata=ANY_NUMBER)
    """The loss."""
    grad_norm: float | None = field(default=None, metadata=ANY_NUMBER)
    """Norm of the gradient before it was clipped."""
    metrics: dict[str, float] = field(default_factory=dict[str, float], metadata=ANY_NUMBER)
    """Health figures by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Fact):
    """Model, optimizer, random state and batch position are safe on disk. Audit only."""

    step: int
    """The last step inside it."""
    policy_version: int | None = None
    """The version of its weights."""
    path: str
    """Where it lies."""
    batch_id: Uuid | None = None
    """The last batch trained on."""
    batch_positions: dict[str, int] = field(default_factory=dict[str, int])
    """Where to read batches on, by `topic/partition`."""
    size_bytes: int | None = None
    """Its size."""
    save_s: float | None = None
    """Seconds that saving took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFact(Fact):
    """A fact about one policy version. A version is never used twice."""

    policy_version: int
    """0 are the initial weights."""
    method: WeightMethod | None = None
    """How they travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished(WeightsFact):
    """The trainer made a policy version available."""

    step: int | None = None
    """The step that made it."""
    path: str | None = None
    """Where it lies, when it travels by disk."""
    size_bytes: int | None = None
    """Its size."""
    publish_s: float | None = None
    """Seconds that the export took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsApplied(WeightsFact):
    """An engine took a policy version, or failed to."""

    engine: str
    """The engine."""
    success: bool
    """Whether it now samples from this version."""
    pause_mode: PauseMode | None = None
    """What happened to running requests."""
    cache_flushed: bool | None = None
    """Whether the engine forgot its KV cache."""
    paused_s: float | None = None
    """Seconds that it didn't generate."""
    apply_s: float | None = None
    """Seconds from the request to its answer."""
    aborted_requests: int | None = None
    """Requests in flight that were aborted."""
    carried_requests: int | None = None
    """Requests in flight that went on with the new version."""
    error_type: str | None = None
    """Raw type of the error."""
    error: Excerpt | None = None
    """The error's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrphaned(WeightsFact):
    """A version was published after the checkpoint that training went on from."""

    resumed_from: str | None = None
    """That checkpoint."""
    resumed_step: int | None = None
    """The last step inside it."""
