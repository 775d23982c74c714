"""The policy's clock: what it leaves out, and what a cap on it allows."""

from __future__ import annotations

from producers.policy_clock import PolicyClock


class Watch:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_leaves_out_what_the_policy_waited_for() -> None:
    watch = Watch()
    clock = PolicyClock(60.0, watch)
    assert (clock.elapsed_s, clock.left_s) == (None, 60.0)
    watch.now += 1000  # slot and sandbox start
    clock.start()
    watch.now += 30
    clock.excuse(25.0)  # queue
    clock.excuse(None)  # an engine that doesn't say
    assert (clock.elapsed_s, clock.left_s) == (5.0, 55.0)
    watch.now += 56
    assert (clock.elapsed_s, clock.left_s) == (61.0, 0.0)
    clock.stop()
    watch.now += 500  # the verifier
    assert clock.elapsed_s == 61.0


def test_without_a_cap_it_only_counts() -> None:
    watch = Watch()
    clock = PolicyClock(None, watch)
    clock.start()
    watch.now += 7
    assert (clock.elapsed_s, clock.left_s) == (7.0, None)


def test_more_excuses_than_seconds_is_no_time_at_all() -> None:
    watch = Watch()
    clock = PolicyClock(10.0, watch)
    clock.start()
    watch.now += 2
    clock.excuse(5.0)
    assert (clock.elapsed_s, clock.left_s) == (0.0, 10.0)
