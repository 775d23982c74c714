"""What an engine is asked and what it answers, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ledger.facts import VersionSpan
from ledger.facts.lists import EngineStage

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Logprobs are of the distribution at this temperature over the whole
    vocabulary: with `top_p` or `top_k` the engine doesn't renormalise them."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus; 1: off."""
    top_k: int = -1
    """Most likely tokens to draw from; -1: all."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a generation, beside the model's own EOS; the one that did is part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine sampled. None: it didn't say."""

    token_ids: tuple[int, ...]
    """(completion,) in the order sampled."""
    logprobs: tuple[float, ...]
    """(completion,) of the sampled tokens, nats, under the version that sampled each."""
    version_spans: tuple[VersionSpan, ...]
    """Which policy version sampled which tokens; they cover all of them, or there are none."""
    finish_reason: FinishReason
    """abort: cut off from outside; what was sampled until then is here."""
    engine: str
    """URL of the engine."""
    model: str | None
    """The model's name by the engine's account; None before `check`."""
    request_id: str
    """As the caller gave it; in the engine's own log it has a `;` behind."""
    prompt_tokens: int
    """Length of the prompt, cached tokens included."""
    cached_tokens: int | None
    """Of these, tokens that the prefix cache held."""
    client_s: float
    """Seconds from request to answer by the client, the wait in its own pool included."""
    engine_s: float | None
    """The same, by the engine."""
    queue_s: float | None
    """Of these, seconds in the engine's queue, after a retraction once more."""
    first_token_s: float | None
    """Seconds from request to the first token, by the engine."""
    paused_s: float | None
    """Seconds that the engine, paused or loading weights, held the request back before taking it
    up. None where it was interrupted later, too: the engine gives no time of that."""
    retractions: int | None
    """How often it was taken off, for lack of KV room or to change weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine is. None: it didn't say."""

    url: str
    """Where it listens."""
    version: str
    """Of SGLang."""
    model: str
    """The model's name by the engine's account."""
    context_length: int | None
    """Most tokens of prompt and completion together."""
    kv_capacity_tokens: int | None
    """Tokens that fit into its KV cache, all data-parallel ranks together."""
    max_running_requests: int | None
    """Most requests that it runs at once, all ranks together."""
    vocab_size: int | None
    """Token ids are below this."""
    policy_version: int | None
    """The version that it samples from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The state of an engine at one time: what the fact engine_sampled says. None: not told."""

    policy_version: int | None
    """The version that it samples from."""
    kv_used_tokens: int | None
    """Tokens in its KV cache that requests hold."""
    kv_capacity_tokens: int | None
    """Tokens that fit."""
    running: int | None
    """Requests that run."""
    queued: int | None
    """Requests that wait."""
    retracted: int | None
    """Requests taken off for lack of KV room."""
    paused: int | None
    """Requests held while it takes new weights."""
    generation_tokens_per_s: float | None
    """Tokens generated per second."""


class Health(StrEnum):
    """Whether an engine can be sent requests."""

    READY = "ready"
    """It takes requests."""
    PAUSED = "paused"
    """It is there and takes none for now: weights are being updated, or it is starting."""
    DEAD = "dead"
    """It doesn't answer."""


class EngineError(Exception):
    """A request to an engine failed; the message names the engine and what it said."""

    def __init__(
        self,
        message: str,
        *,
        stage: EngineStage,
        error_type: str,
        seconds: float,
        http_status: int | None = None,
        tokens_so_far: int | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.stage = stage
        """How far the request had come."""
        self.error_type = error_type
        """Raw type of the error."""
        self.seconds = seconds
        """Seconds until it failed."""
        self.http_status = http_status
        """Status of the answer; None: there was none."""
        self.tokens_so_far = tokens_so_far
        """Tokens generated before it failed; None: unknown."""
        self.retryable = retryable
        """Whether the same request may succeed later, or at another engine."""


class ContextTooLong(EngineError):
    """The prompt, or the prompt and what it asks for, exceeds the engine's context."""


class EngineGone(EngineError):
    """No connection, a dropped one, or no engine alive: another engine may serve."""


class EngineRefused(ValueError):
    """An engine can't be used; the message has the value, the rule and the URL."""
