"""Whatever order facts are read in, and however often: each group gets the same decision."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.assembling.settings import AssemblerSettings
from ledger.facts import Fact, GroupDecided
from ledger.facts.lists import StopReason
from tests.assembled import (
    AGENT,
    Desk,
    Teller,
    Told,
    a_group,
    an_attempt,
    group_id,
    opened,
    the_run,
    trajectory_id,
)
from tests.builders import an_id
from tests.dispositions_reference import dispositions

PROPERTY = settings(deadline=None, max_examples=60)
WAITING = AssemblerSettings(groups_per_batch=1_000, max_untaken_groups=1_000, evidence_wait_s=0.0)
"""Nothing is assembled, so that what is seen are the decisions about groups."""


def a_failed_start(tell: Teller, group: int, slot: int) -> list[Told]:
    """An attempt whose sandbox never came up."""
    ids: dict[str, Any] = {
        "group_id": group_id(group),
        "slot": slot,
        "trajectory_id": trajectory_id(group, slot),
    }
    return [
        tell("trajectory_started", **ids, task_id=f"task {group}"),
        tell(
            "sandbox_failed", **ids, try_no=0, stage="sandbox_start", error_type="TimeoutException"
        ),
        tell(
            "trajectory_finished",
            **ids,
            stop_reason=StopReason.ERROR,
            stage="sandbox_start",
            error_type="TimeoutException",
            turns_completed=0,
            turns_failed=0,
            tool_calls=0,
            reward_due=False,
        ),
    ]


@st.composite
def groups(draw: st.DrawFn) -> list[list[Told]]:
    """Up to four groups, each as several producers tell of it: one list per producer."""
    producers: list[list[Told]] = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(2, 4))
        tell = Teller(seed=10 * number)
        producers.append([opened(tell, number, size)])
        for slot in range(size):
            of_slot = Teller(an_id("agent", slot), seed=10 * number + 1 + slot)
            kind = draw(st.sampled_from(["passes", "fails", "lost", "null", "truncated"]))
            if kind == "lost":
                producers.append(a_failed_start(of_slot, number, slot))
                continue
            reward = {"passes": 1.0, "null": None}.get(kind, 0.0)
            stop = StopReason.TURN_CAP if kind == "truncated" else StopReason.SUBMITTED
            producers.append(an_attempt(of_slot, number, slot, reward, stop=stop))
    return producers


def interleaved(producers: list[list[Told]], chance: random.Random) -> list[Told]:
    """All in one order that keeps each producer's own."""
    left = [list(reversed(each)) for each in producers if each]
    told: list[Told] = []
    while left:
        of_one = chance.choice(left)
        told.append(of_one.pop())
        left = [each for each in left if each]
    return told


def said(desk: Desk) -> dict[str, Any]:
    """Group -> its decision without the cut."""
    return {
        fact.group_id: (fact.decision, fact.drop_reason, fact.members, fact.mean, fact.std)
        for fact in desk.appended
        if isinstance(fact, GroupDecided)
    }


@PROPERTY
@given(groups(), st.randoms(use_true_random=False), st.sampled_from(["score", "mask"]))
def test_any_interleaving_gives_each_group_the_same_decision(
    producers: list[list[Told]], chance: random.Random, overlong: str
) -> None:
    settings = AssemblerSettings.of(
        {"groups_per_batch": 1_000, "evidence_wait_s": 0, "overlong": overlong}, "here"
    )
    plainly = Desk(settings).read(*the_run(), *[fact for each in producers for fact in each])
    plainly.decide()
    mixed = Desk(settings, partitions=3).read(*the_run())
    for fact in interleaved(producers, chance):
        mixed.read(fact)
        if chance.random() < 0.3:
            mixed.decide()
    mixed.decide()
    assert said(mixed) == said(plainly)
    assert len(said(plainly)) == sum(type(each[0]).__name__ == "GroupOpened" for each in producers)


@PROPERTY
@given(groups(), st.randoms(use_true_random=False))
def test_duplicates_change_nothing(producers: list[list[Told]], chance: random.Random) -> None:
    told = interleaved(producers, chance)
    plainly = Desk(WAITING).read(*the_run(), *told)
    plainly.decide()
    twice = Desk(WAITING).read(*the_run())
    for at, fact in enumerate(told):
        twice.read(fact)
        if chance.random() < 0.3:
            twice.read(told[chance.randrange(at + 1)])
        if chance.random() < 0.3:
            twice.decide()
    twice.read(*chance.sample(told, len(told) // 2)).decide()
    assert said(twice) == said(plainly)
    decided = Counter(f.group_id for f in twice.appended if isinstance(f, GroupDecided))
    assert set(decided.values()) <= {1}


@PROPERTY
@given(groups(), st.randoms(use_true_random=False))
def test_every_slot_has_one_disposition_after_every_prefix(
    producers: list[list[Told]], chance: random.Random
) -> None:
    settings = AssemblerSettings(groups_per_batch=2, evidence_wait_s=0.0)
    desk = Desk(settings, partitions=2).read(*the_run())
    seen: list[Fact] = []
    sizes: dict[str, int] = {}

    def check() -> None:
        for group, size in sizes.items():
            found = dispositions([fact for fact in seen if about(fact, group)])
            assert len(found) == size
        if steps := [each.step for each in seen if type(each).__name__ == "BatchAssembled"]:
            assert steps == list(range(1, len(steps) + 1))

    for fact in interleaved(producers, chance):
        desk.read(fact)
        if isinstance(fact, Fact):
            seen.append(fact)
        if type(fact).__name__ == "GroupOpened":
            sizes[fact.group_id] = fact.expected_size
        check()
        for own in desk.decide() if chance.random() < 0.3 else []:
            seen.append(own)
            check()
    seen += desk.decide()
    check()
    batched = [each for f in seen if type(f).__name__ == "BatchAssembled" for each in f.group_ids]
    assert len(batched) == len(set(batched))
    final = {group: dispositions([f for f in seen if about(f, group)]) for group in sizes}
    assert not {"in_flight", "pending", "never_started"} & {
        each for found in final.values() for each in found
    }


def about(fact: Fact, group: str) -> bool:
    """Whether a fact says anything of a group."""
    if type(fact).__name__ in ("BatchAssembled", "StepCompleted", "BatchRefused"):
        return True
    return getattr(fact, "group_id", None) == group


def test_a_step_or_a_refusal_of_its_batch_ends_a_slot() -> None:
    desk = Desk(AssemblerSettings(groups_per_batch=1)).read(*the_run())
    seen: list[Any] = [each for each in a_group(0, [1, 0, 0]) if isinstance(each, Fact)]
    desk.read(*a_group(0, [1, 0, 0]))
    seen += desk.decide()
    assert dispositions(seen) == ["decided"] * 3
    batch = seen[-1]
    trained = Teller(seed=80)("step_completed", step=1, batch_id=batch.batch_id)
    refused = Teller(seed=81)("batch_refused", batch_id=batch.batch_id, reason="stale")
    assert dispositions([*seen, trained]) == ["trained"] * 3
    assert dispositions([*seen, refused]) == ["dropped"] * 3
    assert AGENT in desk.state.leases.last_seen_us
