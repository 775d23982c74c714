"""The policy loss, as pure functions of flat tensors.

Three policies are told apart at every sampled token: *current* has the weights being trained and
the gradient, *old* is where the step began, *rollout* is the engine that sampled. current / old is
clipped; old / rollout, which comes of other kernels, other precision and older weights, only
weights or drops tokens and never has a gradient.

Invariant: a micro-batch gives a sum and a count, and nothing here divides by anything that depends
on how samples were put together. The optimizer divides once, by the count of the global batch. So
a batch has the same loss in any number of micro-batches on any number of ranks.

Shapes: (n,) is over the tokens of a micro-batch, packed; (s,) over its samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.loss_settings import (
    Aggregation,
    Bounds,
    LossSettings,
    Objective,
    OldPolicy,
    RatioLevel,
)

_LOG_RATIO_MAX = 20.0
"""exp(20) is 5e8: past it a ratio says no more, and its square would overflow float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the loss knows of the tokens of one micro-batch. Values where `mask` is off are never
    looked at, and may be anything."""

    current: Tensor
    """(n,) logprobs by the weights being trained, with their gradient."""
    rollout: Tensor
    """(n,) logprobs by the engine that sampled."""
    advantages: Tensor
    """(n,)"""
    mask: Tensor
    """(n,) bool: the policy sampled this token and it counts."""
    samples: Tensor
    """(n,) int64, from 0: the sample that a token is of."""
    sample_count: int
    """s; samples without a token in `mask` may be among them."""
    old: Tensor | None = None
    """(n,) logprobs by the weights at the step's start; null unless they are recomputed."""
    reference: Tensor | None = None
    """(n,) logprobs by the reference model; null without a KL term."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What old / rollout makes of each token."""

    weights: Tensor
    """(n,) factor of the token's loss, 0 where it is dropped."""
    ratio: Tensor
    """(n,) old / rollout, 1 where the mask is off."""
    truncated: Tensor
    """(n,) bool: weighted by less than its ratio."""
    dropped: dict[str, Tensor]
    """(n,) bool for each reason."""


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """The loss of one micro-batch, and the pieces that metrics are made of."""

    loss_sum: Tensor
    """() with a gradient."""
    count: Tensor
    """() what the optimizer divides by, after summing over the batch: tokens, or samples."""
    old: Tensor
    """(n,) logprobs that the ratio was taken to."""
    ratio: Tensor
    """(n,) current / old; of the whole sample with GSPO; 1 where the mask is off."""
    correction: Correction
    """What old / rollout made of each token."""


def batch_loss(scores: Scores, settings: LossSettings) -> BatchLoss:
    """The loss of one micro-batch, of either objective. Raises as `policy_loss`."""
    if settings.objective is Objective.LIKELIHOOD:
        return likelihood_loss(scores, settings)
    return policy_loss(scores, settings)


def likelihood_loss(scores: Scores, settings: LossSettings) -> BatchLoss:
    """The negative logprob of the tokens in the mask: maximum likelihood, for fine-tuning."""
    loss_sum, count = aggregate(-scores.current, scores, settings)
    ones, never = torch.ones_like(scores.advantages), torch.zeros_like(scores.mask)
    return BatchLoss(
        loss_sum, count, scores.current.detach(), ones, Correction(ones, ones, never, {})
    )


def policy_loss(scores: Scores, settings: LossSettings) -> BatchLoss:
    """The loss of one micro-batch.

    Tokens that the correction drops still count in the denominator: dropping gives them weight 0,
    and doesn't make the others weigh more. Raises ValueError for logprobs that the settings need
    and `scores` doesn't have.
    """
    old = old_logprobs(scores, settings.old_policy)
    log_ratio = bounded_log_ratio(scores.current, old, scores.mask)
    if settings.ratio is RatioLevel.SEQUENCE:
        log_ratio = sequence_log_ratio(log_ratio, scores)
    ratio = log_ratio.exp()
    correction = correct(old, scores, settings)
    losses = correction.weights * clipped(ratio, scores.advantages, settings)
    if settings.kl_coef:
        losses = losses + settings.kl_coef * kl_to_reference(scores)
    loss_sum, count = aggregate(losses, scores, settings)
    return BatchLoss(loss_sum, count, old, ratio.detach(), correction)


def old_logprobs(scores: Scores, policy: OldPolicy) -> Tensor:
    """(n,) Logprobs that the ratio is taken to, without gradient."""
    if policy is OldPolicy.CURRENT:
        return scores.current.detach()
    if policy is OldPolicy.ROLLOUT:
        return scores.rollout
    if scores.old is None:
        raise ValueError("old_policy recomputed needs the old logprobs of every micro-batch")
    return scores.old


