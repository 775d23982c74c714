"""Health figures of a step, as sums that micro-batches and ranks add up.

Invariant: no mean is ever averaged. A micro-batch gives numerators and denominators; they are
added over the batch, and `summarise` divides once. Names that begin with `max_` are maxima.

The mismatch between trainer and engine is told from tokens of lag 0 alone: with older weights the
difference of logprobs is what training changed. By lag it is told beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from trainer.loss import BatchLoss, Scores, bounded_log_ratio, k3
from trainer.loss_settings import LossSettings, Objective

LAG_BUCKETS = {"0": (0, 0), "1": (1, 1), "2_3": (2, 3), "4_7": (4, 7), "8_up": (8, 2**31)}
"""Policy versions between the one that sampled a token and the one being trained, both ends in."""


@torch.no_grad()
def measure(
    scores: Scores,
    result: BatchLoss,
    settings: LossSettings,
    *,
    entropy: Tensor,
    lag: Tensor,
) -> dict[str, Tensor]:
    """Sums of one micro-batch, () float64 each.

    `entropy` is (n,) in nats; `lag` is (n,) int, in policy versions, -1 where it is unknown.
    """
    sums = {
        "loss": result.loss_sum,
        "count": result.count,
        "tokens": scores.mask.sum(),
        "entropy": _sum(entropy, scores.mask),
    }
    if settings.objective is Objective.POLICY:
        sums |= _clip_sums(scores, result, settings)
        sums |= _correction_sums(scores, result)
        sums |= _lag_sums(result.old, scores.rollout, lag, scores.mask)
    return {name: torch.as_tensor(value).double() for name, value in sums.items()}


def add(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of all micro-batches."""
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in total:
                total[name] = value
            else:
                larger = name.startswith("max_")
                total[name] = torch.maximum(total[name], value) if larger else total[name] + value
    return total


def over_epochs(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sums of a step from those of its epochs, which have the same names."""
    return {
        name: (max if name.startswith("max_") else sum)(each[name] for each in epochs)
        for name in epochs[0]
    }


def summarise(sums: Mapping[str, float]) -> dict[str, float]:
    """Figures of the step from the sums of its batch; one whose denominator is 0 is left out.

    ess_share is Kish's effective sample size of the weights old / rollout, before truncation, as a
    share of the tokens: (sum w)^2 / (n sum w^2).
    """
    shares = {
        "loss": ("loss", "count"),
        "clip_fraction_low": ("clipped_low", "tokens"),
        "clip_fraction_high": ("clipped_high", "tokens"),
        "clip_fraction_dual": ("clipped_dual", "tokens"),
        "kl_old": ("kl_old", "tokens"),
        "kl_reference": ("kl_reference", "tokens"),
        "entropy": ("entropy", "tokens"),
        "truncated_fraction": ("truncated", "tokens"),
        "masked_fraction": ("masked", "tokens"),
        "logprob_difference": ("difference_lag_0", "tokens_lag_0"),
        "logprob_bias": ("bias_lag_0", "tokens_lag_0"),
        "kl_rollout": ("kl_rollout_lag_0", "tokens_lag_0"),
        "lag_mean": ("lag", "tokens_lag_known"),
    }
    shares |= {
        f"masked_fraction_{why}": (f"masked_{why}", "tokens")
        for why in ("token_low", "token_high", "sequence_low", "sequence_high")
    }
    for bucket in LAG_BUCKETS:
        shares[f"lag_share_{bucket}"] = (f"tokens_lag_{bucket}", "tokens_lag_known")
        shares[f"logprob_difference_lag_{bucket}"] = (
            f"difference_lag_{bucket}",
            f"tokens_lag_{bucket}",
        )
    figures = {
        name: sums[above] / sums[below]
        for name, (above, below) in shares.items()
        if above in sums and sums.get(below)
    }
    if sums.get("importance_squared"):
        weights = sums["tokens"] * sums["importance_squared"]
        figures["ess_share"] = sums["importance"] ** 2 / weights
    if sums.get("tokens_lag_0"):
        figures["max_logprob_difference"] = sums["max_logprob_difference"]
    return figures


def _clip_sums(scores: Scores, result: BatchLoss, settings: LossSettings) -> dict[str, Tensor]:
    """How far the policy has moved, and the tokens whose gradient the clipping took away, by the
    bound that did."""
    mask, ratio = scores.mask, result.ratio
    up, down = mask & (scores.advantages > 0), mask & (scores.advantages < 0)
    sums = {
        "kl_old": _sum(k3(bounded_log_ratio(scores.current, result.old, mask)), mask),
        "clipped_low": (down & (ratio < 1 - settings.clip_low)).sum(),
        "clipped_high": (up & (ratio > 1 + settings.clip_high)).sum(),
    }
    if settings.dual_clip is not None:
        sums["clipped_dual"] = (down & (ratio > settings.dual_clip)).sum()
    if scores.reference is not None:
        ratios = bounded_log_ratio(scores.reference, scores.current, mask)
        sums["kl_reference"] = _sum(k3(ratios), mask)
    return sums


def _correction_sums(scores: Scores, result: BatchLoss) -> dict[str, Tensor]:
    """The weights old / rollout, and what they made of tokens."""
    correction, mask = result.correction, scores.mask
    anywhere = torch.zeros_like(mask)
    sums = {
        "importance": _sum(correction.ratio, mask),
        "importance_squared": _sum(correction.ratio.square(), mask),
        "truncated": correction.truncated.sum(),
    }
    for why, where in correction.dropped.items():
        sums[f"masked_{why}"] = where.sum()
        anywhere = anywhere | where
    sums["masked"] = anywhere.sum()
    return sums


def _lag_sums(old: Tensor, rollout: Tensor, lag: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Tokens and differences of logprobs, old - rollout, by lag."""
    difference = old - rollout
    known = mask & (lag >= 0)
    sums = {"lag": _sum(lag, known), "tokens_lag_known": known.sum()}
    for bucket, (low, high) in LAG_BUCKETS.items():
        inside = mask & (lag >= low) & (lag <= high)
        sums[f"tokens_lag_{bucket}"] = inside.sum()
        sums[f"difference_lag_{bucket}"] = _sum(difference.abs(), inside)
    fresh = mask & (lag == 0)
    sums["bias_lag_0"] = _sum(difference, fresh)
    sums["kl_rollout_lag_0"] = _sum(k3(bounded_log_ratio(old, rollout, fresh)), fresh)
    sums["max_logprob_difference"] = torch.where(fresh, difference.abs(), 0.0).amax()
    return sums


def _sum(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0).double().sum()
