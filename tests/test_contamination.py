"""Attempts that voted though they were lost, that didn't though the policy ended them, and zeros
that nobody gave. Groups are decided by the assembler itself; evidence comes behind it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from consumers.advantages import Algorithm, advantages, zero_variance
from consumers.assembling.settings import AssemblerSettings
from ledger.facts import Fact, GroupDecided
from ledger.facts.lists import Blame, ExclusionReason, Outcome, Stage, StopReason
from ledger.open_log import open_log
from tests.accounts import attempt, facts_of
from tests.assembled import (
    RUN,
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
from tests.books import append, projected, rows
from tests.builders import an_id

SETTINGS = {"groups_per_batch": 1, "max_untaken_batches": 100, "evidence_wait_s": 0}


def judged(group: int, slot: int, number: int = 0, **fields: Any) -> Any:
    """Another judgement of an attempt: lost to the infrastructure, unless told otherwise."""
    usual: dict[str, Any] = {
        "rule_set": 1,
        "outcome": Outcome.ERRORED,
        "cause_stage": Stage.TOOL,
        "cause_class": "sandbox_lost",
        "blame": Blame.INFRASTRUCTURE,
        "trainable": False,
    }
    tell = Teller(an_id("judge"), seed=1_000 + 100 * group + 10 * slot + number)
    of = {"group_id": group_id(group), "slot": slot, "trajectory_id": trajectory_id(group, slot)}
    return tell("trajectory_judged", **of, **(usual | fields))


def decided(*groups: Sequence[Told], **settings: Any) -> list[Fact]:
    """Groups as the assembler decides them, one after the other."""
    desk = Desk(AssemblerSettings.of(SETTINGS | settings, "here")).read(*the_run())
    for told in groups:
        desk.read(*told)
        desk.decide()
    return facts_of(desk)


def with_lost(group: int, endings: Sequence[str]) -> list[Told]:
    tell = Teller(seed=group)
    told: list[Told] = [opened(tell, group, len(endings))]
    for slot, ending in enumerate(endings):
        told += attempt(tell, group, slot, ending)
    return told


def members_changed(facts: Sequence[Fact], group: int, slot: int, **fields: Any) -> list[Fact]:
    """The group's decision says something else of one member."""
    return [
        replace(fact, members=[replace(m, **fields) if m.slot == slot else m for m in fact.members])
        if isinstance(fact, GroupDecided) and fact.group_id == group_id(group)
        else fact
        for fact in facts
    ]


def each_once(facts: Sequence[Fact]) -> list[Fact]:
    """Facts of several desks, which all declare the same run, numbered anew."""
    once = list({fact.event_id: fact for fact in facts}.values())
    return [replace(fact, producer_seq=number, incarnation=RUN) for number, fact in enumerate(once)]


RANDOM = [random.Random(seed).choices([0.0, 1.0, 0.5, 0.25], k=seed % 5 + 3) for seed in range(12)]
"""Rewards of groups 40 on, whose last attempt was lost."""


def the_log() -> list[Fact]:
    facts = decided(
        a_group(0, [1, 1, 1, 1, 0, 0, 0, 0]),
        a_group(1, [1, 0, 0, 0, 0, 0, 0, 0]),
        a_group(2, [1, 1, 1, 1, 1, 1, 1, 0]),
        with_lost(3, ["passes"] * 4 + ["fails"] * 3 + ["lost"]),
        a_group(4, [1, 1, 0, 0]),
        with_lost(5, ["passes", "fails", "passes", "lost"]),
        a_group(6, [1, 0, 0, 0]),
        with_lost(7, ["passes", "fails", "passes", "lost"]),
        with_lost(8, ["passes", "fails", "fails"]),
        a_group(9, [1, 1, 1, 1]),
    )
    for number, algorithm in enumerate(Algorithm):
        facts += decided(a_group(20 + number, [0, 1, 0]), algorithm=algorithm)
    for number, rewards in enumerate(RANDOM):
        facts += decided(
            a_group(40 + number, rewards), algorithm=list(Algorithm)[number % 3], min_valid=2
        )
    facts += decided(a_group(30, [1, 0, 1, 0]), min_valid=4)
    facts += decided(a_group(31, [1, 0, 1, 0]), on_infra_failure="drop_group")
    # An attempt that was known to be lost, and one whose zero is invented.
    facts = members_changed(facts, 5, 3, votes=True, reward=0.0, exclusion_reason=None)
    facts = members_changed(facts, 8, 1, reward_event_id=None)
    facts = members_changed(
        facts, 7, 1, votes=False, exclusion_reason=ExclusionReason.UNKNOWN, advantage=None
    )
    facts += [judged(0, 7), *(judged(1, slot) for slot in (5, 6, 7)), judged(2, 7)]
    facts += [
        judged(4, 0, blame=Blame.VERIFIER, cause_stage=Stage.VERIFY),
        judged(4, 3, rule_set=2, blame=Blame.SCHEDULER, cause_class="starved"),
        judged(6, 1),
        judged(6, 1, 1, blame=None, cause_class=None, cause_stage=None, trainable=True),
        judged(6, 2, blame=Blame.TASK),
        judged(7, 1, blame=Blame.POLICY, cause_class="turn_cap"),
        judged(7, 3, blame=Blame.POLICY, rule_set=2),
        judged(9, 0),
        judged(30, 3),
        judged(31, 3),
    ]
    facts += [judged(20 + number, 2) for number in range(len(Algorithm))]
    facts += [judged(40 + number, len(rewards) - 1) for number, rewards in enumerate(RANDOM)]
    return each_once(facts)


