"""What other settings would have trained on: exact where it can be said, and a simulation."""

from __future__ import annotations

import csv
import io
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from api.cli import app
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings, BadSettings
from consumers.folded_cuts import Moment, settings_of
from consumers.recorded_cuts import AtCut
from consumers.what_if import Simulation, parse_what_if, what_if
from consumers.what_if_rows import Other, WhatIf
from ledger.facts import BatchAssembled, GroupDecided, TrajectoryJudged
from ledger.facts.lists import Stage, StopReason
from ledger.judgement import Evidence, Peers, RulesError
from ledger.log import EventLog, positions_of
from ledger.open_log import open_log
from ledger.tokens import TurnTokens
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
from tests.lived_runs import lived
from tests.test_assembler import assemble, facts, write
from tests.test_assembler_properties import interleaved

TWO = AssemblerSettings(groups_per_batch=2)


def three_groups(log: EventLog) -> None:
    """Two whole groups, and one between them of which a member has no reward; then a batch."""
    write(log, [*the_run(), *a_group(0, [1, 0, 0])])
    assemble(log, TWO)
    write(log, a_group(1, [1, 0, None]))
    assemble(log, TWO)
    write(log, a_group(2, [1, 1, 0]))
    assemble(log, TWO)


def simulated(url: str, over: str) -> WhatIf:
    with open_log(url) as log:
        return what_if(log, RUN, parse_what_if(over))


def rows(found: WhatIf, what: str) -> list[tuple[Any, ...]]:
    return [each[1:] for each in found.differences if each.what == what]


def total(found: WhatIf) -> dict[str, tuple[Any, Any]]:
    return {each.field: (each.recorded, each.simulated) for each in found.totals}


def test_the_recorded_settings_change_nothing(log_url: str) -> None:
    with open_log(log_url) as log:
        lived(log)
        ends = log.end_positions("events")
        found = what_if(log, RUN, {})
        assert log.end_positions("events") == ends  # nothing is appended
        decided = {fact.group_id for fact in facts(log, GroupDecided)}
        batches = len(facts(log, BatchAssembled))
    assert (found.differences, found.not_simulated) == ([], [])
    assert total(found)["groups"] == (len(decided), len(decided))
    assert total(found)["batches"] == (batches, batches)
    assert all(each.recorded == each.simulated for each in found.totals)


def test_dropping_incomplete_groups_would_have_put_the_next_one_into_the_batch(
    sqlite_url: str,
) -> None:
    with open_log(sqlite_url) as log:
        three_groups(log)
    found = simulated(sqlite_url, "on_infra_failure=drop_group")
    zero, one, two = (group_id(number) for number in range(3))
    assert rows(found, "batch") == [
        (1, None, None, None, "groups", f"{zero} {one}", f"{zero} {two}"),
        (1, None, None, None, "members trained on", 5, 6),
    ]
    why = "2 of 3 vote, 1 reward_missing"
    assert rows(found, "group") == [
        (None, one, "task 1", None, "decision", f"batch ({why})", f"dropped: group_policy ({why})"),
        (None, one, "task 1", None, "step", 1, None),
        (None, two, "task 2", None, "step", None, 1),
    ]
    gone = [(slot, round(before, 4), after) for slot, before, after in advantages(found, 1)]
    assert gone == [(0, 0.7071, None), (1, -0.7071, None)]
    assert total(found)["members trained on"] == (5, 6)
    assert total(found)["groups dropped: group_policy"] == (0, 1)


def advantages(found: WhatIf, group: int) -> list[tuple[int, Any, Any]]:
    slots = {trajectory_id(group, slot): slot for slot in range(8)}
    return [
        (slots[each.trajectory_id or ""], each.recorded, each.simulated)
        for each in found.differences
        if each.what == "member" and each.group_id == group_id(group) and each.field == "advantage"
    ]


