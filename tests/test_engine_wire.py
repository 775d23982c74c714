"""What an engine's answers mean, on answers as it gives them; no server is needed."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.facts import VersionSpan
from ledger.facts.lists import EngineStage
from producers import engine_failures as failures
from producers.engine import ContextTooLong, EngineError, Generation, Sampling
from producers.engine_calls import Answer
from producers.engine_json import WrongAnswer, error_text
from producers.engine_state import read_info, read_load, vocabulary_size
from producers.engine_wire import generate_body, policy_version, read_generation, rid_of
from tests.builders import ANY_SPEED
from tests.engine_answers import (
    ANSWER,
    LOADS,
    MODEL_INFO,
    MODELS,
    SERVER_INFO,
    changed,
    without,
)

URL = "http://127.0.0.1:30000"


def read(answer: Any) -> Generation:
    return read_generation(
        answer, sent=4, engine=URL, model="tiny", request_id="a-1", client_s=0.05
    )


def spans(*versions: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"version": name, "start": start, "end": end} for name, start, end in versions]


def test_an_answer_becomes_tokens_logprobs_and_what_the_engine_says_of_them() -> None:
    assert read(ANSWER) == Generation(
        token_ids=(16, 11, 1),
        logprobs=(-3.2826826572418213, -3.556486129760742, -3.658267021179199),
        version_spans=(VersionSpan(3, 0, 3),),
        finish_reason="length",
        engine=URL,
        model="tiny",
        request_id="a-1",
        prompt_tokens=4,
        cached_tokens=3,
        client_s=0.05,
        engine_s=0.04769592599950556,
        queue_s=0.0013808590010739863,
        first_token_s=0.024569464671003516,
        paused_s=1.5,
        retractions=0,
    )


def test_weights_that_changed_in_between_give_a_span_each_and_no_paused_time() -> None:
    told = spans(("2", 0, 1), ("3", 1, 3))
    generation = read(changed(ANSWER, "meta_info.weight_versions", told))
    assert generation.version_spans == (VersionSpan(2, 0, 1), VersionSpan(3, 1, 3))
    assert generation.paused_s is None


def test_a_request_aborted_in_the_queue_spent_all_its_time_there() -> None:
    meta = {
        "id": "a-1;",
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "0",
        "e2e_latency": 0.07,
        "weight_versions": spans(("0", 0, 0)),
        "output_token_logprobs": [],
        "completion_tokens": 0,
    }
    generation = read({"text": "", "output_ids": [], "meta_info": meta})
    assert (generation.token_ids, generation.finish_reason) == ((), "abort")
    assert (generation.prompt_tokens, generation.cached_tokens) == (4, None)
    assert (generation.engine_s, generation.queue_s) == (0.07, 0.07)


@pytest.mark.parametrize(
    "told", [spans(("default", 0, 3)), spans(("default", 0, 2), ("3", 2, 3)), spans(("v3", 0, 3))]
)
def test_one_unknown_version_makes_all_spans_unknown(told: list[dict[str, Any]]) -> None:
    assert read(changed(ANSWER, "meta_info.weight_versions", told)).version_spans == ()


def test_an_answer_without_a_list_of_versions_has_the_one_that_it_names() -> None:
    assert read(without(ANSWER, "meta_info.weight_versions")).version_spans == (
        VersionSpan(3, 0, 3),
    )


@pytest.mark.parametrize(
    ("told", "version"),
    [("0", 0), ("17", 17), ("default", None), ("v7", None), ("-1", None), ("٣", None), (7, None),
     (None, None), ("9" * 5000, None)],
)  # fmt: skip
def test_a_weight_version_is_a_policy_version_when_it_is_a_number(
    told: object, version: int | None
) -> None:
    assert policy_version(told) == version


def test_an_engine_without_metrics_leaves_times_unknown() -> None:
    names = ("queue_time", "first_token_latency", "request_received_ts", "e2e_latency")
    answer = ANSWER
    for name in names:
        answer = without(answer, f"meta_info.{name}")
    generation = read(answer)
    assert (generation.queue_s, generation.first_token_s, generation.paused_s) == (None,) * 3
    assert generation.engine_s is None


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("output_ids", [16, 11], "output_token_logprobs must be 2, one a token, got 3"),
        ("output_ids", [16, 11, 1.0], r"output_ids must be token ids, got 1\.0"),
        (
            "output_ids",
            [16, 12, 1],
            r"logprobs\[1\] must be of token 12, got one of 11",
        ),
        ("output_ids", "16", "output_ids must be a list"),
        ("meta_info.output_token_logprobs", None, "output_token_logprobs must be there, got none"),
        ("meta_info.output_token_logprobs.0.0", None, r"logprobs\[0\] must be finite .* got None"),
        (
            "meta_info.output_token_logprobs.2.0",
            math.nan,
            r"\[2\] must be finite.* got nan",
        ),
        (
            "meta_info.output_token_logprobs.2.0",
            -math.inf,
            "finite and at most 0, got -inf",
        ),
        ("meta_info.output_token_logprobs.2.0", 0.5, r"must be finite and at most 0, got 0\.5"),
        ("meta_info.prompt_tokens", 3, "prompt_tokens must be the 4 sent, got 3"),
        ("meta_info.weight_versions", spans(("3", 0, 2)), "must cover 3 tokens"),
        ("meta_info.weight_versions", spans(("2", 0, 1), ("3", 2, 3)), "must follow one another"),
        ("meta_info.finish_reason", None, "finish_reason must be an object, got 'None'"),
        ("meta_info.finish_reason.type", "error", "must be stop, length or abort, got 'error'"),
    ],
)
def test_an_inconsistent_answer_is_refused_with_the_field(
    path: str, value: Any, complaint: str
) -> None:
    with pytest.raises(WrongAnswer, match=complaint):
        read(changed(ANSWER, path, value))


def _paths(value: Any, way: str = "") -> list[str]:
    """The paths of all fields of `value`, objects and lists included."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[str] = []
    for step, inner in steps:
        path = f"{way}.{step}" if way else str(step)
        found += [path, *(_paths(inner, path) if isinstance(inner, dict | list) else [])]
    return found


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@ANY_SPEED
@given(st.sampled_from(_paths(ANSWER)), ANY_JSON)
def test_whatever_a_field_holds_the_answer_is_consistent_or_refused(path: str, value: Any) -> None:
    before = copy.deepcopy(ANSWER)
    try:
        generation = read(changed(ANSWER, path, value))
    except WrongAnswer:
        return
    finally:
        assert before == ANSWER
    assert len(generation.logprobs) == len(generation.token_ids)
    assert all(math.isfinite(each) for each in generation.logprobs)
    ends = [0, *(span.end for span in generation.version_spans)]
    assert [span.start for span in generation.version_spans] == ends[:-1]
    assert not generation.version_spans or ends[-1] == len(generation.token_ids)


