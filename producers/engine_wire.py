"""SGLang's HTTP API as pure functions: what is sent, and what an answer means.

Invariant: an answer becomes a Generation only if it is complete and consistent: as many finite
logprobs as tokens, for the same tokens, and version spans that cover them. Anything else is a
WrongAnswer that names the field; a wrong logprob would be trained on without a word.

The shapes are those of SGLang 0.5.23 (`/generate`, `/model_info`, `/server_info`, `/v1/loads`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from ledger.facts import VersionSpan
from producers.engine_json import (
    Json,
    WrongAnswer,
    count,
    count_or_none,
    finite,
    mapping,
    seconds,
    sequence,
)
from producers.engine_types import FinishReason, Generation, Sampling

RID_END = ";"
"""Closes every request's id: the engine aborts all ids that begin with the given one, and without
it the end of request "a-1" would be the end of "a-10" too."""

ROUNDING = 1e-3
"""How far above 0 the logprob of a token that was certain may come out."""

VERSION = re.compile(r"[0-9]{1,18}")
TOO_LONG = re.compile(
    r"(longer than|exceeds?) (the model's (maximum )?context length|the maximum allowed length)"
)


def generate_body(
    input_ids: Sequence[int], max_new_tokens: int, sampling: Sampling, rid: str
) -> Json:
    """The body of POST /generate. `ignore_eos` is left alone: it would turn stop tokens off."""
    return {
        "rid": rid,
        "input_ids": list(input_ids),
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": list(sampling.stop_token_ids),
        },
    }


def rid_of(request_id: str) -> str:
    """The engine's id of a request. Raises ValueError for one that could be another's beginning."""
    if not request_id or RID_END in request_id:
        raise ValueError(f"request_id must be text without {RID_END!r}, got {request_id!r}")
    return request_id + RID_END


def read_generation(
    answer: object, *, sent: int, engine: str, model: str | None, request_id: str, client_s: float
) -> Generation:
    """The Generation in an answer of /generate to a prompt of `sent` tokens. Raises WrongAnswer."""
    body = mapping(answer, "the answer")
    meta = mapping(body.get("meta_info"), "meta_info")
    token_ids = _token_ids(body.get("output_ids"))
    finish_reason = _finish_reason(meta)
    never_ran = finish_reason == "abort" and not token_ids and "prompt_tokens" not in meta
    prompt_tokens = sent if never_ran else count(meta, "prompt_tokens")
    if prompt_tokens != sent:
        raise WrongAnswer(f"meta_info.prompt_tokens must be the {sent} sent, got {prompt_tokens}")
    logprobs = _logprobs(meta.get("output_token_logprobs"), token_ids)
    spans = _version_spans(meta, len(token_ids))
    retractions = count_or_none(meta, "num_retractions")
    whole = len(meta.get("weight_versions") or ()) <= 1 and not retractions
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        version_spans=spans,
        finish_reason=finish_reason,
        engine=engine,
        model=model,
        request_id=request_id,
        prompt_tokens=prompt_tokens,
        cached_tokens=count_or_none(meta, "cached_tokens"),
        client_s=client_s,
        engine_s=seconds(meta, "e2e_latency"),
        # An engine that aborts what waits in its queue tells no more than how long that was.
        queue_s=seconds(meta, "e2e_latency" if never_ran else "queue_time"),
        first_token_s=seconds(meta, "first_token_latency"),
        paused_s=_held_s(meta) if whole else None,
        retractions=retractions,
    )


def policy_version(told: object) -> int | None:
    """The policy version that the engine's weight version means: what was published as `str(n)`.

    None, unknown, for any other text: an engine says "default" until it is told a version, be it
    started on the initial weights or restarted on later ones."""
    return int(told) if isinstance(told, str) and VERSION.fullmatch(told) else None


def _token_ids(value: object) -> tuple[int, ...]:
    ids = sequence(value, "output_ids")
    for token in ids:
        if type(token) is not int or token < 0:
            raise WrongAnswer(f"output_ids must be token ids, got {token!r}")
    return tuple(ids)


def _logprobs(value: object, token_ids: tuple[int, ...]) -> tuple[float, ...]:
    """From triples [logprob, token id, text]. A logprob is at most 0, give or take rounding."""
    if value is None:
        raise WrongAnswer("meta_info.output_token_logprobs must be there, got none")
    triples = sequence(value, "meta_info.output_token_logprobs")
    if len(triples) != len(token_ids):
        raise WrongAnswer(
            f"meta_info.output_token_logprobs must be {len(token_ids)}, one a token,"
            f" got {len(triples)}"
        )
    found: list[float] = []
    for triple, token in zip(triples, token_ids, strict=True):
        place = f"meta_info.output_token_logprobs[{len(found)}]"
        if not isinstance(triple, list) or len(cast(list[Any], triple)) < 2:
            raise WrongAnswer(f"{place} must be [logprob, token id, text], got {triple!r}")
        told, of_token = cast(list[Any], triple)[:2]
        if of_token != token:
            raise WrongAnswer(f"{place} must be of token {token}, got one of {of_token!r}")
        logprob = finite(told)
        if logprob is None or logprob > ROUNDING:
            raise WrongAnswer(f"{place} must be finite and at most 0, got {told!r}")
        found.append(logprob)
    return tuple(found)


def _version_spans(meta: Json, tokens: int) -> tuple[VersionSpan, ...]:
    """Empty, unknown, when any token's version is: the oldest version of a turn is what staleness
    is judged by, and a part of the spans would show one that is too new."""
    told = meta.get("weight_versions")
    if told is None:  # an engine of one version all through may leave the list out
        told = [{"version": meta.get("weight_version"), "start": 0, "end": tokens}]
    spans: list[VersionSpan] = []
    known = True
    end = 0
    for item in sequence(told, "meta_info.weight_versions"):
        span = mapping(item, "meta_info.weight_versions[]")
        start, stop = count(span, "start"), count(span, "end")
        if start != end or stop < start:
            raise WrongAnswer(f"meta_info.weight_versions must follow one another, got {told!r}")
        end = stop
        version = policy_version(span.get("version"))
        known = known and version is not None
        if version is not None and stop > start:
            spans.append(VersionSpan(version, start, stop))
    if end != tokens:
        raise WrongAnswer(f"meta_info.weight_versions must cover {tokens} tokens, got {told!r}")
    return tuple(spans) if known else ()


def _finish_reason(meta: Json) -> FinishReason:
    reason = mapping(meta.get("finish_reason"), "meta_info.finish_reason").get("type")
    if reason not in ("stop", "length", "abort"):
        raise WrongAnswer(
            f"meta_info.finish_reason.type must be stop, length or abort, got {reason!r}"
        )
    return cast(FinishReason, reason)


def _held_s(meta: Json) -> float | None:
    """From arrival until the scheduler got it: an engine that is paused, or loads weights without
    a pause, keeps requests in front of the scheduler."""
    arrived = finite(meta.get("request_received_ts"))
    taken_up = finite(meta.get("api_server_dispatch_finish_ts"))
    return None if arrived is None or taken_up is None else max(taken_up - arrived, 0.0)
