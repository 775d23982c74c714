"""Every slot has come to exactly one thing, after every prefix of a log, and the books balance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from consumers.assembling.settings import AssemblerSettings
from ledger.facts import BatchAssembled, BatchRefused, Fact, GroupOpened, StepCompleted
from ledger.facts.lists import Outcome, RunKind
from ledger.open_log import open_log
from tests.accounts import TRAINER, Accounts, attempt, facts_of, in_order, story
from tests.assembled import AGENT, Desk, Teller, a_group, group_id, opened, the_run, trajectory_id
from tests.books import append, projected, rows
from tests.builders import an_id
from tests.dispositions_reference import Disposition, dispositions

A_FEW = settings(
    deadline=None,
    max_examples=2,
    phases=[Phase.explicit, Phase.generate],  # a smaller log is no clearer: the seed is printed
    suppress_health_check=[HealthCheck.too_slow],
)
ABOUT_ANY_GROUP = (BatchAssembled, BatchRefused, StepCompleted)
COLUMNS = "slot, disposition, reason, trajectory_id, step, target_step, batch_id"


def by_reference(facts: list[Fact]) -> dict[str, list[str]]:
    """Group -> what its slots have come to, by the assembler's own account."""
    groups = [fact.group_id for fact in facts if isinstance(fact, GroupOpened)]
    return {
        group: [
            str(each)
            for each in dispositions(
                fact
                for fact in facts
                if isinstance(fact, ABOUT_ANY_GROUP) or getattr(fact, "group_id", None) == group
            )
        ]
        for group in groups
    }


