"""Failures of a request to an engine, each with how far it had come. Pure functions.

A stage is told only where it is known: QUEUE for what the engine refused or held before its
scheduler took it up, DECODE once there are tokens, and UNKNOWN for a connection that broke.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.facts.lists import EngineStage
from producers.engine_calls import Answer
from producers.engine_json import error_text
from producers.engine_types import ContextTooLong, EngineError, EngineGone, Generation
from producers.engine_wire import TOO_LONG

OVERLOADED = (408, 429, 503)
"""Statuses by which an engine refuses a request that it may take later."""


def refused(url: str, answer: Answer, seconds: float) -> EngineError:
    """The error in an answer whose status is not 200."""
    text = error_text(answer.body)
    long = answer.status == 400 and TOO_LONG.search(text) is not None
    early = answer.status < 500 or answer.status in OVERLOADED
    return (ContextTooLong if long else EngineError)(
        f"{url} answered {answer.status}: {text}",
        stage=EngineStage.QUEUE if early else EngineStage.UNKNOWN,
        error_type="ContextTooLong" if long else f"Http{answer.status}",
        http_status=answer.status,
        seconds=seconds,
        retryable=answer.status >= 500 or answer.status in OVERLOADED,
    )


def wrong_answer(url: str, error: ValueError, seconds: float) -> EngineError:
    """An answer of status 200 that breaks the rules; asking again would hide it."""
    return EngineError(
        f"{url} gave a wrong answer: {error}",
        stage=EngineStage.DECODE,
        error_type=type(error).__name__,
        http_status=200,
        seconds=seconds,
    )


def gone(url: str, error: BaseException, seconds: float) -> EngineGone:
    """No connection, or one that broke before the answer was whole."""
    return EngineGone(
        f"{url} is gone: {told(error)}",
        stage=EngineStage.UNKNOWN,
        error_type=type(error).__name__,
        seconds=seconds,
        retryable=True,
    )


def timed_out(
    url: str, timeout_s: float, seconds: float, partial: Generation | None, paused: bool
) -> EngineError:
    """`partial`: what the engine had sampled when it was told to stop; None: it didn't say.
    `paused`: it was holding the request."""
    if paused:
        stage = EngineStage.QUEUE
    elif partial is None:
        stage = EngineStage.UNKNOWN
    else:
        stage = EngineStage.DECODE if partial.token_ids else EngineStage.PREFILL
    return EngineError(
        f"{url} took longer than {timeout_s:g} s (timeout_s){', paused' if paused else ''}",
        stage=stage,
        error_type="Timeout",
        seconds=seconds,
        tokens_so_far=None if partial is None else len(partial.token_ids),
        retryable=True,
    )


def no_slot(url: str, max_connections: int, timeout_s: float, seconds: float) -> EngineError:
    """All requests that this client may have in flight were, for as long as one may take."""
    return EngineError(
        f"{url}: {max_connections} requests (max_connections) were in flight from here for"
        f" {timeout_s:g} s (timeout_s)",
        stage=EngineStage.CLIENT_POOL,
        error_type="ClientPoolExhausted",
        seconds=seconds,
        retryable=True,
    )


def wrong_prompt(url: str, input_ids: Sequence[int], vocabulary: int | None) -> EngineError | None:
    """The error in a prompt that must not be sent; None: there is none. A token outside of the
    vocabulary doesn't fail a request, it ends the whole engine."""
    if not input_ids:
        return _not_sent(f"{url}: input_ids must have a token, got none", "EmptyPrompt")
    low, high = min(input_ids), max(input_ids)
    if low >= 0 and (vocabulary is None or high < vocabulary):
        return None
    limit = "" if vocabulary is None else f", below the vocabulary of {vocabulary}"
    wrong = low if low < 0 else high
    place = list(input_ids).index(wrong)
    return _not_sent(
        f"{url}: input_ids[{place}] must be at least 0{limit}, got {wrong}",
        "TokenOutOfVocabulary",
    )


def told(error: BaseException) -> str:
    """What an exception says, with its type where it says nothing."""
    return str(error) or type(error).__name__


def _not_sent(message: str, error_type: str) -> EngineError:
    return EngineError(message, stage=EngineStage.CLIENT_POOL, error_type=error_type, seconds=0.0)
