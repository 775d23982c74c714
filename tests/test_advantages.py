"""Advantages: golden values, and what an excluded member must not change."""

from __future__ import annotations

import math
import sys
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.advantages import (
    STD_EPSILON,
    Algorithm,
    advantages,
    mean_and_std,
    usable_reward,
    zero_variance,
)

PASS, FAIL = 1.0, 0.0


def of_a_pass(passes: int, fails: int) -> float:
    return advantages(Algorithm.GRPO, [PASS] * passes + [FAIL] * fails)[0]


def test_four_passes_of_seven_when_a_failure_of_the_infrastructure_does_not_vote() -> None:
    assert of_a_pass(4, 3) == pytest.approx(0.80, abs=0.005)
    assert of_a_pass(4, 4) == pytest.approx(0.94, abs=0.005)  # what a zero in its place would do


def test_one_pass_of_five_and_three_failures_of_the_infrastructure() -> None:
    assert of_a_pass(1, 4) == pytest.approx(1.79, abs=0.005)
    assert of_a_pass(1, 7) == pytest.approx(2.47, abs=0.006)


def test_seven_passes_say_nothing_but_with_a_fabricated_zero_would() -> None:
    assert zero_variance([PASS] * 7)
    false_gradient = advantages(Algorithm.GRPO, [PASS] * 7 + [FAIL])
    assert false_gradient[0] == pytest.approx(0.354, abs=0.0005)
    assert false_gradient[7] == pytest.approx(-2.475, abs=0.0005)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(Algorithm.GRPO, 0.7071), (Algorithm.DR_GRPO, 0.5), (Algorithm.RLOO, 1.0)],
)
def test_rewards_0_and_1(algorithm: Algorithm, expected: float) -> None:
    assert advantages(algorithm, [0.0, 1.0]) == pytest.approx([-expected, expected], abs=5e-5)


def test_hand_computed_values_of_three_rewards() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, std sqrt(14 / 2) = 2.6458
    assert mean_and_std([1, 2, 6]) == (3.0, math.sqrt(7))
    grpo = advantages(Algorithm.GRPO, [1, 2, 6])
    assert grpo == pytest.approx([-0.755929, -0.377964, 1.133893], abs=1e-6)
    assert advantages(Algorithm.DR_GRPO, [1, 2, 6]) == [-2.0, -1.0, 3.0]
    assert advantages(Algorithm.RLOO, [1, 2, 6]) == pytest.approx([-3.0, -1.5, 4.5])


def test_the_largest_advantage_of_a_group_is_n_minus_1_over_root_n() -> None:
    assert of_a_pass(1, 1) == pytest.approx(1 / math.sqrt(2), abs=1e-5)
    assert of_a_pass(1, 7) == pytest.approx(7 / math.sqrt(8), abs=1e-4)


def test_a_single_reward_has_no_advantage() -> None:
    assert mean_and_std([0.5]) == (0.5, None)
    assert mean_and_std([]) == (None, None)
    with pytest.raises(ValueError, match="at least 2 rewards, got 1"):
        advantages(Algorithm.GRPO, [1.0])


def test_rewards_a_millionth_apart_are_equal() -> None:
    assert zero_variance([0.5, 0.5 + 0.9e-6])
    assert not zero_variance([0.5, 0.5 + 1.1e-6])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e101, None])
def test_what_is_no_reward(value: float | None) -> None:
    assert not usable_reward(value)


@given(
    st.sampled_from(Algorithm),
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=16),
    st.randoms(use_true_random=False),
)
def test_advantages_sum_to_nothing_and_do_not_depend_on_the_order(
    algorithm: Algorithm, rewards: list[float], chance: object
) -> None:
    found = advantages(algorithm, rewards)
    # The mean is off by its rounding, which a small deviation magnifies.
    rounding = len(rewards) * max(map(abs, rewards)) * sys.float_info.epsilon
    magnified = 1.0 / (stdev(rewards) + STD_EPSILON) if algorithm is Algorithm.GRPO else 2.0
    assert abs(math.fsum(found)) <= 1e-12 + 4 * len(rewards) * rounding * magnified
    order = list(range(len(rewards)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    shuffled = advantages(algorithm, [rewards[at] for at in order])
    assert shuffled == [found[at] for at in order]  # to the last bit: a batch's hash is over them
