"""From the rewards of a group to the advantages of its members. Pure.

    grpo     (r - mean) / (std + 1e-6)    DeepSeekMath, arXiv 2402.03300, section 4.1
    dr_grpo   r - mean                    Understanding R1-Zero-like training, arXiv 2503.20783
    rloo      r - mean of the others      Back to basics, arXiv 2402.14740, section 2.2

Invariant: only the rewards of members that vote come in here, once for each trajectory however
many segments it has. What was excluded is in neither mean nor std: as a zero it would be a false
gradient for everybody else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that nearly equal rewards don't explode."""

ZERO_VARIANCE = 1e-6
"""Rewards that lie no further apart are equal: they prefer nothing."""

REWARD_MAX = 1e100
"""Largest size of a reward: its square must still be a number."""


class Algorithm(StrEnum):
    """How advantages are computed."""

    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"


def usable_reward(value: float | None) -> bool:
    """Whether a reward can be computed with: a number, not nan, not infinite, not absurd."""
    return value is not None and math.isfinite(value) and abs(value) <= REWARD_MAX


def mean_and_std(rewards: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean (null for no reward) and standard deviation with ddof 1 (null below two)."""
    if not rewards:
        return None, None
    mean = math.fsum(rewards) / len(rewards)
    if len(rewards) < 2:
        return mean, None
    squares = math.fsum((reward - mean) ** 2 for reward in rewards)
    return mean, math.sqrt(squares / (len(rewards) - 1))


def zero_variance(rewards: Sequence[float]) -> bool:
    """Whether the rewards of those that vote say nothing about who did better."""
    return not rewards or max(rewards) - min(rewards) <= ZERO_VARIANCE


def advantages(algorithm: Algorithm, rewards: Sequence[float]) -> list[float]:
    """(n,) advantages of (n,) rewards. Raises ValueError for fewer than two."""
    mean, std = mean_and_std(rewards)
    if mean is None or std is None:
        raise ValueError(f"advantages need at least 2 rewards, got {len(rewards)}")
    if algorithm is Algorithm.GRPO:
        return [(reward - mean) / (std + STD_EPSILON) for reward in rewards]
    # The mean of the others lies n / (n - 1) times as far away as the mean of all.
    far = len(rewards) / (len(rewards) - 1) if algorithm is Algorithm.RLOO else 1.0
    return [far * (reward - mean) for reward in rewards]
