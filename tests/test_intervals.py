"""Intervals of pass@1, pass@k and their differences."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.accounts.intervals import Interval, TaskShare, intervals
from ledger.accounts.outcomes import (
    TaskOutcome,
    pass_at_k,
    share_at_k,
    share_of,
    unnamed_shares,
    weights_of,
)
from ledger.accounts.paired import LEFT_OUT, UNPAIRED, difference
from tests.builders import ANY_SPEED

QUICK = 400
"""Resamples where the test isn't about how many there are."""


def outcome(
    task: str, passed: int, valid: int, slots: int = 4, stratum: str | None = None
) -> TaskOutcome:
    return TaskOutcome(task, stratum, None, slots, valid, passed)


def whole(*values: float, stratum: str | None = None) -> list[TaskShare]:
    return [TaskShare(stratum, value, value, value) for value in values]


def test_the_clustered_interval_is_the_mean_and_the_spread_between_tasks() -> None:
    found = intervals(whole(0.25, 0.5, 0.75, 0.5), resamples=QUICK).clustered
    # Mean 0.5, variance 1/24, so the standard error is sqrt(1/96).
    half = 1.959964 * math.sqrt(1 / 96)
    assert found == Interval(pytest.approx(0.5 - half), pytest.approx(0.5 + half), "clustered")


def test_strata_take_the_spread_between_them_out() -> None:
    easy, hard = whole(0.8, 1.0, stratum="easy"), whole(0.0, 0.2, stratum="hard")
    found = intervals(easy + hard, resamples=QUICK).clustered
    # Each stratum has variance 0.02 and half of the tasks: 2 x 0.25 x 0.02 / 2.
    half = 1.959964 * math.sqrt(0.005)
    assert found == Interval(pytest.approx(0.5 - half), pytest.approx(0.5 + half), "clustered")
    together = intervals(whole(0.8, 1.0, 0.0, 0.2), resamples=QUICK).clustered
    assert together
    assert found
    assert together.low < found.low < found.high < together.high


def test_a_stratum_of_one_task_has_the_spread_of_all() -> None:
    tasks = [*whole(0.8, 1.0, stratum="easy"), *whole(0.3, stratum="hard")]
    alike = whole(0.8, 1.0, 0.3)
    assert intervals(tasks, resamples=QUICK).clustered == intervals(alike).clustered


def test_the_bootstrap_agrees_with_the_binomial_it_draws_from() -> None:
    # 30 of 100 tasks pass their only attempt: sd sqrt(.3 x .7 / 100) = 0.0458.
    found = intervals(whole(*[1.0] * 30, *[0.0] * 70)).bootstrap
    assert found == Interval(pytest.approx(0.21, abs=0.011), pytest.approx(0.39, abs=0.011),
                             "bootstrap")  # fmt: skip


def test_the_same_tasks_give_the_same_interval_and_another_seed_one_close_to_it() -> None:
    chance = random.Random(5)
    tasks = whole(*[chance.randint(0, 4) / 4 for _ in range(60)])
    first, again = intervals(tasks, seed=3), intervals(tasks, seed=3)
    assert first == again
    other = intervals(tasks, seed=4).bootstrap
    assert first.bootstrap
    assert other
    assert first.bootstrap.low == pytest.approx(other.low, abs=0.01)
    assert first.bootstrap.high == pytest.approx(other.high, abs=0.01)


def test_tasks_that_all_say_the_same_have_three_over_their_number() -> None:
    found = intervals(whole(*[0.0] * 60), resamples=QUICK)
    assert found.bootstrap == found.clustered == found.with_missing
    assert found.bootstrap == Interval(0.0, pytest.approx(0.05), "3/T")
    found = intervals(whole(*[1.0] * 60), resamples=QUICK)
    assert found.bootstrap == Interval(pytest.approx(0.95), 1.0, "3/T")
    found = intervals(whole(*[0.5] * 60), resamples=QUICK)
    assert found.bootstrap == Interval(pytest.approx(0.475), pytest.approx(0.525), "3/T")
    assert intervals(whole(0.0), resamples=QUICK).bootstrap == Interval(0.0, 1.0, "3/T")


def test_strata_that_differ_but_do_not_vary_inside_have_a_width_too() -> None:
    tasks = [*whole(*[0.0] * 6, stratum="hard"), *whole(*[1.0] * 6, stratum="easy")]
    found = intervals(tasks, resamples=QUICK)
    assert found.bootstrap == found.clustered == Interval(0.25, 0.75, "3/T")