Ask = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    folder = tmp_path_factory.mktemp("contamination")
    return book_of(the_log(), folder)


def book_of(facts: Sequence[Fact], folder: Path) -> Ask:
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        append(log, facts)
    inserted = projected(url, folder / "book")
    assert (inserted.facts, inserted.quarantined) == (len(facts), 0)
    return lambda query: rows(folder / "book", query)


def rounded(values: Sequence[float | None], digits: int = 2) -> list[float | None]:
    return [None if value is None else round(value, digits) for value in values]


def advantages_of(ask: Ask, group: int, rule_set: int = 1) -> list[Any]:
    return ask(
        "SELECT advantages_with, advantages_without, would_be_dropped FROM contamination"
        f" WHERE group_id = '{group_id(group)}' AND rule_set = {rule_set}"
    )


def test_a_pass_among_four_of_seven_is_worth_less_where_a_lost_attempt_does_not_vote(
    ask: Ask,
) -> None:
    ((voted, without, dropped),) = advantages_of(ask, 0)
    assert rounded(voted) == [0.94] * 4 + [-0.94] * 4
    assert rounded(without) == [0.80] * 4 + [-1.07] * 3 + [None]
    assert dropped is None


def test_a_group_that_is_decided_without_its_lost_attempt_is_not_contaminated(ask: Ask) -> None:
    of = f"FROM members WHERE group_id = '{group_id(3)}' ORDER BY slot"
    assert rounded([value for (value,) in ask(f"SELECT advantage {of}")]) == (
        [0.80] * 4 + [-1.07] * 3 + [None]
    )
    assert advantages_of(ask, 3) == []


def test_a_single_pass_of_five_is_blown_up_by_three_lost_attempts(ask: Ask) -> None:
    found = advantages_of(ask, 1)
    assert len(found) == 3  # a row for each
    for voted, without, dropped in found:
        assert rounded(voted) == [2.47] + [-0.35] * 7
        assert rounded(without) == [1.79] + [-0.45] * 4 + [None] * 3
        assert dropped is None


def test_a_group_that_passed_whenever_it_ran_has_a_false_gradient(ask: Ask) -> None:
    ((voted, without, dropped),) = advantages_of(ask, 2)
    assert rounded(voted, 3) == [0.354] * 7 + [-2.475]
    assert (without, dropped) == ([None] * 8, "zero_variance")


def test_what_the_decision_knew_is_apart_from_what_came_after_it(ask: Ask) -> None:
    assert ask(
        "SELECT slot, rule_set, known, cause_class, blame, contaminating, votes_with, votes_without"
        f" FROM contamination WHERE group_id IN ('{group_id(4)}', '{group_id(5)}')"
        " ORDER BY known, slot"
    ) == [
        (3, 1, "at_decision", "timeout", "infrastructure", 1, 4, 3),
        (0, 1, "late_evidence", "sandbox_lost", "verifier", 1, 4, 3),
        (3, 2, "late_evidence", "starved", "scheduler", 1, 4, 3),
    ]


def test_of_several_judgements_by_a_rule_set_the_newest_counts_and_a_task_s_fault_is_none(
    ask: Ask,
) -> None:
    assert advantages_of(ask, 6) == []


def test_a_group_without_variance_was_dropped_already(ask: Ask) -> None:
    assert advantages_of(ask, 9) == [([None] * 4, [None] * 4, None)]