def clipped(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """(n,) -min(r A, clip(r, 1 - low, 1 + high) A).

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7, here on GRPO's
    advantages (Shao et al. 2024, "DeepSeekMath"). A `clip_high` above `clip_low` is Clip-Higher of
    Yu et al. 2025, "DAPO", section 3.1. With `dual_clip` c the objective is at least c A where A
    is negative, or one token of a large ratio rules the step: Ye et al. 2020, "Mastering Complex
    Control in MOBA Games with Deep Reinforcement Learning".
    """
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    if settings.dual_clip is not None:
        floor = torch.maximum(objective, settings.dual_clip * advantages)
        objective = torch.where(advantages < 0, floor, objective)
    return -objective


def sequence_log_ratio(log_ratio: Tensor, scores: Scores) -> Tensor:
    """(n,) The mean of the sample's log ratios in value, the token's own in gradient.

    Source: Zheng et al. 2025, "Group Sequence Policy Optimization", eq. 7 and, for the gradient
    token by token, eq. 13-14 (GSPO-token).
    """
    means = _sample_means(log_ratio.detach(), scores)[scores.samples]
    return torch.where(scores.mask, means + log_ratio - log_ratio.detach(), 0.0)


def correct(old: Tensor, scores: Scores, settings: LossSettings) -> Correction:
    """What old / rollout makes of each token.

    `truncate_at` c weights a token by min(old / rollout, c), or else by 1: Yao et al. 2025, "Your
    Efficient RL Framework Secretly Brings You Off-Policy RL Training" (truncated importance
    sampling, TIS). `token_mask` drops tokens whose ratio is outside; together with truncation at
    its upper bound that is IcePop (Ling Team 2025, "Every Step Evolves"). `sequence_mask` drops
    samples, as in Liu, Li et al. 2025, "When Speed Kills Stability: Demystifying RL Collapse from
    the Training-Inference Mismatch" (masked importance sampling), here by the geometric mean of
    their tokens' ratios, which unlike their product doesn't depend on length.
    """
    log_ratio = bounded_log_ratio(old, scores.rollout, scores.mask).detach()
    ratio = log_ratio.exp()
    weights, truncated = torch.ones_like(ratio), torch.zeros_like(scores.mask)
    if settings.truncate_at is not None:
        weights = ratio.clamp(max=settings.truncate_at)
        truncated = scores.mask & (ratio > settings.truncate_at)
    dropped: dict[str, Tensor] = {}
    if settings.token_mask is not None:
        dropped |= _outside(ratio, settings.token_mask, scores.mask, "token")
    if settings.sequence_mask is not None:
        means = _sample_means(log_ratio, scores).exp()[scores.samples]
        dropped |= _outside(means, settings.sequence_mask, scores.mask, "sequence")
    for where in dropped.values():
        weights = torch.where(where, 0.0, weights)
    return Correction(weights, ratio, truncated, dropped)


def kl_to_reference(scores: Scores) -> Tensor:
    """(n,) The estimate k3 of KL(current || reference): exp(x) - 1 - x, x = reference - current.

    Source: Schulman 2020, "Approximating KL Divergence"; in GRPO's loss since Shao et al. 2024,
    eq. 4.
    """
    if scores.reference is None:
        raise ValueError("kl_coef needs the reference's logprobs of every micro-batch")
    return k3(bounded_log_ratio(scores.reference, scores.current, scores.mask))


def k3(log_ratio: Tensor) -> Tensor:
    """exp(x) - 1 - x: at least 0; its mean over samples of q, with x = log p/q, is KL(q || p)."""
    return torch.expm1(log_ratio) - log_ratio


def aggregate(losses: Tensor, scores: Scores, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The sum over the micro-batch, and its share of the denominator.

    token_mean: every token of the batch weighs the same (Yu et al. 2025, "DAPO", section 3.3).
    seq_mean_token_mean: every sample weighs the same (Shao et al. 2024, "DeepSeekMath", eq. 3).
    seq_mean_token_sum_norm: sums over tokens, divided by a constant, so that neither length nor
    batch changes a token's weight (Liu et al. 2025, "Understanding R1-Zero-Like Training", Dr.
    GRPO).
    A sample without a token that counts is no sample.
    """
    kept = torch.where(scores.mask, losses, 0.0)
    if settings.aggregation is Aggregation.TOKEN_MEAN:
        return kept.sum(), scores.mask.sum()
    lengths = _sample_sums(scores.mask.to(losses.dtype), scores)
    if settings.aggregation is Aggregation.SEQ_MEAN_TOKEN_MEAN:
        weights = 1 / lengths.clamp(min=1)
    else:
        weights = torch.full_like(lengths, 1 / (settings.norm_tokens or 1))
    return (kept * weights[scores.samples]).sum(), (lengths > 0).sum()


def bounded_log_ratio(above: Tensor, below: Tensor, mask: Tensor) -> Tensor:
    """(n,) log(above / below), 0 where the mask is off: what is there may be infinite, and
    infinity times 0 would make the whole loss nan."""
    return torch.where(mask, above - below, 0.0).clamp(-_LOG_RATIO_MAX, _LOG_RATIO_MAX)


def _sample_sums(values: Tensor, scores: Scores) -> Tensor:
    """(s,) Sums over the samples' tokens."""
    return values.new_zeros(scores.sample_count).index_add(0, scores.samples, values)


def _sample_means(values: Tensor, scores: Scores) -> Tensor:
    """(s,) Means over the samples' tokens in the mask; 0 for a sample without any."""
    lengths = _sample_sums(scores.mask.to(values.dtype), scores)
    return _sample_sums(torch.where(scores.mask, values, 0.0), scores) / lengths.clamp(min=1)


def _outside(ratio: Tensor, bounds: Bounds, mask: Tensor, what: str) -> dict[str, Tensor]:
    return {
        f"{what}_low": mask & (ratio < bounds.low),
        f"{what}_high": mask & (ratio > bounds.high),
    }