def test_missing_attempts_widen_the_interval_to_what_they_could_have_been() -> None:
    tasks = [outcome(f"t{n}", passed=1, valid=2, slots=4) for n in range(10)]
    tasks += [outcome(f"u{n}", passed=2, valid=4, slots=4) for n in range(10)]
    found = intervals([share_of(task) for task in tasks], resamples=QUICK)
    assert found.bootstrap == Interval(pytest.approx(0.425), pytest.approx(0.575), "3/T")
    # With what is missing failed the mean is (.25 + .5) / 2, with it passed (.75 + .5) / 2.
    assert found.with_missing
    assert 0.25 <= found.with_missing.low < 0.375
    assert 0.625 < found.with_missing.high <= 0.75


def test_a_task_without_a_valid_attempt_is_in_the_bounds_alone() -> None:
    tasks = [outcome("a", 4, 4), outcome("b", 0, 4), outcome("c", 0, 0)]
    found = intervals([share_of(task) for task in tasks], resamples=QUICK)
    two = intervals([share_of(task) for task in tasks[:2]], resamples=QUICK)
    assert found.clustered == two.clustered
    assert found.with_missing == Interval(0.0, 1.0, "bootstrap")


def test_tasks_without_a_name_are_missing() -> None:
    assert unnamed_shares(2) == [TaskShare(None, None, 0.0, 1.0)] * 2
    tasks = whole(*[0.5] * 98, 0.0, 1.0) + unnamed_shares(100)
    found = intervals(tasks, resamples=QUICK).with_missing
    assert found
    assert 0.1 < found.low < 0.25
    assert 0.75 < found.high < 0.9


def test_nothing_valid_has_no_interval_but_bounds() -> None:
    found = intervals([share_of(outcome("a", 0, 0)), share_of(outcome("b", 0, 0))])
    assert (found.bootstrap, found.clustered) == (None, None)
    assert found.with_missing == Interval(0.0, 1.0, "3/T")
    assert intervals([]).with_missing is None


def test_weights_move_the_interval_to_the_weighted_mean() -> None:
    tasks = [*whole(0.8, 1.0, 0.9, stratum="easy"), *whole(0.0, 0.2, 0.1, stratum="hard")]
    found = intervals(tasks, weights={"easy": 3.0, "hard": 1.0}, resamples=QUICK)
    # .75 x .9 + .25 x .1 = 0.7, variance 0.01 in each.
    half = 1.959964 * math.sqrt((0.75**2 + 0.25**2) * 0.01 / 3)
    assert found.clustered == Interval(pytest.approx(0.7 - half), pytest.approx(0.7 + half),
                                       "clustered")  # fmt: skip
    assert found.bootstrap
    assert 0.6 < found.bootstrap.low < 0.7 < found.bootstrap.high < 0.8


def test_weights_are_known_only_if_each_task_has_its_stratum_s_one() -> None:
    def of(*given: tuple[str | None, float | None]) -> object:
        return weights_of([TaskOutcome("t", *each, 4, 4, 0) for each in given])

    assert of(("easy", 3.0), ("easy", 3.0), ("hard", 1.0)) == {"easy": 3.0, "hard": 1.0}
    unknown = [("easy", None)], [("easy", 1.0), ("easy", 2.0)], [(None, 1.0)], [("easy", 0.0)]
    for tasks in unknown:
        assert of(*tasks) is None


def test_pass_at_k_leaves_a_task_with_too_few_valid_attempts_without_a_value() -> None:
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert share_at_k(outcome("a", 1, 1), 2) == TaskShare(None, None, 0.5, 1.0)
    assert share_at_k(outcome("a", 0, 0), 5) == TaskShare(None, None, 0.0, 1.0)
    assert share_at_k(outcome("a", 1, 1), 1) == share_of(outcome("a", 1, 1))


