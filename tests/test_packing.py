"""Samples put together into micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import ANY_SPEED
from trainer.packing import Sample, check, pack, padding_share, plan

LONG = Sample(
    token_ids=[11, 12, 13, 14],
    loss_mask=[0, 0, 1, 1],
    logprobs=[0.0, 0.0, -1.5, -2.5],
    advantage=2.0,
    lags=[0, 0, 1, 3],
)
SHORT = Sample(
    token_ids=[21, 22], loss_mask=[1, 1], logprobs=[-9.0, -0.5], advantage=-1.0, lags=None
)


def test_a_position_is_about_the_token_behind_it() -> None:
    """SHORT's first token is never scored though the policy sampled it: nothing predicts it."""
    batch = pack([SHORT, LONG], [1, 0])
    assert batch.tokens.tolist() == [[11, 12, 13, 14, 21, 22]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.labels.tolist() == [[12, 13, 14, 0, 22, 0]]
    assert batch.mask.tolist() == [False, True, True, False, True, False]
    assert batch.rollout.tolist() == [0.0, -1.5, -2.5, 0.0, -0.5, 0.0]
    assert batch.advantages.tolist() == [2.0, 2.0, 2.0, 2.0, -1.0, -1.0]
    assert batch.lags.tolist() == [0, 1, 3, 0, -1, 0]
    assert batch.samples.tolist() == [0, 0, 0, 0, 1, 1]
    assert (batch.lengths, batch.members, batch.padding) == ((4, 2), (1, 0), 0)


def test_padding_counts_for_nothing_and_is_told() -> None:
    batch = pack([LONG, SHORT], [0, 1], pad_to=4)
    assert batch.tokens.tolist() == [[11, 12, 13, 14, 21, 22, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
    assert batch.mask.tolist()[6:] == [False, False]
    assert batch.lengths == (4, 2, 2)
    assert batch.samples.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert padding_share([batch, pack([LONG, SHORT], [0])]) == 2 / 12


def test_a_microbatch_without_a_sample_is_padding() -> None:
    batch = pack([LONG], [], pad_to=2)
    assert batch.tokens.tolist() == [[0, 0]]
    assert not batch.mask.any()
    assert (batch.lengths, batch.padding) == ((2,), 2)


def test_few_microbatches_of_like_load() -> None:
    assert plan([10, 1, 7, 4, 6], tokens_max=14) == [[[0, 3], [2, 4, 1]]]


def test_ranks_get_the_same_number_of_microbatches() -> None:
    assert plan([5, 5, 5], tokens_max=5, ranks=2) == [[[0], [2]], [[1], []]]


def test_more_ranks_than_samples_leave_some_without() -> None:
    assert plan([3], tokens_max=8, ranks=2) == [[[0]], [[]]]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    tokens_max=st.integers(50, 120),
    ranks=st.integers(1, 4),
)
@ANY_SPEED
def test_every_sample_is_in_one_microbatch_that_holds_it(
    lengths: list[int], tokens_max: int, ranks: int
) -> None:
    planned = plan(lengths, tokens_max, ranks)
    assert len(planned) == ranks
    assert len({len(batches) for batches in planned}) == 1
    batches = [members for rank in planned for members in rank]
    assert sorted(number for members in batches for number in members) == list(range(len(lengths)))
    assert max(sum(lengths[number] for number in members) for members in batches) <= tokens_max


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "a batch must have samples, got none"),
        ([3, 0], "sample 1 must have tokens, got none"),
        ([3, 9, 12], "sample 2 has 12 tokens, more than the 8 of a micro-batch"),
    ],
)
def test_a_batch_that_cant_be_packed_is_refused(lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(lengths, tokens_max=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": [11, 12, 13, 64]}, r"token ids of sample 1 must be in \[0, 64\), got 64"),
        ({"token_ids": [11, -1, 13, 14]}, r"token ids of sample 1 must be in \[0, 64\), got -1"),
        ({"loss_mask": [0]}, "loss_mask of sample 1 must have 4 values, one a token, got 1"),
        ({"logprobs": [0.0] * 5}, "logprobs of sample 1 must have 4 values, one a token, got 5"),
        ({"lags": [1]}, "lags of sample 1 must have 4 values, one a token, got 1"),
    ],
)
def test_a_sample_that_cant_be_trained_on_is_named(change: dict[str, Any], message: str) -> None:
    check([LONG, SHORT], vocab=64)
    with pytest.raises(ValueError, match=message):
        check([SHORT, replace(LONG, **change)], vocab=64)


def test_columns_may_be_of_any_kind() -> None:
    """Batches come as arrays, tests write lists."""
    arrays = Sample(
        torch.tensor([11, 12, 13, 14]).numpy(),
        torch.tensor([0, 0, 1, 1], dtype=torch.uint8).numpy(),
        torch.tensor([0.0, 0.0, -1.5, -2.5]).numpy(),
        2.0,
        torch.tensor([0, 0, 1, 3]).numpy(),
    )
    got, due = pack([arrays], [0]), pack([LONG], [0])
    assert torch.equal(got.tokens, due.tokens)
    assert torch.equal(got.mask, due.mask)
    assert torch.equal(got.rollout, due.rollout)
    assert torch.equal(got.lags, due.lags)
