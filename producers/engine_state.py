"""What an engine says of itself, as pure functions: whether it can be used, and its load.

Invariant: an engine whose version or settings would make tokens or logprobs other than what was
asked for is refused before the first request.
"""

from __future__ import annotations

import re

from producers.engine_json import (
    Json,
    WrongAnswer,
    count_or_none,
    mapping,
    sequence,
    total_count,
    total_rate,
)
from producers.engine_types import EngineInfo, EngineLoad, Sampling
from producers.engine_wire import generate_body, policy_version, rid_of

VERSION_MIN, VERSION_BELOW = (0, 5, 23), (0, 6, 0)
SUPPORTED = ">= 0.5.23 and < 0.6"
VOCABULARY = re.compile(r"valid range is \[0, (\d+)\)")


def read_info(
    url: str, server: object, model: object, models: object, vocab_size: int | None
) -> EngineInfo:
    """The EngineInfo in answers of /server_info, /model_info and /v1/models. Raises WrongAnswer
    where an answer isn't one of a server that this client can use."""
    told = mapping(server, "server_info")
    _check_version(told.get("version"))
    of_model = mapping(model, "model_info")
    _check_settings(told, of_model)
    cards = sequence(mapping(models, "v1/models").get("data") or [{}], "v1/models.data")
    states = sequence(told.get("internal_states") or [{}], "server_info.internal_states")
    state = mapping(states[0], "server_info.internal_states[0]")
    ranks = count_or_none(told, "dp_size") or 1
    capacity = count_or_none(told, "max_total_num_tokens")
    running = count_or_none(state, "effective_max_running_requests_per_dp")
    return EngineInfo(
        url=url,
        version=told["version"],
        model=str(of_model.get("served_model_name") or of_model.get("model_path")),
        context_length=count_or_none(mapping(cards[0], "v1/models.data[0]"), "max_model_len"),
        kv_capacity_tokens=None if capacity is None else capacity * ranks,
        max_running_requests=None if running is None else running * ranks,
        vocab_size=vocab_size,
        policy_version=policy_version(of_model.get("weight_version")),
    )


def read_load(loads: object, model_info: object) -> EngineLoad:
    """The EngineLoad in answers of /v1/loads and /model_info, all its data-parallel ranks together.
    Raises WrongAnswer."""
    ranks = [
        mapping(rank, "loads[]") for rank in sequence(mapping(loads, "loads").get("loads"), "loads")
    ]
    queues = [mapping(rank.get("queues") or {}, "loads[].queues") for rank in ranks]
    return EngineLoad(
        policy_version=policy_version(mapping(model_info, "model_info").get("weight_version")),
        kv_used_tokens=total_count(ranks, "num_used_tokens"),
        kv_capacity_tokens=total_count(ranks, "max_total_num_tokens"),
        running=total_count(ranks, "num_running_reqs"),
        queued=total_count(ranks, "num_waiting_reqs"),
        retracted=total_count(queues, "retracted"),
        paused=total_count(queues, "paused"),
        generation_tokens_per_s=total_rate(ranks, "gen_throughput"),
    )


def vocabulary_body() -> Json:
    """A request that every engine refuses in front of its scheduler, naming its vocabulary. It is
    told nowhere else, and a prompt with a token outside of it ends the engine."""
    body = generate_body([0], 1, Sampling(), rid_of("vocabulary"))
    return body | {"token_ids_logprob": [2**31]}


def vocabulary_size(refusal: str) -> int | None:
    """The size that the refusal of `vocabulary_body` names."""
    found = VOCABULARY.search(refusal)
    return int(found[1]) if found else None


def _check_version(version: object) -> None:
    number = re.match(r"(\d+)\.(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if number is None:
        raise WrongAnswer(f"server_info.version must be one of SGLang's, got {version!r}")
    if not VERSION_MIN <= tuple(map(int, number.groups())) < VERSION_BELOW:
        raise WrongAnswer(f"SGLang must be {SUPPORTED}, got {version}")


def _check_settings(server: Json, model: Json) -> None:
    """Settings of a server that would make its tokens or logprobs other than what was asked for."""
    if model.get("is_generation") is not True:
        raise WrongAnswer(
            f"the model must be one that generates, got is_generation={model.get('is_generation')}"
        )
    if server.get("allow_auto_truncate"):
        raise WrongAnswer("--allow-auto-truncate must be off: it would shorten prompts silently")
    if (preferred := model.get("preferred_sampling_params")) is not None:
        raise WrongAnswer(f"--preferred-sampling-params must not be given, got {preferred!r}")
    if (mode := server.get("disaggregation_mode")) not in (None, "null"):
        raise WrongAnswer(f"--disaggregation-mode must be null, got {mode!r}: ask its router")
