"""Health figures of a step against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.test_loss import column, recomputed, some_scores
from trainer.loss import batch_loss, policy_loss
from trainer.loss_settings import Bounds, LossSettings, Objective
from trainer.metrics import add, measure, summarise

LN2 = math.log(2)


def test_figures_of_a_small_batch() -> None:
    """Two tokens of lag 0, one of lag 3 and one of unknown lag; one that doesn't count.

    current / old: 1.5, 0.5, 5, 1.    old / rollout: 2, 0.25, 1, 1."""
    scores = some_scores(
        [0.6, 0.05, 0.5, 0.1, 0.9],
        old=[0.4, 0.1, 0.1, 0.1, 0.1],
        rollout=[0.2, 0.4, 0.1, 0.1, 0.7],
        advantages=[1.0, -1.0, -1.0, 1.0, 9.0],
        mask=[True, True, True, True, False],
    )
    settings = recomputed(dual_clip=3.0, truncate_at=1.5, token_mask=Bounds(0.5, 5.0))
    sums = measure(
        scores,
        policy_loss(scores, settings),
        settings,
        entropy=column([1.0, 2.0, 3.0, 4.0, 99.0]),
        lag=torch.tensor([0, 0, 3, -1, 0]),
    )
    figures = summarise({name: value.item() for name, value in sums.items()})
    logs = math.log(1.5) + math.log(0.5) + math.log(5)
    assert figures == pytest.approx(
        {
            "loss": (-1.2 * 1.5 + 0 + 3.0 - 1.0) / 4,
            "clip_fraction_low": 0.25,
            "clip_fraction_high": 0.25,
            "clip_fraction_dual": 0.25,
            "kl_old": (1.5 + 0.5 + 5 + 1 - 4 - logs) / 4,
            "entropy": 2.5,
            "ess_share": 4.25**2 / (4 * (4 + 0.0625 + 1 + 1)),
            "truncated_fraction": 0.25,
            "masked_fraction": 0.25,
            "masked_fraction_token_low": 0.25,
            "masked_fraction_token_high": 0.0,
            "logprob_difference": 1.5 * LN2,
            "logprob_difference_lag_0": 1.5 * LN2,
            "logprob_difference_lag_2_3": 0.0,
            "logprob_bias": -0.5 * LN2,
            "kl_rollout": (2 - 1 - LN2 + 0.25 - 1 + 2 * LN2) / 2,
            "max_logprob_difference": 2 * LN2,
            "lag_mean": 1.0,
            "lag_share_0": 2 / 3,
            "lag_share_1": 0.0,
            "lag_share_2_3": 1 / 3,
            "lag_share_4_7": 0.0,
            "lag_share_8_up": 0.0,
        }
    )


def test_microbatches_add_up_to_the_batch() -> None:
    """Sums add, maxima don't, and a mean is over all tokens: not the mean of two means."""
    settings = LossSettings()

    def measured(current: list[float], rollout: list[float]) -> dict[str, torch.Tensor]:
        scores = some_scores(current, rollout=rollout)
        return measure(
            scores,
            policy_loss(scores, settings),
            settings,
            entropy=column([0.0] * len(current)),
            lag=torch.zeros(len(current), dtype=torch.int64),
        )

    total = add([measured([0.4], [0.1]), measured([0.2, 0.2, 0.2], [0.1, 0.2, 0.2])])
    figures = summarise({name: value.item() for name, value in total.items()})
    assert figures["logprob_difference"] == pytest.approx(0.75 * LN2)
    assert figures["max_logprob_difference"] == pytest.approx(2 * LN2)


def test_a_figure_without_a_denominator_is_left_out() -> None:
    settings = LossSettings()
    scores = some_scores([0.5], mask=[False])
    sums = measure(
        scores,
        policy_loss(scores, settings),
        settings,
        entropy=column([1.0]),
        lag=torch.tensor([0]),
    )
    assert summarise({name: value.item() for name, value in sums.items()}) == {}


def test_fine_tuning_has_no_figures_about_other_policies() -> None:
    settings = LossSettings(objective=Objective.LIKELIHOOD)
    scores = some_scores([0.5])
    sums = measure(
        scores,
        batch_loss(scores, settings),
        settings,
        entropy=column([1.0]),
        lag=torch.tensor([-1]),
    )
    figures = summarise({name: value.item() for name, value in sums.items()})
    assert figures == {"loss": pytest.approx(LN2), "entropy": 1.0}
