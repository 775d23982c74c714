"""Answers as SGLang 0.5.23 gives them, from its own wire, with the fields that are not read left in
where they show the shape."""

from __future__ import annotations

import copy
from typing import Any

ANSWER: dict[str, Any] = {
    "output_ids": [16, 11, 1],
    "meta_info": {
        "id": "a-1;",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 4,
        "weight_version": "3",
        "num_retractions": 0,
        "forward_entry_time": 1795988709.8390522,
        "prefill_finished_time": 1795988709.8595088,
        "queue_time": 0.0013808590010739863,
        "input_token_logprobs": [],
        "output_token_logprobs": [
            [-3.2826826572418213, 16, None],
            [-3.556486129760742, 11, None],
            [-3.658267021179199, 1, None],
        ],
        "output_token_logprobs_length": 3,
        "completion_tokens": 3,
        "cached_tokens": 3,
        "weight_versions": [{"version": "3", "start": 0, "end": 3}],
        "cached_tokens_details": {"device": 3, "host": 0},
        "dp_rank": None,
        "e2e_latency": 0.04769592599950556,
        "request_received_ts": 1795988709.75,
        "first_token_latency": 0.024569464671003516,
        "api_server_dispatch_finish_ts": 1795988711.25,
        "request_finished_ts": 1795988709.882635,
    },
}
SERVER_INFO: dict[str, Any] = {
    "model_path": "/models/tiny",
    "context_length": None,
    "dp_size": 2,
    "allow_auto_truncate": False,
    "disaggregation_mode": "null",
    "weight_version": "default",
    "status": "ready",
    "max_total_num_tokens": 4096,
    "max_req_input_len": 250,
    "internal_states": [{"effective_max_running_requests_per_dp": 64}],
    "version": "0.5.23",
}
MODEL_INFO: dict[str, Any] = {
    "model_path": "/models/tiny",
    "served_model_name": "tiny",
    "is_generation": True,
    "preferred_sampling_params": None,
    "weight_version": "3",
}
MODELS: dict[str, Any] = {
    "object": "list",
    "data": [{"id": "tiny", "object": "model", "max_model_len": 256}],
}
LOADS: dict[str, Any] = {
    "version": "0.5.23",
    "loads": [
        {
            "dp_rank": rank,
            "num_running_reqs": 3 + rank,
            "num_waiting_reqs": 1,
            "num_used_tokens": 700,
            "max_total_num_tokens": 4096,
            "token_usage": 0.17,
            "gen_throughput": 120.5,
            "queues": {"waiting": 1, "grammar": 0, "paused": 0, "retracted": 2},
        }
        for rank in (0, 1)
    ],
}


def changed(answer: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the field at `path` ("meta_info.queue_time", "loads.0.queues") set to `value`."""
    whole = copy.deepcopy(answer)
    place: Any = whole
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        place = place[step]
    place[last] = value
    return whole


def without(answer: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy without the field at `path`."""
    whole = copy.deepcopy(answer)
    place: Any = whole
    *way, last = path.split(".")
    for step in way:
        place = place[step]
    del place[last]
    return whole