@settings(ANY_SPEED, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["x", "y", None]), st.lists(st.sampled_from("pfm"), min_size=1)),
        min_size=1,
        max_size=12,
    )
)
def test_every_interval_has_a_width_and_stays_inside_its_limits(
    tasks: list[tuple[str | None, list[str]]],
) -> None:
    shares = [
        share_of(
            TaskOutcome("t", stratum, None, len(slots), len(slots) - slots.count("m"),
                        slots.count("p"))
        )
        for stratum, slots in tasks
    ]  # fmt: skip
    found = intervals(shares, resamples=100)
    for each in (found.bootstrap, found.clustered, found.with_missing):
        if each is not None:
            assert -1e-9 <= each.low < each.high <= 1 + 1e-9
    values = [share.value for share in shares if share.value is not None]
    assert (found.bootstrap is None) == (found.clustered is None) == (not values)
    if found.clustered:
        mean = sum(values) / len(values)
        assert found.clustered.low - 1e-9 <= mean <= found.clustered.high + 1e-9


def test_a_difference_is_taken_task_by_task() -> None:
    a = [outcome("a", 1, 4), outcome("b", 2, 4), outcome("c", 0, 4)]
    b = [outcome("a", 2, 4), outcome("b", 3, 4), outcome("c", 2, 4)]
    found = difference(a, b, resamples=QUICK)
    assert found.value == pytest.approx((0.25 + 0.25 + 0.5) / 3)
    assert (found.of_a, found.of_b) == (pytest.approx(0.25), pytest.approx(7 / 12))
    half = 1.959964 * math.sqrt((1 / 48) / 3)
    assert found.intervals.clustered == Interval(
        pytest.approx(1 / 3 - half), pytest.approx(1 / 3 + half), "clustered"
    )
    assert found.bounds == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found.note == LEFT_OUT
    assert "training seeds" in LEFT_OUT


def test_pairing_makes_the_interval_of_a_steady_gain_narrow() -> None:
    chance = random.Random(2)
    before = [chance.randint(0, 3) for _ in range(50)]
    a = [outcome(f"{n}", passed, 4) for n, passed in enumerate(before)]
    b = [outcome(f"{n}", passed + chance.choice([0, 1]), 4) for n, passed in enumerate(before)]
    paired = difference(a, b, resamples=QUICK).intervals.clustered
    alone = intervals([share_of(task) for task in a], resamples=QUICK).clustered
    assert paired
    assert alone
    assert paired.high - paired.low < (alone.high - alone.low) / 2


def test_lost_tasks_are_named_and_fill_the_bounds_against_and_for_b() -> None:
    a = [outcome("a", 2, 4), outcome("b", 4, 4), outcome("old", 4, 4)]
    b = [outcome("a", 2, 2), outcome("b", 0, 0), outcome("new", 0, 4)]
    found = difference(a, b, resamples=QUICK)
    assert (found.tasks, found.lost) == (("a",), ("b",))
    assert (found.only_a, found.only_b) == (("old",), ("new",))
    assert found.value == pytest.approx(0.5)
    # a: B passed 2 of 4 and misses 2: 0 to 0.5 more than A. b: B could be anything, A passed all.
    assert found.bounds == (pytest.approx((0 - 1) / 2), pytest.approx((0.5 + 0) / 2))
    assert found.intervals.with_missing
    assert found.intervals.with_missing.low <= -0.5


def test_the_same_outcome_on_both_sides_is_no_interval_of_zero_width() -> None:
    tasks = [outcome(f"{n}", n % 5, 4) for n in range(30)]
    found = difference(tasks, tasks, resamples=QUICK)
    assert found.value == 0.0
    assert found.intervals.bootstrap == Interval(-0.1, 0.1, "3/T")


def test_without_a_common_valid_task_there_is_no_difference_and_the_note_says_so() -> None:
    found = difference([outcome("a", 1, 4)], [outcome("a", 0, 0)], resamples=QUICK)
    assert (found.value, found.intervals.bootstrap, found.note) == (None, None, UNPAIRED)
    found = difference([], [outcome("a", 1, 4)], resamples=QUICK)
    assert (found.value, found.bounds, found.note) == (None, None, UNPAIRED)


def test_a_difference_in_pass_at_k_uses_tasks_with_k_valid_attempts_on_both_sides() -> None:
    a = [outcome("a", 1, 4), outcome("b", 1, 4)]
    b = [outcome("a", 2, 4), outcome("b", 1, 1)]
    found = difference(a, b, k=2, resamples=QUICK)
    assert (found.tasks, found.lost) == (("a",), ("b",))
    assert found.value == pytest.approx(5 / 6 - 1 / 2)
