"""What the loss is made of: every option of `trainer.loss`, checked. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from trainer.choices import settle


class Objective(StrEnum):
    """What is learned."""

    POLICY = "policy"
    """Reinforcement learning: tokens by their advantage."""
    LIKELIHOOD = "likelihood"
    """Supervised fine-tuning: all tokens alike. Neither advantages nor other policies are used."""


class OldPolicy(StrEnum):
    """Whose logprobs the clipped ratio is taken to."""

    CURRENT = "current"
    """The weights being trained: the ratio is 1. Right for one epoch, and costs nothing."""
    RECOMPUTED = "recomputed"
    """The trainer's weights at the step's start, from a forward pass of their own."""
    ROLLOUT = "rollout"
    """The engine's own logprobs: PPO as first written, where clipping takes in the mismatch."""


class RatioLevel(StrEnum):
    """What one ratio is of."""

    TOKEN = "token"
    SEQUENCE = "sequence"


class Aggregation(StrEnum):
    """How losses of tokens become one loss."""

    TOKEN_MEAN = "token_mean"
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval of ratios, both ends inside."""

    low: float
    """At least 0."""
    high: float
    """At least `low`."""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"bounds must have 0 <= low <= high, got [{self.low}, {self.high}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The loss of a run. `trainer.loss` says what each option does and where it is from."""

    objective: Objective = Objective.POLICY
    """What is learned."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = None
    """Bound of the ratio where the advantage is negative, above 1; null: none."""
    ratio: RatioLevel = RatioLevel.TOKEN
    """Token: PPO, GRPO. Sequence: GSPO."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How tokens become one loss."""
    norm_tokens: int | None = None
    """Constant that seq_mean_token_sum_norm divides by, in tokens; null with the others."""
    old_policy: OldPolicy = OldPolicy.CURRENT
    """Whose logprobs the clipped ratio is taken to."""
    truncate_at: float | None = None
    """Weight tokens by old / rollout, at most this (TIS); null: weight 1."""
    token_mask: Bounds | None = None
    """Drop tokens with old / rollout outside; null: none."""
    sequence_mask: Bounds | None = None
    """Drop samples with the geometric mean of old / rollout outside; null: none."""
    kl_coef: float = 0.0
    """Weight of the KL divergence to the reference model; 0: none, and no reference is needed."""
    temperature: float = 1.0
    """The rollout's: logprobs are of logits / temperature."""
    ppo_epochs: int = 1
    """Updates of a step, each by the whole batch. From the second on the ratio tells how far the
    step has come, and clipping bounds it: the more is learned of a batch that was dear to sample.
    """

    def __post_init__(self) -> None:
        settle(
            self,
            objective=Objective,
            ratio=RatioLevel,
            aggregation=Aggregation,
            old_policy=OldPolicy,
        )
        if not 0 <= self.clip_low < 1:
            raise ValueError(f"clip_low must be in [0, 1), got {self.clip_low}")
        if not 0 <= self.clip_high < math.inf:
            raise ValueError(f"clip_high must be at least 0 and finite, got {self.clip_high}")
        if self.dual_clip is not None and not self.dual_clip > 1 + self.clip_high:
            raise ValueError(
                f"dual_clip must be above 1 + clip_high = {1 + self.clip_high},"
                f" got {self.dual_clip}"
            )
        if self.truncate_at is not None and not self.truncate_at > 0:
            raise ValueError(f"truncate_at must be above 0, got {self.truncate_at}")
        if not 0 <= self.kl_coef < math.inf:
            raise ValueError(f"kl_coef must be at least 0 and finite, got {self.kl_coef}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {self.temperature}")
        if self.ppo_epochs < 1:
            raise ValueError(f"ppo_epochs must be at least 1, got {self.ppo_epochs}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        normed = self.aggregation is Aggregation.SEQ_MEAN_TOKEN_SUM_NORM
        if normed and not (self.norm_tokens or 0) > 0:
            raise ValueError(
                f"aggregation {self.aggregation} needs norm_tokens above 0, got {self.norm_tokens}"
            )
        if not normed and self.norm_tokens is not None:
            raise ValueError(
                f"norm_tokens is for seq_mean_token_sum_norm only, got {self.norm_tokens}"
                f" with aggregation {self.aggregation}"
            )
        if self.old_policy is OldPolicy.ROLLOUT and self.corrects:
            raise ValueError(
                "old_policy rollout leaves nothing to correct: old / rollout is 1; take"
                " truncate_at, token_mask and sequence_mask out, or another old_policy"
            )
        if self.ppo_epochs > 1 and self.old_policy is OldPolicy.CURRENT:
            raise ValueError(
                f"ppo_epochs {self.ppo_epochs} needs old_policy recomputed or rollout: with current"
                " the ratio is 1 in every epoch, and nothing bounds the step"
            )

    @property
    def corrects(self) -> bool:
        """Whether tokens are weighted or dropped for old / rollout."""
        options = (self.truncate_at, self.token_mask, self.sequence_mask)
        return any(option is not None for option in options)