@ANY_SPEED
@given(ANY_JSON)
def test_what_is_no_answer_at_all_is_refused(answer: Any) -> None:
    with pytest.raises(WrongAnswer):
        read(answer)
    assert isinstance(error_text(answer), str)


def test_a_request_asks_for_these_tokens_and_their_logprobs() -> None:
    assert generate_body((3, 1, 4), 16, Sampling(0.7, stop_token_ids=(9,)), "a-1;") == {
        "rid": "a-1;",
        "input_ids": [3, 1, 4],
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": 16,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": -1,
            "stop_token_ids": [9],
        },
    }


def test_no_request_id_is_the_beginning_of_another() -> None:
    assert not rid_of("a-10").startswith(rid_of("a-1"))
    for wrong in ("", "a;b"):
        with pytest.raises(ValueError, match="request_id must be text without ';', got"):
            rid_of(wrong)


def test_an_engine_is_what_its_answers_say_for_all_its_ranks() -> None:
    info = read_info(URL, SERVER_INFO, MODEL_INFO, MODELS, 32)
    assert (info.version, info.model, info.vocab_size) == ("0.5.23", "tiny", 32)
    assert (info.context_length, info.kv_capacity_tokens) == (256, 8192)
    assert (info.max_running_requests, info.policy_version) == (128, 3)


