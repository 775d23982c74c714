"""Facts about turns at the engine and commands in the sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.facts.base import ANY_NUMBER, Excerpt, TrajectoryFact
from ledger.facts.lists import EngineStage


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Completion tokens that one policy version sampled."""

    policy_version: int
    """The version."""
    start: int
    """First completion token, from 0."""
    end: int
    """Behind the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFact(TrajectoryFact):
    """A fact about one request to the engine."""

    turn_no: int
    """From 0 in the trajectory."""
    segment: int = 0
    """From 0; the next one where a prompt doesn't extend the tokens before it."""
    engine: str | None = None
    """Address or name of the engine."""
    model: str | None = None
    """The model's name by the engine's account."""
    request_id: str | None = None
    """The engine's id of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCompleted(TurnFact):
    """The engine answered."""

    prompt_tokens: int | None = None
    """Tokens of the prompt, cached ones included; null: unknown to an importer."""
    cached_tokens: int | None = None
    """Of these, tokens that the engine's prefix cache held."""
    completion_tokens: int | None = None
    """Tokens generated."""
    client_s: float | None = None
    """Seconds from request to answer, by the client."""
    engine_s: float | None = None
    """The same, by the engine."""
    queue_s: float | None = None
    """Of these, seconds in the engine's queue."""
    first_token_s: float | None = None
    """Seconds from request to the first token, by the engine."""
    paused_s: float | None = None
    """Seconds that the engine was paused in between."""
    cost_usd: float | None = None
    """Price of the request, where known."""
    finish_reason: str | None = None
    """Why generation ended, in the engine's words."""
    retractions: int | None = None
    """How often the engine took the request off for lack of KV room."""
    version_spans: list[VersionSpan] = field(default_factory=list[VersionSpan])
    """Which policy versions sampled which completion tokens; empty: unknown."""
    tokens_sha256: str | None = None
    """Digest of the turn's payload in topic `tokens`; null: none was sent."""
    segment_reason: str | None = None
    """Why a new segment begins here; null: it doesn't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed(TurnFact):
    """A request to the engine failed."""

    stage: EngineStage
    """How far it had come."""
    error_type: str
    """Raw type of the error."""
    error: Excerpt | None = None
    """The error's text."""
    http_status: int | None = None
    """Status of the answer, where there was one."""
    seconds: float | None = None
    """Seconds until it failed."""
    tokens_so_far: int | None = None
    """Tokens generated before it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallCompleted(TrajectoryFact):
    """A command in the sandbox ended, whatever became of it."""

    turn_no: int
    """The turn that asked for it."""
    tool_call_no: int
    """From 0 in the trajectory."""
    sandbox_id: str | None = None
    """Where it ran."""
    name: str
    """Name of the tool."""
    arguments: Excerpt | None = None
    """What the policy passed to it."""
    wall_s: float | None = None
    """Seconds by the client."""
    sandbox_s: float | None = None
    """Seconds inside the sandbox; the difference is the tunnel."""
    exit_code: int | None = field(default=None, metadata=ANY_NUMBER)
    """Null: it has none."""
    timed_out: bool | None = None
    """Whether its time limit ended it."""
    output: Excerpt | None = None
    """What it printed."""
    error_type: str | None = None
    """Raw type of the error when the call itself failed."""
    error: Excerpt | None = None
    """The error's text."""