def test_another_algorithm_changes_advantages_and_nothing_else(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        three_groups(log)
    found = simulated(sqlite_url, "algorithm=rloo")
    assert rows(found, "group") == []
    assert rows(found, "batch") == [(1, None, None, None, "other advantages", 0, 5)]
    assert {each.field for each in found.differences if each.what == "member"} == {"advantage"}
    assert [(slot, after) for slot, _, after in advantages(found, 1)] == [(0, 1.0), (1, -1.0)]
    assert [(slot, after) for slot, _, after in advantages(found, 0)] == [
        (0, pytest.approx(1.0)),
        (1, pytest.approx(-0.5)),
        (2, pytest.approx(-0.5)),
    ]


def test_masking_overlong_attempts_takes_their_gradient_and_not_their_vote(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
        write(log, a_group(1, [1, 0], stop=StopReason.TURN_CAP))
        assemble(log, TWO)
    found = simulated(sqlite_url, "overlong=mask")
    # All of group 1 ran into a cap: nothing of it would be left to train on.
    decision = next(row for row in rows(found, "group") if row[4] == "decision")
    assert decision[1:3] == (group_id(1), "task 1")
    assert decision[5:] == ("batch (2 of 2 vote)", "dropped: group_policy (2 of 2 vote)")
    assert total(found)["members masked"] == (0, 2)
    assert total(found)["members that vote"] == (4, 4)
    assert total(found)["batches"] == (1, 0)


def with_a_lost_sandbox(group: int, rewards: list[float]) -> list[Told]:
    """The last attempt lost its sandbox in setup, and was scored 0 for it."""
    tell = Teller(seed=group)
    told: list[Told] = [opened(tell, group, len(rewards) + 1)]
    for slot, reward in enumerate(rewards):
        told += an_attempt(tell, group, slot, reward)
    end: dict[str, Any] = {"stage": Stage.SETUP, "error_type": "SandboxException"}
    return told + an_attempt(tell, group, len(rewards), 0.0, stop=StopReason.ERROR, **end)


def test_under_a_rule_set_that_blames_the_policy_the_failure_votes_as_a_zero(
    sqlite_url: str,
) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *with_a_lost_sandbox(0, [1, 1, 1, 1, 0, 0, 0])])
        write(log, with_a_lost_sandbox(1, [1, 1, 1, 1, 1, 1, 1]))
        assemble(log, AssemblerSettings(groups_per_batch=1))
    found = simulated(sqlite_url, "rules=2")
    of_first = {slot: (before, after) for slot, before, after in advantages(found, 0)}
    assert of_first[0] == (pytest.approx(0.80, abs=0.005), pytest.approx(0.94, abs=0.005))
    assert of_first[7] == (None, pytest.approx(-0.94, abs=0.005))
    # All that could pass did: there is nothing to learn, but for a false gradient.
    of_second = {slot: (before, after) for slot, before, after in advantages(found, 1)}
    assert of_second[0] == (None, pytest.approx(0.354, abs=0.0005))
    assert of_second[7] == (None, pytest.approx(-2.475, abs=0.0005))
    (flip,) = [row for row in rows(found, "group") if row[4] == "decision"]
    assert flip[5:] == (
        "dropped: zero_variance (7 of 8 vote, 1 infrastructure)",
        "batch (8 of 8 vote)",
    )


def test_batches_of_another_size_are_put_together_as_often_as_there_are_groups(
    sqlite_url: str,
) -> None:
    with open_log(sqlite_url) as log:
        three_groups(log)
    found = simulated(sqlite_url, "groups_per_batch=1,max_untaken_batches=9")
    assert total(found)["batches"] == (1, 3)
    groups = {row[0]: row[6] for row in rows(found, "batch") if row[4] == "groups"}
    assert groups == {1: group_id(0), 2: group_id(1), 3: group_id(2)}