@pytest.mark.parametrize(
    ("server", "model", "complaint"),
    [
        (changed(SERVER_INFO, "version", "0.5.9"), MODEL_INFO,
         r"SGLang must be >= 0\.5\.23 and < 0\.6, got 0\.5\.9"),
        (changed(SERVER_INFO, "version", "0.6.0"), MODEL_INFO, r"got 0\.6\.0"),
        (without(SERVER_INFO, "version"), MODEL_INFO, "version must be one of SGLang's, got None"),
        (changed(SERVER_INFO, "allow_auto_truncate", True), MODEL_INFO, "would shorten prompts"),
        (changed(SERVER_INFO, "disaggregation_mode", "prefill"), MODEL_INFO, "got 'prefill'"),
        (SERVER_INFO, changed(MODEL_INFO, "is_generation", False), "must be one that generates"),
        (SERVER_INFO, changed(MODEL_INFO, "preferred_sampling_params", {"top_k": 1}), "'top_k': 1"),
    ],
)  # fmt: skip
def test_an_engine_that_would_sample_otherwise_is_refused(
    server: Any, model: Any, complaint: str
) -> None:
    with pytest.raises(WrongAnswer, match=complaint):
        read_info(URL, server, model, MODELS, None)


def test_the_load_is_that_of_all_ranks_together() -> None:
    load = read_load(LOADS, MODEL_INFO)
    assert (load.running, load.queued, load.retracted, load.paused) == (7, 2, 4, 0)
    assert (load.kv_used_tokens, load.kv_capacity_tokens) == (1400, 8192)
    assert (load.generation_tokens_per_s, load.policy_version) == (241.0, 3)


def test_what_one_rank_does_not_tell_is_unknown_for_all() -> None:
    load = read_load(changed(LOADS, "loads.1.num_running_reqs", None), MODEL_INFO)
    assert (load.running, load.queued) == (None, 2)


@pytest.mark.parametrize(
    "text",
    [
        "The input (288 tokens) is longer than the model's context length (256 tokens).",
        "Requested token count exceeds the model's maximum context length of 256 tokens. You",
        "Input length (252 tokens) exceeds the maximum allowed length (250 tokens). Use a shorter",
    ],
)
def test_each_of_the_three_ways_to_say_too_long_is_known(text: str) -> None:
    error = failures.refused(URL, Answer(400, {"error": {"message": text}}), 0.1)
    assert isinstance(error, ContextTooLong)
    assert not error.retryable
    assert text in str(error)


@pytest.mark.parametrize(
    ("status", "body", "stage", "retryable", "text"),
    [
        (400, {"error": {"message": "top_k must be -1"}}, "queue", False, "400: top_k must be -1"),
        (400, {"error": "unknown field `x`"}, "queue", False, "400: unknown field `x`"),
        (400, {"object": "error", "message": "1 validation error"}, "queue", False, "1 validation"),
        (404, {"detail": "Not Found"}, "queue", False, "404: Not Found"),
        (503, {"detail": "The request queue is full."}, "queue", True, "queue is full"),
        (429, "slow down", "queue", True, "429: slow down"),
        (500, "Internal Server Error", "unknown", True, "500: Internal Server Error"),
    ],
)
def test_a_refusal_says_how_far_the_request_came_and_whether_to_try_again(
    status: int, body: Any, stage: str, retryable: bool, text: str
) -> None:
    error = failures.refused(URL, Answer(status, body), 0.1)
    assert type(error) is EngineError
    assert (error.stage, error.retryable, error.http_status) == (stage, retryable, status)
    assert text in str(error)
    assert len(str(failures.refused(URL, Answer(400, "x" * 10**6), 0.1))) < 2000


def test_a_prompt_that_would_end_the_engine_is_found() -> None:
    assert failures.wrong_prompt(URL, [0, 31], 32) is None
    assert failures.wrong_prompt(URL, [0, 31], None) is None
    for prompt, text in (
        ([], "must have a token"),
        ([3, 32], r"input_ids\[1\] must be at least 0, below the vocabulary of 32, got 32"),
        ([-1, 32], r"input_ids\[0\] must be at least 0, .* got -1"),
    ):
        error = failures.wrong_prompt(URL, prompt, 32)
        assert error is not None
        assert error.stage is EngineStage.CLIENT_POOL
        with pytest.raises(EngineError, match=text):
            raise error


def test_the_vocabulary_is_read_from_a_refusal() -> None:
    told = (
        "token_ids_logprob contains out-of-vocabulary token id 2147483648; valid range is [0, 32)."
    )
    assert vocabulary_size(told) == 32
    assert vocabulary_size("top_k must be -1") is None
