"""Facts that the assembler records: who votes, what becomes a batch, and on which evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ledger.facts.base import ANY_NUMBER, Excerpt, Fact, GroupFact, TrajectoryFact, Uuid
from ledger.facts.lists import DropReason, ExclusionReason, GroupDecision


@dataclass(frozen=True, slots=True)
class Member:
    """One attempt of a decided group."""

    slot: int
    """Its place."""
    trajectory_id: Uuid
    """The attempt."""
    reward_event_id: Uuid | None
    """The reward fact that was used; null: none had arrived."""
    reward: float | None = field(metadata=ANY_NUMBER)
    """Its value."""
    votes: bool
    """Whether it counts in mean, std and the zero-variance test."""
    exclusion_reason: ExclusionReason | None
    """Why it doesn't vote; null when it does."""
    masked: bool
    """Whether it votes without a gradient of its own."""
    advantage: float | None = field(metadata=ANY_NUMBER)
    """Null when it doesn't vote or the group is dropped."""
    tokens_verified: bool
    """Whether its payloads had all arrived and matched their digests."""


@dataclass(frozen=True, slots=True)
class Cut:
    """All that a decision depended on beside its members' facts: deciding again at the same
    cut gives the same answer."""

    positions: dict[str, int]
    """Offset of the next record unread, by `topic/partition`."""
    log_time: datetime
    """The log's clock at the decision."""
    policy_version: int | None
    """Newest published version known."""
    configuration: str
    """The assembler's settings, canonical JSON."""
    configuration_sha256: str
    """Its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefillRequested(TrajectoryFact):
    """A slot needs another attempt, since this one doesn't vote through no fault of the policy.
    Whoever runs the group starts one that replaces it. Audit only."""

    task_id: str
    """The task."""
    refill_no: int
    """Which refill of the slot it is, from 1."""
    reason: ExclusionReason
    """Why this attempt doesn't vote."""
    answer_by: datetime
    """The group's deadline by the log's clock: after it the slot stays empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecided(GroupFact):
    """A group was closed: each member votes or is excluded with a reason."""

    rule_set: int
    """The judgement's rule set."""
    decision: GroupDecision
    """What becomes of it."""
    drop_reason: DropReason | None = None
    """Why it was dropped; null otherwise."""
    members: list[Member]
    """One for each attempt, by slot and then by start."""
    mean: float | None = field(default=None, metadata=ANY_NUMBER)
    """Mean reward of those that vote; null when none does."""
    std: float | None = None
    """Standard deviation of those that vote, ddof 1; null below two votes."""
    algorithm: str
    """How advantages were computed."""
    cut: Cut
    """What it depended on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAssembled(Fact):
    """Groups were put in order for one training step."""

    batch_id: Uuid
    """UUID derived from the hash."""
    batch_sha256: str
    """Digest of the ordered members, advantages and configuration."""
    step: int | None = None
    """The step that it is meant for."""
    group_ids: list[Uuid] = field(default_factory=list[Uuid])
    """The groups, in order."""
    trace_ids: list[str] = field(default_factory=list[str])
    """The traces, in order, when it is for SFT."""
    lag_min: int | None = None
    """Smallest policy lag of a token, in versions."""
    lag_max: int | None = None
    """Largest policy lag of a token, in versions."""
    ready_at: datetime | None = None
    """When its last group was decided, UTC."""
    held_s: float | None = None
    """Seconds it then waited for room."""
    cut: Cut
    """What it depended on."""
    low_water: dict[str, int] = field(default_factory=dict[str, int])
    """Where a restart has to read from, by `topic/partition`."""
    model: str | None = None
    """Name of the policy's model, as the run declared it: a restart may read from behind that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRefused(Fact):
    """The trainer didn't train on a batch, which drops all its groups."""

    batch_id: Uuid
    """The batch."""
    step: int | None = None
    """The step that it was taken for."""
    reason: str
    """Which rule it broke: stale, nan, vocabulary."""
    detail: Excerpt | None = None
    """Value, rule and place."""