def test_a_group_that_would_have_been_waited_for_is_told_as_held(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        three_groups(log)
    found = simulated(sqlite_url, "on_infra_failure=refill")
    held = [
        row[6] for row in rows(found, "group") if row[1] == group_id(1) and row[4] == "decision"
    ]
    assert held == ["held (a refill is asked for, slot 2: reward_missing)"]
    assert total(found)["groups held"] == (0, 1)


@pytest.mark.parametrize(
    ("over", "error", "message"),
    [
        ("min_vald=6", BadSettings, "there is no setting min_vald"),
        ("algorithm=ppo", BadSettings, "algorithm must be one of grpo, dr_grpo, rloo, got 'ppo'"),
        ("min_valid=1", BadSettings, "min_valid must be at least 2, got 1 (--what-if)"),
        ("min_valid", BadSettings, "settings must be name=value with commas, got 'min_valid'"),
        ("min_valid=2,min_valid=3", BadSettings, "must be given once, got min_valid twice"),
        ("rules=99", RulesError, "there is no rule set 99"),
    ],
)
def test_settings_that_can_not_be_are_refused_with_value_rule_and_place(
    sqlite_url: str, over: str, error: type[Exception], message: str
) -> None:
    with open_log(sqlite_url) as log:
        three_groups(log)
    with pytest.raises(error) as caught:
        simulated(sqlite_url, over)
    assert message in str(caught.value)
    assert error is not BadSettings or "--what-if" in str(caught.value)


def test_the_command_prints_totals_and_what_differs_and_says_that_it_is_a_simulation(
    sqlite_url: str,
) -> None:
    with open_log(sqlite_url) as log:
        three_groups(log)
    command = ["replay", "--what-if", "min_valid=3", "--log", sqlite_url, "--format", "csv"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "a simulation of min_valid=3: it has no recorded cut" in done.stderr
    printed = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(printed[0]) == ["run", *Other._fields]
    flips = [row for row in printed if row["what"] == "group" and row["field"] == "decision"]
    assert [(row["task_id"], row["simulated"]) for row in flips] == [
        ("task 1", "dropped: too_few_valid (2 of 3 vote, 1 reward_missing)")
    ]


def cuts_of(desk: Desk) -> list[AtCut]:
    """What a desk decided, cut by cut."""
    cuts: dict[str, AtCut] = {}
    evidence: dict[str, Evidence] = {}
    for fact in desk.appended:
        if isinstance(fact, TrajectoryJudged):
            evidence[fact.trajectory_id] = Evidence.read(fact.evidence)
        elif isinstance(fact, GroupDecided | BatchAssembled):
            at = cuts.setdefault(str(fact.cut), AtCut(fact.cut, evidence=evidence))
            if isinstance(fact, GroupDecided):
                at.decisions.append(fact)
            else:
                at.batches.append(fact)
    return list(cuts.values())


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["carry_over", "first_k"]),
    st.sampled_from(["survivors", "drop_group", "refill"]),
    st.sampled_from(["score", "mask"]),
)
def test_whatever_was_lived_through_the_recorded_settings_differ_in_nothing(
    seed: int, over_sampling: str, on_infra_failure: str, overlong: str
) -> None:
    chance = random.Random(seed)
    chosen = AssemblerSettings.of(
        {
            "groups_per_batch": 2,
            "over_sampling": over_sampling,
            "on_infra_failure": on_infra_failure,
            "overlong": overlong,
            "max_refills": 0,
            "max_staleness": 1,
        },
        "here",
    )
    stories: list[list[Told]] = []
    for number in range(8):
        rewards = [chance.choice([0.0, 1.0, 1.0, None]) for _ in range(3)]
        stop = chance.choice([StopReason.SUBMITTED, StopReason.TURN_CAP])
        stories.append(a_group(number, rewards, turns=1, stop=stop))
    desk = Desk(chosen, partitions=2).read(*the_run())
    trained: set[str] = set()
    tell = Teller(seed=900)
    for fact in interleaved(stories, chance):
        desk.read(fact)
        if chance.random() < 0.2:
            desk.decide()
        if chance.random() < 0.05:
            desk.read(tell("weights_published", policy_version=3 + len(trained)))
        for batch in [each for each in desk.appended if isinstance(each, BatchAssembled)]:
            if batch.batch_id not in trained and chance.random() < 0.1:
                trained.add(batch.batch_id)
                desk.read(tell("step_completed", step=batch.step, batch_id=batch.batch_id))
    desk.decide()
    found = simulated_at_desk(desk, chosen, {})
    assert found.differences == []
    assert total(found)["groups"][0] == len(
        {fact.group_id for fact in desk.appended if isinstance(fact, GroupDecided)}
    )
    other = simulated_at_desk(desk, chosen, {"groups_per_batch": 1, "max_untaken_batches": 99})
    batches, more = total(other)["batches"] if other.totals else (0, 0)
    assert more >= batches


def simulated_at_desk(desk: Desk, chosen: AssemblerSettings, over: dict[str, Any]) -> WhatIf:
    """A simulation over what a desk has read: the fold, cut by cut."""
    simulation = Simulation(RUN, over)
    state = RunState(RUN, chosen, Peers())
    left = list(desk.records)
    for recorded in cuts_of(desk):
        upto = positions_of(recorded.cut.positions)
        for place, offset, at_us, told in [r for r in left if r[1] < upto.get(r[0], 0)]:
            if isinstance(told, TurnTokens):
                state.take_tokens(place.partition, offset, at_us, told)
            else:
                state.take_event(place.partition, offset, at_us, told)
                simulation.see(told)
        left = [r for r in left if r[1] >= upto.get(r[0], 0)]
        simulation.look(Moment(recorded, state, settings_of(recorded.cut)))
    return simulation.finish(None)


def test_a_setting_that_decides_nothing_is_refused_by_name() -> None:
    with pytest.raises(BadSettings, match=r"vocabulary_size can't be simulated.*\(--what-if\)"):
        parse_what_if("min_valid=2,vocabulary_size=100")
