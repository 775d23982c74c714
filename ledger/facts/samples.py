"""Facts sampled from a clock: engines and pools, once a second or so."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.facts.base import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSampled(Fact):
    """The state of one engine. It may serve several runs: run_id is the cluster's own."""

    engine: str
    """The engine."""
    policy_version: int | None = None
    """The version that it samples from."""
    gpus: int | None = None
    """GPUs that it holds."""
    kv_used_tokens: int | None = None
    """Tokens in its KV cache."""
    kv_capacity_tokens: int | None = None
    """Tokens that fit."""
    running: int | None = None
    """Requests that run."""
    queued: int | None = None
    """Requests that wait."""
    retracted: int | None = None
    """Requests taken off for lack of KV room, waiting to go on."""
    paused: int | None = None
    """Requests held while it takes new weights."""
    generation_tokens_per_s: float | None = None
    """Tokens generated per second."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Use of one bounded resource."""

    name: str
    """Sandbox slots, HTTP pool, networks."""
    used: int
    """In use."""
    limit: int | None
    """Most at once; null: unbounded."""
    waiting: int
    """Waiting for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSampled(Fact):
    """The state of every pool, and where the trajectories in flight are."""

    pools: list[PoolUse] = field(default_factory=list[PoolUse])
    """One for each pool."""
    in_queue: int | None = None
    """Trajectories that wait to start."""
    in_sandbox_start: int | None = None
    """Trajectories that wait for a sandbox."""
    in_setup: int | None = None
    """Trajectories being set up."""
    in_model: int | None = None
    """Trajectories at the engine."""
    in_tool: int | None = None
    """Trajectories in a command."""
    in_verify: int | None = None
    """Trajectories being scored."""
