"""The loss against values computed by hand, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from trainer.loss import Scores, aggregate, batch_loss, clipped, policy_loss
from trainer.loss_settings import (
    Aggregation,
    Bounds,
    LossSettings,
    Objective,
    OldPolicy,
    RatioLevel,
)

LN2 = 0.6931471805599453


def column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def some_scores(
    current: Sequence[float] = (),
    old: Sequence[float] | None = None,
    rollout: Sequence[float] | None = None,
    **given: Any,
) -> Scores:
    """Scores by probabilities, of one sample whose tokens all count, unless told otherwise."""
    count = len(current)
    logprobs = column(current).log().requires_grad_()
    return Scores(
        current=logprobs,
        rollout=column(rollout or [1.0] * count).log(),
        old=None if old is None else column(old).log(),
        advantages=column(given.pop("advantages", [1.0] * count)),
        mask=torch.tensor(given.pop("mask", [True] * count)),
        samples=torch.tensor(given.pop("samples", [0] * count)),
        sample_count=given.pop("sample_count", 1),
        reference=column(given.pop("reference")).log() if "reference" in given else None,
        **given,
    )


def recomputed(**options: Any) -> LossSettings:
    return LossSettings(old_policy=OldPolicy.RECOMPUTED, **options)


def test_the_ratio_is_clipped_where_the_advantage_would_carry_it_on() -> None:
    settings = LossSettings(clip_low=0.2, clip_high=0.28)
    ratios = column([1.5, 0.5, 1.5, 0.5])
    losses = clipped(ratios, column([1.0, 1.0, -2.0, -2.0]), settings)
    assert_close(losses, column([-1.28, -0.5, 3.0, 1.6]))


def test_dual_clip_bounds_a_large_ratio_only_where_the_advantage_is_negative() -> None:
    settings = LossSettings(clip_high=0.2, dual_clip=3.0)
    losses = clipped(column([5.0, 2.0, 5.0]), column([-2.0, -2.0, 2.0]), settings)
    assert_close(losses, column([6.0, 4.0, -2.4]))


def test_a_clipped_token_has_no_gradient() -> None:
    scores = some_scores([0.3, 0.11], old=[0.2, 0.1], advantages=[3.0, 3.0])
    result = policy_loss(scores, recomputed(clip_high=0.2))
    result.loss_sum.backward()
    assert_close(result.loss_sum.detach(), column([-6.9]).squeeze())  # -3 x (1.2 + 1.1)
    assert_close(scores.current.grad, column([0.0, -3.3]))


@pytest.mark.parametrize(
    ("aggregation", "norm", "total", "count"),
    [
        (Aggregation.TOKEN_MEAN, None, 16.0, 4),
        (Aggregation.SEQ_MEAN_TOKEN_MEAN, None, 12.0, 2),
        (Aggregation.SEQ_MEAN_TOKEN_SUM_NORM, 8, 2.0, 2),
    ],
)
def test_losses_of_tokens_become_one(
    aggregation: Aggregation, norm: int | None, total: float, count: int
) -> None:
    """Samples 0 (1, 2, 3 and a token that doesn't count), 1 (10) and 2 (nothing that counts)."""
    scores = some_scores(
        [0.5] * 6,
        mask=[True, True, True, False, True, False],
        samples=[0, 0, 0, 0, 1, 2],
        sample_count=3,
    )
    losses = column([1.0, 2.0, 3.0, 99.0, 10.0, 99.0])
    settings = LossSettings(aggregation=aggregation, norm_tokens=norm)
    loss_sum, denominator = aggregate(losses, scores, settings)
    assert (loss_sum.item(), denominator.item()) == (total, count)


def test_truncation_weights_by_old_over_rollout_up_to_a_bound() -> None:
    scores = some_scores([0.4, 0.1], rollout=[0.1, 0.2])  # old / rollout: 4, 0.5
    result = policy_loss(scores, LossSettings(truncate_at=2.0))
    assert_close(result.correction.weights, column([2.0, 0.5]))
    assert result.correction.truncated.tolist() == [True, False]
    assert result.loss_sum.item() == pytest.approx(-2.5)


def test_a_token_mask_drops_tokens_and_leaves_the_others_weight() -> None:
    scores = some_scores([0.4, 0.05, 0.15], rollout=[0.1, 0.2, 0.1])  # 4, 0.25, 1.5
    result = policy_loss(scores, LossSettings(token_mask=Bounds(0.5, 2.0)))
    assert_close(result.correction.weights, column([0.0, 0.0, 1.0]))
    assert {why: where.tolist() for why, where in result.correction.dropped.items()} == {
        "token_low": [False, True, False],
        "token_high": [True, False, False],
    }
    assert (result.loss_sum.item(), result.count.item()) == (pytest.approx(-1.0), 3)


def test_a_token_mask_with_truncation_at_its_bound_is_icepop() -> None:
    scores = some_scores([0.4, 0.05, 0.15], rollout=[0.1, 0.2, 0.1])
    settings = LossSettings(token_mask=Bounds(0.5, 2.0), truncate_at=2.0)
    assert_close(policy_loss(scores, settings).correction.weights, column([0.0, 0.0, 1.5]))


def test_a_sequence_mask_drops_samples_by_the_geometric_mean() -> None:
    """Sample 0: ratios 4 and 1/4, mean 1. Sample 1: 2 and 2. Sample 2: 1/2, mean of one token."""
    scores = some_scores(
        [0.4, 0.1, 0.2, 0.4, 0.1, 0.9],
        rollout=[0.1, 0.4, 0.1, 0.2, 0.2, 0.1],
        samples=[0, 0, 1, 1, 2, 2],
        mask=[True] * 5 + [False],
        sample_count=3,
    )
    correction = policy_loss(scores, LossSettings(sequence_mask=Bounds(0.8, 1.5))).correction
    assert_close(correction.weights, column([1.0, 1.0, 0.0, 0.0, 0.0, 1.0]))
    assert correction.dropped["sequence_high"].tolist() == [False, False, True, True, False, False]
    assert correction.dropped["sequence_low"].tolist() == [False] * 4 + [True, False]


def test_gspo_clips_the_ratio_of_the_whole_sample_and_gives_each_token_its_share() -> None:
    """Sample 0: ratios 2 and 1/2 to old, mean 1. Sample 1: 2 and 8, mean 4, clipped."""
    scores = some_scores(
        [0.4, 0.1, 0.2, 0.8],
        old=[0.2, 0.2, 0.1, 0.1],
        samples=[0, 0, 1, 1],
        sample_count=2,
        advantages=[3.0, 3.0, 1.0, 1.0],
    )
    settings = recomputed(
        ratio=RatioLevel.SEQUENCE, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN, clip_high=0.5
    )
    result = policy_loss(scores, settings)
    result.loss_sum.backward()
    assert_close(result.ratio, column([1.0, 1.0, 4.0, 4.0]))
    assert result.loss_sum.item() == pytest.approx(-3.0 - 1.5)
    assert_close(scores.current.grad, column([-1.5, -1.5, 0.0, 0.0]))


def test_kl_to_the_reference_is_k3() -> None:
    """reference / current: 2 and 1/2; k3 is r - 1 - ln r, its gradient 1 - r."""
    scores = some_scores([0.1, 0.4], reference=[0.2, 0.2], advantages=[0.0, 0.0])
    result = policy_loss(scores, LossSettings(kl_coef=0.1))
    result.loss_sum.backward()
    assert result.loss_sum.item() == pytest.approx(0.1 * ((1 - LN2) + (LN2 - 0.5)))
    assert_close(scores.current.grad, column([-0.1, 0.05]))


@pytest.mark.parametrize(
    ("policy", "truncate_at", "ratio", "weight"),
    [
        (OldPolicy.RECOMPUTED, 9.0, 1.1, 1.5),
        (OldPolicy.CURRENT, 9.0, 1.0, 1.65),
        (OldPolicy.ROLLOUT, None, 1.65, 1.0),
    ],
)
def test_three_policies_are_told_apart(
    policy: OldPolicy, truncate_at: float | None, ratio: float, weight: float
) -> None:
    """current / old is 1.1 and old / rollout 1.5."""
    scores = some_scores([0.33], old=[0.3], rollout=[0.2])
    settings = LossSettings(old_policy=policy, truncate_at=truncate_at, clip_high=1.0)
    result = policy_loss(scores, settings)
    result.loss_sum.backward()
    assert_close(result.ratio, column([ratio]))
    assert_close(result.correction.weights, column([weight]))
    assert_close(scores.current.grad, column([-1.65]))


def test_what_the_mask_hides_may_be_anything() -> None:
    whole = some_scores([0.4, 0.2], rollout=[0.2, 0.2], reference=[0.3, 0.2], old=[0.3, 0.2])
    hidden = some_scores(
        [0.4, 0.2, 0.0, 0.5],
        old=[0.3, 0.2, 0.5, 0.0],
        rollout=[0.2, 0.2, 0.0, 0.1],
        reference=[0.3, 0.2, 0.0, 0.0],
        advantages=[1.0, 1.0, math.inf, math.nan],
        mask=[True, True, False, False],
    )
    settings = recomputed(
        kl_coef=0.1,
        truncate_at=2.0,
        sequence_mask=Bounds(0.1, 9.0),
        ratio=RatioLevel.SEQUENCE,
        clip_high=1.0,
    )
    expected, result = policy_loss(whole, settings), policy_loss(hidden, settings)
    assert_close(result.loss_sum, expected.loss_sum)
    expected.loss_sum.backward()
    result.loss_sum.backward()
    assert whole.current.grad is not None
    assert hidden.current.grad is not None
    assert_close(hidden.current.grad[:2], whole.current.grad)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_a_batch_has_one_loss_in_any_number_of_microbatches(aggregation: Aggregation) -> None:
    current, rollout = [0.1, 0.2, 0.3, 0.4, 0.5], [0.3, 0.1, 0.3, 0.2, 0.6]
    norm = 7 if aggregation is Aggregation.SEQ_MEAN_TOKEN_SUM_NORM else None
    settings = LossSettings(aggregation=aggregation, truncate_at=2.0, norm_tokens=norm)
    whole = policy_loss(
        some_scores(current, rollout=rollout, samples=[0, 0, 0, 0, 1], sample_count=2), settings
    )
    parts = [
        policy_loss(some_scores(current[:4], rollout=rollout[:4]), settings),
        policy_loss(some_scores(current[4:], rollout=rollout[4:]), settings),
    ]
    assert_close(sum(part.loss_sum for part in parts), whole.loss_sum)
    assert sum(part.count for part in parts) == whole.count


def test_likelihood_takes_no_notice_of_advantages() -> None:
    scores = some_scores([0.5, 0.25], advantages=[7.0, 0.0], mask=[True, True])
    result = batch_loss(scores, LossSettings(objective=Objective.LIKELIHOOD))
    assert (result.loss_sum.item(), result.count.item()) == (pytest.approx(3 * LN2), 2)


def test_logprobs_that_the_settings_need_must_be_there() -> None:
    with pytest.raises(ValueError, match="recomputed needs the old logprobs"):
        policy_loss(some_scores([0.5]), recomputed())
    with pytest.raises(ValueError, match="needs the reference's logprobs"):
        policy_loss(some_scores([0.5]), LossSettings(kl_coef=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 1.0}, r"clip_low must be in \[0, 1\), got 1.0"),
        ({"clip_high": math.nan}, "clip_high must be at least 0 and finite, got nan"),
        ({"dual_clip": 1.1}, r"dual_clip must be above 1 \+ clip_high = 1.2, got 1.1"),
        ({"truncate_at": 0.0}, "truncate_at must be above 0, got 0.0"),
        ({"kl_coef": -1.0}, "kl_coef must be at least 0 and finite, got -1.0"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got 0.0"),
        ({"ppo_epochs": 0}, "ppo_epochs must be at least 1, got 0"),
        ({"ppo_epochs": 2}, "ppo_epochs 2 needs old_policy recomputed or rollout"),
        ({"aggregation": "mean"}, "aggregation must be one of token_mean, .*, got 'mean'"),
        ({"norm_tokens": 8}, "norm_tokens is for seq_mean_token_sum_norm only, got 8"),
        (
            {"aggregation": Aggregation.SEQ_MEAN_TOKEN_SUM_NORM},
            "needs norm_tokens above 0, got None",
        ),
        (
            {"old_policy": OldPolicy.ROLLOUT, "truncate_at": 2.0},
            "old_policy rollout leaves nothing to correct",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossSettings(**options)


def test_choices_may_be_given_as_words() -> None:
    settings = LossSettings(aggregation="seq_mean_token_mean")  # pyright: ignore[reportArgumentType]
    assert settings.aggregation is Aggregation.SEQ_MEAN_TOKEN_MEAN


def test_bounds_must_be_in_order() -> None:
    with pytest.raises(ValueError, match=r"bounds must have 0 <= low <= high, got \[2.0, 1.0\]"):
        Bounds(2.0, 1.0)