@A_FEW
@given(st.integers(0, 2**32), st.sampled_from([RunKind.TRAIN, RunKind.TRAIN, RunKind.EVAL]))
@example(3, RunKind.TRAIN)
def test_the_books_balance_after_every_prefix(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: RunKind
) -> None:
    chance = random.Random(seed)
    facts = story(chance, kind)
    with Accounts(facts, tmp_path_factory.mktemp("prefixes")) as book:
        for end in [*chance.sample(range(len(facts)), 3), len(facts)]:
            book.as_of(end)
            assert book.broken() == [], end
            assert book.dispositions() == by_reference(facts[:end]), end
        # What one partition tells holds however far the others were read.
        for _ in range(2):
            ends = [chance.randint(0, len(facts)) for _ in range(4)]
            assert book.as_of(*ends).broken("partition") == [], ends


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_books_balance_after_every_prefix_of_many_logs(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(40):
        chance = random.Random(seed)
        facts = story(chance, RunKind.EVAL if seed % 4 == 3 else RunKind.TRAIN)
        folder = tmp_path / str(seed)
        folder.mkdir()
        with Accounts(facts, folder) as book:
            for end in range(0, len(facts) + 1, 1 if seed < 4 else 7):
                book.as_of(end)
                assert book.broken() == [], (seed, end)
                found = book.dispositions()
                assert found == by_reference(facts[:end]), (seed, end)
                seen |= {each for slots in found.values() for each in slots}
    assert seen == set(Disposition)


def of(tmp_path: Path, facts: list[Fact], query: str) -> list[Any]:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_log(url) as log:
        append(log, in_order(facts))
    projected(url, tmp_path / "book")
    assert rows(tmp_path / "book", "FROM conservation") == []
    return [
        tuple(str(each) if isinstance(each, UUID) else each for each in row)
        for row in rows(tmp_path / "book", query)
    ]


def test_a_slot_says_why_it_was_not_trained_on(tmp_path: Path) -> None:
    """One slot each: masked and trained, excluded, and never started."""
    desk = Desk(AssemblerSettings.of({"groups_per_batch": 1, "overlong": "mask"}, "here"))
    desk.read(*the_run(), opened(Teller(AGENT, seed=1), 0, 5, target_step=4))
    for slot, ending in enumerate(["passes", "fails", "truncated", "lost"]):
        desk.read(*attempt(Teller(an_id("agent", slot), seed=2 + slot), 0, slot, ending))
    desk.wait(4_000).decide()
    batch = next(fact for fact in desk.appended if isinstance(fact, BatchAssembled))
    desk.read(Teller(TRAINER, seed=50)("step_completed", step=1, batch_id=batch.batch_id))
    t0, t1, t2, t3 = (trajectory_id(0, slot) for slot in range(4))
    assert of(tmp_path, facts_of(desk), f"SELECT {COLUMNS} FROM dispositions ORDER BY slot") == [
        (0, "trained", None, t0, 1, 4, batch.batch_id),
        (1, "trained", None, t1, 1, 4, batch.batch_id),
        (2, "masked", None, t2, 1, 4, batch.batch_id),
        (3, "excluded", "infrastructure", t3, 1, 4, batch.batch_id),
        (4, "never_started", None, None, 1, 4, batch.batch_id),
    ]


def test_the_votes_of_a_dropped_group_are_dropped_with_its_reason(tmp_path: Path) -> None:
    desk = Desk().read(*the_run(), *a_group(0, [1, 1, None]))
    desk.decide()
    query = "SELECT slot, disposition, reason, step FROM dispositions ORDER BY slot"
    assert of(tmp_path, facts_of(desk), query) == [
        (0, "dropped", "zero_variance", None),
        (1, "dropped", "zero_variance", None),
        (2, "excluded", "reward_missing", None),
    ]


def test_a_refused_batch_drops_its_slots(tmp_path: Path) -> None:
    desk = Desk(AssemblerSettings(groups_per_batch=1)).read(*the_run(), *a_group(0, [1, 0, None]))
    (batch,) = [each for each in desk.decide() if isinstance(each, BatchAssembled)]
    tell = Teller(TRAINER, seed=50)
    desk.read(tell("batch_refused", step=1, batch_id=batch.batch_id, reason="nan"))
    query = "SELECT slot, disposition, reason, step FROM dispositions ORDER BY slot"
    assert of(tmp_path, facts_of(desk), query) == [
        (0, "dropped", "refused", 1),
        (1, "dropped", "refused", 1),
        (2, "excluded", "reward_missing", 1),
    ]


def test_an_attempt_that_nobody_hears_of_again_is_abandoned(tmp_path: Path) -> None:
    desk = Desk().read(*the_run(), opened(Teller(AGENT, seed=1), 0, 2))
    desk.read(*attempt(Teller(an_id("agent"), seed=2), 0, 0, "silent"))
    desk.read(*attempt(Teller(an_id("agent", 1), seed=3), 0, 1, "passes"))
    desk.wait(4_000).decide()
    query = "SELECT slot, disposition, reason, trajectory_id FROM dispositions ORDER BY slot"
    assert of(tmp_path, facts_of(desk), query) == [
        (0, "abandoned", "infrastructure", trajectory_id(0, 0)),
        (1, "dropped", "too_few_valid", trajectory_id(0, 1)),
    ]


def test_an_attempt_that_began_when_its_group_was_decided_is_late(tmp_path: Path) -> None:
    desk = Desk().read(*the_run(), opened(Teller(AGENT, seed=1), 0, 2))
    desk.read(*attempt(Teller(an_id("agent"), seed=2), 0, 0, "passes"))
    desk.wait(4_000).decide()
    desk.read(*attempt(Teller(an_id("agent", 1), seed=3), 0, 1, "passes"))
    facts = facts_of(desk)
    query = "SELECT slot, disposition, reason, trajectory_id FROM dispositions ORDER BY slot"
    assert of(tmp_path, facts, query) == [
        (0, "dropped", "too_few_valid", trajectory_id(0, 0)),
        (1, "excluded", "late", trajectory_id(0, 1)),
    ]
    assert by_reference(facts) == {group_id(0): ["dropped", "excluded"]}


def test_the_last_of_a_slot_s_attempts_says_why_none_votes(tmp_path: Path) -> None:
    desk = Desk(AssemblerSettings.of({"on_infra_failure": "refill", "max_refills": 1}, "here"))
    tell = Teller(AGENT, seed=1)
    desk.read(*the_run(), opened(tell, 0, 2), *attempt(tell, 0, 0, "passes"))
    desk.read(*attempt(tell, 0, 1, "lost"))
    desk.decide()
    desk.read(*attempt(tell, 0, 1, "null", refill=1))
    desk.decide()
    query = "SELECT disposition, reason, trajectory_id FROM dispositions WHERE slot = 1"
    assert of(tmp_path, facts_of(desk), query) == [
        ("excluded", "reward_missing", trajectory_id(0, 1, 1))
    ]


def test_the_balance_has_a_row_per_group_and_sums_to_its_slots(tmp_path: Path) -> None:
    desk = Desk(AssemblerSettings(groups_per_batch=1)).read(*the_run(), *a_group(0, [1, 0, None]))
    desk.decide()
    desk.read(*a_group(1, [1, 1], target_step=7), opened(Teller(AGENT, seed=2), 2, 4))
    desk.decide()
    query = (
        "SELECT step, task_id, expected_size, slots, never_started, decided, dropped, excluded"
        " FROM slot_balance ORDER BY task_id"
    )
    assert of(tmp_path, facts_of(desk), query) == [
        (1, "task 0", 3, 3, 0, 2, 0, 1),
        (7, "task 1", 2, 2, 0, 0, 2, 0),
        (None, "task 2", 4, 4, 4, 0, 0, 0),
    ]


def test_an_attempt_shows_the_judgement_that_its_group_s_decision_used(tmp_path: Path) -> None:
    """Rule sets 1 and 3 say otherwise of both groups' attempts; only group 0 was decided."""
    tell = Teller(an_id("judge"), seed=70)
    desk = Desk().read(*the_run(), *a_group(0, [1, 0]), *a_group(1, [1]))
    desk.decide()
    facts = facts_of(desk)
    ids: list[dict[str, Any]] = [
        {"group_id": group_id(group), "slot": 0, "trajectory_id": trajectory_id(group, 0)}
        for group in range(2)
    ]
    facts += [
        tell("trajectory_judged", **ids[group], rule_set=rules, outcome=outcome, trainable=True)
        for group in range(2)
        for rules, outcome in ((3, Outcome.CANCELLED), (2, Outcome.ERRORED))
    ]
    query = "SELECT rule_set, outcome FROM trajectories WHERE slot = 0 ORDER BY task_id"
    assert of(tmp_path, facts, query) == [(1, "completed"), (2, "errored")]