@pytest.mark.parametrize(("group", "reason"), [(30, "too_few_valid"), (31, "group_policy")])
def test_would_be_dropped_goes_by_the_settings_of_the_decision(
    ask: Ask, group: int, reason: str
) -> None:
    assert [each[1:] for each in advantages_of(ask, group)] == [([None] * 4, reason)]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("grpo", [-0.7071, 0.7071]), ("dr_grpo", [-0.5, 0.5]), ("rloo", [-1.0, 1.0])],
)
def test_rewards_of_0_and_1_by_each_algorithm(
    ask: Ask, algorithm: str, expected: list[float]
) -> None:
    group = 20 + [str(each) for each in Algorithm].index(algorithm)
    ((_, without, _),) = advantages_of(ask, group)
    assert rounded(without, 4) == [*expected, None]


def test_advantages_are_those_that_the_assembler_would_have_computed(ask: Ask) -> None:
    compared = 0
    for number, rewards in enumerate(RANDOM):
        ((voted, without, dropped),) = advantages_of(ask, 40 + number)
        algorithm = list(Algorithm)[number % 3]
        if voted[0] is None:
            assert zero_variance(rewards)
        elif zero_variance(rewards[:-1]):
            assert (dropped, without) == ("zero_variance", [None] * len(rewards))
        else:
            assert voted == pytest.approx(advantages(algorithm, rewards), abs=1e-12)
            assert without[:-1] == pytest.approx(advantages(algorithm, rewards[:-1]), abs=1e-9)
            assert (without[-1], dropped) == (None, None)
            compared += 1
    assert compared > 6


def test_each_vote_of_a_touched_group_is_a_row(ask: Ask) -> None:
    assert ask(
        "SELECT slot, contaminates, known, reward, round(advantage_with, 2),"
        f" round(advantage_without, 2) FROM contaminated_votes WHERE group_id = '{group_id(4)}'"
        " AND rule_set = 1 ORDER BY slot"
    ) == [
        (0, True, "late_evidence", 1.0, 0.87, None),
        (1, False, None, 1.0, 0.87, 1.15),
        (2, False, None, 0.0, -0.87, -0.58),
        (3, False, None, 0.0, -0.87, -0.58),
    ]


def test_the_policy_s_own_failures_that_did_not_vote(ask: Ask) -> None:
    assert ask(
        "SELECT slot, rule_set, known, cause_class, exclusion_reason, reward, slot_voted, votes,"
        " mean_without, mean_with FROM false_exclusion ORDER BY slot"
    ) == [
        (1, 1, "late_evidence", "turn_cap", "unknown", 0.0, False, 2, 1.0, pytest.approx(2 / 3)),
        (3, 2, "late_evidence", "sandbox_lost", "infrastructure", None, False, 2, 1.0, None),
    ]


def test_a_zero_that_no_verifier_gave(ask: Ask) -> None:
    assert ask("SELECT group_id, slot, reward, evidence FROM fabricated_zero ORDER BY slot") == [
        (UUID(group_id(8)), 1, 0.0, "no reward fact"),
        (UUID(group_id(5)), 3, 0.0, "no reward fact"),
    ]


def test_a_verdict_that_was_none_and_voted_as_0_is_fabricated(tmp_path: Path) -> None:
    facts = decided(with_lost(0, ["passes", "fails", "passes", "null"]))
    facts = members_changed(facts, 0, 3, votes=True, reward=0.0, exclusion_reason=None)
    ask = book_of(each_once(facts), tmp_path)
    assert ask("SELECT slot, evidence FROM fabricated_zero") == [
        (3, "a reward fact without a value")
    ]


def test_an_attempt_that_ran_into_a_cap_and_was_left_out_is_known_at_the_decision(
    tmp_path: Path,
) -> None:
    tell = Teller(seed=0)
    told: list[Told] = [opened(tell, 0, 3)]
    for slot, (reward, stop) in enumerate(
        [(1, StopReason.SUBMITTED), (0, StopReason.SUBMITTED), (0, StopReason.TURN_CAP)]
    ):
        told += an_attempt(tell, 0, slot, reward, stop=stop)
    facts = members_changed(
        decided(told), 0, 2, votes=False, exclusion_reason=ExclusionReason.UNKNOWN, advantage=None
    )
    ask = book_of(each_once(facts), tmp_path)
    assert ask("SELECT slot, known, cause_class, blame FROM false_exclusion") == [
        (2, "at_decision", "turn_cap", "policy")
    ]
