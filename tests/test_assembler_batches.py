"""The queue: which groups a batch takes, when, and which leave it for nothing; deciding again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumers.assembling.settings import AssemblerSettings
from consumers.replay_batches import replay_batches
from ledger.batch_log import read_batches
from ledger.facts import BatchAssembled, GroupDecided
from ledger.open_log import open_log
from tests.assembled import RUN, Desk, Teller, a_group, group_id, the_run
from tests.test_assembler import assemble, facts, write


def desk(**settings: Any) -> Desk:
    return Desk(AssemblerSettings.of(settings, "here")).read(*the_run())


def batches(at: Desk) -> list[tuple[int, set[int]]]:
    """(step, numbers of its groups) of each batch."""
    numbers = {group_id(number): number for number in range(100)}
    return [
        (fact.step, {numbers[each] for each in fact.group_ids})
        for fact in at.appended
        if isinstance(fact, BatchAssembled)
    ]


def train(at: Desk, step: int, version: int | None = None) -> None:
    """The trainer takes the batch of a step, and publishes what it made."""
    tell = Teller(seed=500 + step)
    batch = next(f for f in at.appended if isinstance(f, BatchAssembled) and f.step == step)
    at.read(tell("step_completed", step=step, batch_id=batch.batch_id))
    if version is not None:
        at.read(tell("weights_published", policy_version=version))


def test_surplus_groups_are_carried_over() -> None:
    at = desk(groups_per_batch=2)
    for number in range(3):
        at.read(*a_group(number, [1, 0]))
    at.decide()
    assert batches(at) == [(1, batches(at)[0][1])]
    assert len(at.state.queue) == 1
    at.read(*a_group(3, [1, 0])).decide()
    assert [step for step, _ in batches(at)] == [1, 2]
    assert set.union(*[groups for _, groups in batches(at)]) == {0, 1, 2, 3}


def test_first_k_drops_the_surplus_and_those_that_come_too_late_for_their_step() -> None:
    at = desk(groups_per_batch=2, over_sampling="first_k", mode="sync")
    for number in range(3):
        at.read(*a_group(number, [1, 0], target_step=1))
    at.decide()
    late = a_group(3, [1, 0], target_step=1)
    at.read(*late).decide()
    outcomes = at.decided()
    assert sorted(outcomes.values()) == ["batch", "batch"] + ["dropped: over_sampled"] * 2
    assert outcomes[3] == "dropped: over_sampled"


def test_a_queued_group_that_becomes_stale_or_orphaned_is_dropped_with_its_members() -> None:
    at = desk(groups_per_batch=2)
    at.read(*a_group(0, [1, 0])).decide()
    assert at.decided() == {0: "batch"}
    at.read(Teller(seed=600)("weights_published", policy_version=6)).decide()
    assert at.decided() == {0: "dropped: stale"}
    first, last = [fact for fact in at.appended if isinstance(fact, GroupDecided)]
    assert first.event_id != last.event_id
    assert [member.votes for member in last.members] == [True, True]
    assert [member.advantage for member in last.members] == [None, None]
    at.read(*a_group(1, [1, 0], version=6)).decide()
    at.read(Teller(seed=601)("weights_orphaned", policy_version=6)).decide()
    assert at.decided()[1] == "dropped: orphaned_version"
    assert batches(at) == []


def test_no_more_batches_than_the_trainer_has_room_for() -> None:
    at = desk(groups_per_batch=1, max_untaken_batches=2, max_untaken_groups=3)
    for number in range(6):
        at.read(*a_group(number, [1, 0])).decide()
    assert len(batches(at)) == 2
    assert len(at.decided()) == 3  # the others wait undecided
    assert len(at.state.pending) == 3
    train(at, 1)
    at.decide()
    assert len(batches(at)) == 3
    held = [fact for fact in at.appended if isinstance(fact, BatchAssembled)][-1]
    assert held.held_s > 0
    for step in range(2, 7):
        train(at, step)
        at.decide()
    assert [step for step, _ in batches(at)] == [1, 2, 3, 4, 5, 6]
    assert at.decided() == dict.fromkeys(range(6), "batch")


def test_groups_that_are_dropped_need_no_room() -> None:
    at = desk(groups_per_batch=1, max_untaken_groups=1, max_untaken_batches=1)
    at.read(*a_group(0, [1, 0]), *a_group(1, [1, 1])).decide()
    assert at.decided() == {0: "batch", 1: "dropped: zero_variance"}


def test_a_refused_batch_makes_room() -> None:
    at = desk(groups_per_batch=1, max_untaken_batches=1)
    at.read(*a_group(0, [1, 0]), *a_group(1, [1, 0])).decide()
    (first,) = [fact for fact in at.appended if isinstance(fact, BatchAssembled)]
    at.read(Teller(seed=700)("batch_refused", batch_id=first.batch_id, reason="stale")).decide()
    assert [step for step, _ in batches(at)] == [1, 2]


def test_in_sync_mode_a_batch_takes_groups_of_its_own_step_when_the_one_before_was_trained() -> (
    None
):
    at = desk(mode="sync", groups_per_batch=2)
    for number in (0, 1):
        at.read(*a_group(number, [1, 0], target_step=2, version=4))
    for number in (2, 3):
        at.read(*a_group(number, [1, 0], target_step=1))
    at.decide()
    assert batches(at) == [(1, {2, 3})]
    train(at, 1, version=4)
    at.decide()
    assert batches(at) == [(1, {2, 3}), (2, {0, 1})]


def test_groups_of_later_steps_never_keep_the_next_steps_groups_out() -> None:
    at = desk(mode="sync", groups_per_batch=2, max_untaken_groups=2, max_staleness=9)
    for number in range(4):
        at.read(*a_group(number, [1, 0], target_step=2)).decide()
    assert len(at.decided()) == 2
    for number in range(4, 6):
        at.read(*a_group(number, [1, 0], target_step=1)).decide()
    assert batches(at) == [(1, {4, 5})]
    train(at, 1)
    at.decide()
    assert [step for step, _ in batches(at)] == [1, 2]


def test_a_short_batch_when_no_more_groups_come_for_its_step() -> None:
    at = desk(mode="sync", groups_per_batch=3, short_batches=True)
    for number, rewards in enumerate(([1, 0], [1, 1], [0, 0])):
        at.read(*a_group(number, rewards, target_step=1))
    at.decide()
    assert batches(at) == [(1, {0})]
    waits = desk(mode="sync", groups_per_batch=3)
    for number, rewards in enumerate(([1, 0], [1, 1], [0, 0])):
        waits.read(*a_group(number, rewards, target_step=1))
    waits.decide()
    assert batches(waits) == []


def test_the_hash_is_over_members_advantages_and_configuration() -> None:
    def sha256(rewards: list[float | None], **settings: Any) -> str:
        at = desk(groups_per_batch=1, **settings).read(*a_group(0, rewards))
        at.decide()
        return at.appended[-1].batch_sha256

    assert sha256([1, 0]) == sha256([1, 0])
    others = {sha256([0, 1]), sha256([1, 0], algorithm="rloo"), sha256([1, 0], max_refills=1)}
    assert len(others | {sha256([1, 0])}) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"groups_per_batch": 2},
        {"groups_per_batch": 2, "over_sampling": "first_k", "algorithm": "rloo"},
        {"groups_per_batch": 3, "overlong": "mask", "on_infra_failure": "drop_group"},
        {"groups_per_batch": 2, "on_infra_failure": "refill", "max_refills": 0},
    ],
)
def test_decided_again_at_its_cut_everything_comes_out_the_same(
    sqlite_url: str, settings: dict[str, Any]
) -> None:
    chance = random.Random(7)
    chosen = AssemblerSettings.of(settings, "here")
    with open_log(sqlite_url) as log:
        write(log, the_run())
        for number in range(12):
            rewards = [chance.choice([0.0, 1.0, 1.0, None]) for _ in range(3)]
            told = a_group(number, rewards)
            write(log, told[: len(told) // 2])
            if number % 3 == 0:
                assemble(log, chosen)
            write(log, told[len(told) // 2 :])
            if number == 6:
                write(log, [Teller(seed=800)("weights_published", policy_version=6)])
            for taken in read_batches(log, RUN):
                seed = 810 + (taken.batch.step or 0)
                step = Teller(seed=seed)("step_completed", batch_id=taken.batch.batch_id)
                write(log, [step])
        assemble(log, chosen)
        again = replay_batches(log, RUN)
        assembled = sorted(facts(log, BatchAssembled), key=lambda fact: fact.step)
        decided = facts(log, GroupDecided)
    assert (again.differences, again.gone) == ([], [])
    assert again.batches.equal == len(assembled)
    assert again.groups.equal == len(decided) >= 12


def test_deciding_again_finds_a_decision_that_the_facts_do_not_bear_out(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0, 0])])
        assemble(log, AssemblerSettings(groups_per_batch=1))
        (decided,) = facts(log, GroupDecided)
    forged = sqlite_url.replace("log.db", "forged.db")
    with open_log(sqlite_url) as log, open_log(forged) as other:
        write(other, [*the_run(), *a_group(0, [0, 1, 0])])
        write(other, [decided])
        forgeries = replay_batches(other, RUN).differences
        assert {each.group_id for each in forgeries} == {group_id(0)}
        assert {each.field for each in forgeries} == {"decision"}
        assert replay_batches(log, RUN).same
