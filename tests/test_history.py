"""The tokens of an attempt: payloads are deltas; those of a segment are its whole sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.tokens import Tokens
from producers.history import History


def test_a_turns_payload_is_what_came_since_the_turn_before() -> None:
    history = History([0, 1, 6])
    assert history.sampled([17], [-0.5]) == Tokens(
        ids=[0, 1, 6, 17], loss_mask=[0, 0, 0, 1], logprobs=[0.0, 0.0, 0.0, -0.5]
    )
    history.observe([1, 10, 16])
    assert history.ids == [0, 1, 6, 17, 1, 10, 16]
    assert history.sampled([5, 9], [-1.0, -2.0]) == Tokens(
        ids=[1, 10, 16, 5, 9], loss_mask=[0, 0, 0, 1, 1], logprobs=[0.0, 0.0, 0.0, -1.0, -2.0]
    )


def test_a_request_that_was_cut_off_before_its_first_token_has_its_prompt_in_its_payload() -> None:
    history = History([0, 1])
    assert history.sampled([], []) == Tokens(ids=[0, 1], loss_mask=[0, 0], logprobs=[0.0, 0.0])
    assert history.sampled([7], [-0.1]) == Tokens(ids=[7], loss_mask=[1], logprobs=[-0.1])


def test_a_rewritten_history_begins_a_segment_and_says_why_once() -> None:
    history = History([0, 1])
    history.sampled([7], [-0.1])
    history.restart([0, 9], "the template drops earlier thoughts")
    assert (history.segment, history.segment_reason) == (
        1,
        "the template drops earlier thoughts",
    )
    assert history.sampled([8], [-0.2]).ids == [0, 9, 8]
    assert (history.segment, history.segment_reason) == (1, None)


IDS = st.lists(st.integers(0, 31), max_size=4)


@given(prompt=IDS, turns=st.lists(st.tuples(IDS, IDS)))
def test_the_payloads_of_a_segment_are_the_sequence_that_the_engine_saw(
    prompt: list[int], turns: list[tuple[list[int], list[int]]]
) -> None:
    history = History(prompt)
    payloads: list[int] = []
    mask: list[int] = []
    for completion, observation in turns:
        seen = list(history.ids)
        payload = history.sampled(completion, [-1.0] * len(completion))
        payloads += payload.ids
        mask += payload.loss_mask
        assert payloads == [*seen, *completion]
        history.observe(observation)
    assert sum(mask) == sum(len(completion) for completion, _ in turns)
