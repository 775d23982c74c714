"""A restart from the low-water positions knows what it must, however partitions are read."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.assembling import low_water
from consumers.assembling.cut import LogClock, Now
from consumers.assembling.low_water import Assembled, LowWater
from consumers.assembling.settings import AssemblerSettings
from ledger.facts import BatchAssembled, GroupDecided
from ledger.log import TopicPartition
from tests.assembled import Desk, Teller, Told, a_group, group_id, the_run
from tests.builders import a_fact
from tests.test_assembler_properties import interleaved

EVENTS_0, EVENTS_1 = TopicPartition("events", 0), TopicPartition("events", 1)
TOKENS_0 = TopicPartition("tokens", 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(["carry_over", "first_k"]))
def test_killed_at_any_moment_no_group_is_decided_or_batched_twice_and_none_is_lost(
    seed: int, over_sampling: str
) -> None:
    chance = random.Random(seed)
    chosen = AssemblerSettings.of(
        {"groups_per_batch": 2, "over_sampling": over_sampling, "max_staleness": 1_000}, "here"
    )
    stories: list[list[Told]] = []
    for number in range(12):
        rewards: list[float | None] = [1, 0] if number % 4 else [1, 1]
        stories.append(a_group(number, rewards, turns=1))
    desk = Desk(chosen, partitions=3).read(*the_run())
    trained: set[str] = set()
    tell = Teller(seed=900)
    # A minute of evidence is most of this log: without it, low-water moves.
    low_water.EVIDENCE_US, kept = 0, low_water.EVIDENCE_US
    try:
        for fact in interleaved(stories, chance):
            desk.read(fact)
            if chance.random() < 0.2:
                desk.decide()
            if chance.random() < 0.1:
                desk = desk.killed(chance)
            if chance.random() < 0.1:
                train(desk, trained, tell)
        for _ in range(8):
            desk = desk.killed(chance)
            desk.decide()
            train(desk, trained, tell)
    finally:
        low_water.EVIDENCE_US = kept
    decided = Counter(
        (fact.group_id, str(fact.drop_reason))
        for fact in desk.appended
        if isinstance(fact, GroupDecided)
    )
    assert set(decided.values()) == {1}
    assert {group for group, _ in decided} == {group_id(number) for number in range(12)}
    batches = [fact for fact in desk.appended if isinstance(fact, BatchAssembled)]
    assert [fact.step for fact in batches] == list(range(1, len(batches) + 1))
    assert {fact.model for fact in batches} <= {"tiny"}
    batched = [group for fact in batches for group in fact.group_ids]
    assert len(batched) == len(set(batched))
    dropped = {group for group, reason in decided if reason != "None"}
    assert set(batched) | dropped == {group for group, _ in decided} - set(desk.state.queue)
    assert len(desk.state.queue) < 2


def train(desk: Desk, trained: set[str], tell: Teller) -> None:
    """The trainer takes the next batch, if there is one."""
    for fact in desk.appended:
        if isinstance(fact, BatchAssembled) and fact.batch_id not in trained:
            trained.add(fact.batch_id)
            desk.read(tell("step_completed", step=fact.step, batch_id=fact.batch_id))
            return


def a_batch(offset: int, decisions: dict[TopicPartition, int], taken: bool = True) -> Assembled:
    fact: Any = a_fact("batch_assembled")
    return Assembled(fact, EVENTS_0, offset, decisions, taken)


def test_low_water_is_the_first_record_of_the_oldest_open_group() -> None:
    low = LowWater()
    low.hold("b", EVENTS_1, 7)
    low.hold("a", EVENTS_1, 9)
    low.hold("b", EVENTS_1, 11)
    read = {EVENTS_0: 50, EVENTS_1: 60, TOKENS_0: 70}
    assert low.positions(read, []) == {EVENTS_0: 50, EVENTS_1: 7, TOKENS_0: 70}
    low.release("b", 1)
    assert low.positions(read, []) == {EVENTS_0: 50, EVENTS_1: 9, TOKENS_0: 70}
    low.release("a", 1)
    assert low.positions(read, []) == read


def test_a_batch_whose_decisions_would_be_read_again_is_read_again_too() -> None:
    """Its groups would be taken for queued otherwise, and be trained on twice."""
    low = LowWater()
    low.hold("open", EVENTS_1, 20)
    read = {EVENTS_0: 50, EVENTS_1: 60}
    before = a_batch(10, {EVENTS_1: 19})
    behind = a_batch(12, {EVENTS_1: 21})
    untaken = a_batch(45, {EVENTS_1: 19}, taken=False)
    assert low.positions(read, [before]) == {EVENTS_0: 50, EVENTS_1: 20}
    assert low.positions(read, [before, behind]) == {EVENTS_0: 12, EVENTS_1: 20}
    assert low.positions(read, [before, untaken]) == {EVENTS_0: 45, EVENTS_1: 20}
    # Holding a partition back may bring up an older batch again.
    chained = a_batch(8, {EVENTS_0: 12})
    assert low.positions(read, [chained, behind])[EVENTS_0] == 8


def test_the_last_minutes_are_read_again_for_their_evidence() -> None:
    low = LowWater()
    for minute in range(10):
        low.passed(minute * 60_000_000, {EVENTS_0: minute * 100})
    assert low.positions({EVENTS_0: 950}, []) == {EVENTS_0: 700}
    low.pin("a broken verifier", EVENTS_0, 3)
    assert low.positions({EVENTS_0: 950}, []) == {EVENTS_0: 3}
    low.unpin("a broken verifier")
    assert low.positions({EVENTS_0: 950}, []) == {EVENTS_0: 700}


def test_the_wall_counts_only_once_the_log_was_read_to_its_end_for_a_lease() -> None:
    clock = LogClock()
    clock.read(1_000_000)
    clock.read(500_000)
    assert clock.now(100.0, 60.0) == Now(1_000_000, settled=False)
    clock.caught_up(100.0)
    clock.caught_up(130.0)
    assert clock.now(159.0, 60.0) == Now(1_000_000, settled=False)
    assert clock.now(161.0, 60.0) == Now(62_000_000, settled=True)
    clock.read(90_000_000)
    assert clock.now(162.0, 60.0) == Now(90_000_000, settled=True)
    clock.broken()
    assert clock.now(1_000.0, 60.0) == Now(90_000_000, settled=False)
    clock.caught_up(1_000.0)
    assert clock.now(1_030.0, 60.0) == Now(90_000_000, settled=False)
