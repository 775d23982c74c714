"""Recorded decisions made again at their cuts: the same facts give the same, and a lie is found."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from consumers.archive import archive_and_remove
from consumers.archived_log import ArchivedLog
from consumers.assembling.settings import AssemblerSettings
from consumers.recorded_cuts import Ends, recorded_runs
from consumers.replay_batches import replay_batches, replay_run
from consumers.replay_compare import Replayed, Tally
from ledger.batch_log import read_batches, records_of
from ledger.facts import BatchAssembled, Cut, GroupDecided, Member, RewardAssigned
from ledger.facts.lists import RunKind
from ledger.open_log import open_log
from tests.assembled import RUN, a_group, group_id, the_run, trajectory_id
from tests.lived_runs import first_of, forged, lived
from tests.test_assembler import assemble, facts, write

ONE = AssemblerSettings(groups_per_batch=1)


def replayed(url: str, archive: Path | None = None) -> Replayed:
    with open_log(url) as log:
        return replay_batches(log if archive is None else ArchivedLog(log, archive), RUN)


def test_all_that_was_recorded_comes_out_the_same(log_url: str) -> None:
    with open_log(log_url) as log:
        lived(log)
        decided, assembled = facts(log, GroupDecided), facts(log, BatchAssembled)
        ends = log.end_positions("events")
        found = replay_batches(log, RUN)
        assert log.end_positions("events") == ends  # nothing is appended
        assert recorded_runs(log, ends) == [RUN]
    assert (found.differences, found.gone) == ([], [])
    assert found.groups == Tally(equal=len(decided))
    assert found.batches == Tally(equal=len(assembled))
    assert found.members == Tally(equal=sum(len(fact.members) for fact in decided))
    # The run has what is worth replaying.
    assert len({fact.cut.configuration for fact in decided}) == 2
    assert {str(fact.drop_reason) for fact in decided} >= {"None", "stale", "over_sampled"}
    assert len(assembled) == 2


def test_evaluation_groups_are_decided_by_the_same_code_and_are_in_no_batch(log_url: str) -> None:
    with open_log(log_url) as log:
        write(log, the_run(RunKind.EVAL))
        write(log, [*a_group(0, [1, 0, None]), *a_group(1, [1, 1]), *a_group(2, [0])])
        done = assemble(log, ONE).done
        decided = {fact.group_id: fact for fact in facts(log, GroupDecided)}
        assert (done.decided, done.dropped, done.batches) == (3, 0, 0)
        assert facts(log, BatchAssembled) == []
        assert list(read_batches(log, RUN)) == []
        found = replay_batches(log, RUN)
    assert [str(fact.decision) for fact in decided.values()] == ["evaluated"] * 3
    first = decided[group_id(0)]
    assert [(each.votes, each.exclusion_reason, each.advantage) for each in first.members] == [
        (True, None, None),
        (True, None, None),
        (False, "reward_missing", None),
    ]
    assert (first.mean, first.algorithm) == (0.5, "none")
    assert found.same
    assert (found.groups, found.batches) == (Tally(equal=3), Tally())


def one_batch(url: str) -> None:
    """A group whose middle attempt passed, in a batch."""
    with open_log(url) as log:
        write(log, [*the_run(), *a_group(0, [0, 1, 0])])
        assemble(log, ONE)


def with_advantage(members: list[Member]) -> list[Member]:
    return [members[0], dataclasses.replace(members[1], advantage=2.5), *members[2:]]


def test_a_changed_advantage_is_found_with_member_and_both_values(sqlite_url: str) -> None:
    one_batch(sqlite_url)
    found = replayed(forged(sqlite_url, first_of(GroupDecided, members=with_advantage)))
    rows = [(each.group_id, each.trajectory_id, each.field) for each in found.differences]
    member = (group_id(0), trajectory_id(0, 1))
    assert rows == [
        (*member, "advantage"),
        (None, None, "batch_sha256"),  # which covers the advantages
        (None, None, "batch_id"),
        (None, None, "handed batch_sha256"),
        (*member, "handed advantage of segment 0"),
    ]
    advantage = found.differences[0]
    assert (advantage.recorded, round(advantage.recomputed, 4)) == (2.5, 1.1547)
    assert (found.groups, found.batches) == (Tally(differing=1), Tally(differing=1))
    assert found.members == Tally(equal=2, differing=1)
    assert replayed(sqlite_url).same


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (first_of(BatchAssembled, batch_sha256="0" * 64), ["batch_sha256"]),
        (first_of(BatchAssembled, lag_max=7), ["lag_max"]),
        (first_of(GroupDecided, mean=0.5), ["mean"]),
        (first_of(GroupDecided, rule_set=9), ["rule_set"]),
        (
            first_of(GroupDecided, members=lambda members: members[:2]),
            [
                "member", "batch_sha256", "batch_id", "handed batch_sha256", "handed max_token_id",
                "handed samples",
            ],
        ),
        (
            first_of(GroupDecided, cut=lambda cut: dataclasses.replace(cut, policy_version=8)),
            ["cut.policy_version"],
        ),
    ],
)  # fmt: skip
def test_every_field_that_was_changed_is_named(
    sqlite_url: str, change: Any, expected: list[str]
) -> None:
    one_batch(sqlite_url)
    found = replayed(forged(sqlite_url, change))
    assert [each.field for each in found.differences] == expected
    assert found.gone == []


def test_a_reward_that_was_changed_afterwards_is_found(sqlite_url: str) -> None:

    one_batch(sqlite_url)
    found = replayed(forged(sqlite_url, first_of(RewardAssigned, value=1.0)))
    of_first = [each for each in found.differences if each.trajectory_id == trajectory_id(0, 0)]
    assert [(each.field, each.recorded) for each in of_first] == [
        ("reward", 0.0),
        ("advantage", pytest.approx(-0.5773, abs=1e-3)),
    ]
    assert found.groups == Tally(differing=1)


def test_tokens_that_the_trainer_was_handed_are_compared(sqlite_url: str) -> None:
    one_batch(sqlite_url)
    with open_log(sqlite_url) as log:
        ((batch, _),) = read_batches(log, RUN)
    sample = batch.samples[1]
    other = dataclasses.replace(sample, token_ids=sample.token_ids[:-1] + b"\1")
    changed = dataclasses.replace(batch, samples=[batch.samples[0], other, batch.samples[2]])
    (record,) = records_of(changed)
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        file.execute("UPDATE batches SET value = ?", (record.value,))
        file.commit()
    (difference,) = replayed(sqlite_url).differences
    assert difference.field == "handed token_ids of segment 0"
    assert (difference.step, difference.trajectory_id) == (1, trajectory_id(0, 1))


def test_what_left_the_log_is_read_from_the_archive_and_named_without_it(
    log_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    with open_log(log_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
        assemble(log, ONE)
        write(log, a_group(1, [0, 1]))
        assemble(log, ONE)
        archive_and_remove(log, folder)
        write(log, a_group(2, [1, 0]))
        assemble(log, AssemblerSettings(groups_per_batch=1, max_untaken_batches=3))
        assert any(log.start_positions("tokens").values())
    whole = replayed(log_url, folder)
    assert (whole.differences, whole.gone) == ([], [])
    assert (whole.groups, whole.batches) == (Tally(equal=3), Tally(equal=3))
    without = replayed(log_url)
    assert without.differences == []
    assert without.groups == Tally(equal=1, gone=2)
    assert without.batches == Tally(equal=1, gone=2)
    assert without.members == Tally(equal=2, gone=4)
    assert not without.same
    assert {each.group_id for each in without.gone} == {None, group_id(0), group_id(1)}
    assert all("not in the log" in each.why for each in without.gone)


def test_it_reads_up_to_the_ends_it_was_given_while_an_assembler_goes_on(log_url: str) -> None:
    settings = AssemblerSettings(groups_per_batch=1, max_untaken_batches=9)
    with open_log(log_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
        assemble(log, settings)
        ends = Ends.of(log)
        write(log, a_group(1, [1, 0]))
        assemble(log, settings)
        before, after = replay_run(log, RUN, ends), replay_run(log, RUN, Ends.of(log))
    assert (before.groups, before.batches) == (Tally(equal=1), Tally(equal=1))
    assert (after.groups, after.batches) == (Tally(equal=2), Tally(equal=2))


def far(cut: Cut) -> Cut:
    return dataclasses.replace(cut, positions={"events/0": 10**6, "tokens/0": 0})


def other_settings(cut: Cut) -> Cut:
    return dataclasses.replace(cut, configuration='{"a_later_setting":1}')


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (far, "a cut lies at 1000000 of events/0, and the log ends at 31"),
        (other_settings, "there is no setting a_later_setting"),
    ],
)
def test_a_cut_that_can_not_be_gone_to_is_named_and_the_others_are_replayed(
    sqlite_url: str, change: Any, why: str
) -> None:
    one_batch(sqlite_url)
    found = replayed(forged(sqlite_url, first_of(GroupDecided, cut=change)))
    assert [each.group_id for each in found.gone] == [group_id(0)]
    assert why in found.gone[0].why
    assert found.groups == Tally(gone=1)
    assert found.batches == Tally(equal=1)


def test_the_command_prints_counts_or_the_rows_that_differ(sqlite_url: str) -> None:
    one_batch(sqlite_url)
    command = ["replay", "--batches", "--format", "csv", "--log"]
    same = CliRunner().invoke(app, [*command, sqlite_url])
    assert same.exit_code == 0, same.output
    assert same.stdout.splitlines() == [
        "run,what,recomputed,equal,differing,gone",
        f"{RUN},batches,1,1,0,0",
        f"{RUN},groups,1,1,0,0",
        f"{RUN},members,3,3,0,0",
    ]
    other = forged(sqlite_url, first_of(GroupDecided, members=with_advantage))
    differs = CliRunner().invoke(app, [*command, other, "--run", RUN])
    assert differs.exit_code == 1, differs.output
    first = next(csv.DictReader(io.StringIO(differs.stdout)))
    assert first == {
        "run": RUN,
        "step": "",
        "group_id": group_id(0),
        "trajectory_id": trajectory_id(0, 1),
        "field": "advantage",
        "recorded": "2.5",
        "recomputed": "1.1546985383827155",
    }
    assert "1 of 1 batches differ, 0 can't be decided again" in differs.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "replay takes one of --book, --batches and --what-if"),
        (["--batches", "--book", "b"], "replay takes one of --book, --batches and --what-if"),
        (["--batches", "--until", "events/0:1"], "--until and --force are about --book"),
        (["--batches", "--run", group_id(0)], "no decision of run"),
        (["--batches", "--archive", "nowhere"], "there is no archive at nowhere"),
    ],
)
def test_what_the_command_can_not_do_it_says(
    sqlite_url: str, arguments: list[str], message: str
) -> None:
    one_batch(sqlite_url)
    done = CliRunner().invoke(app, ["replay", "--log", sqlite_url, *arguments])
    assert done.exit_code == 1  # raised, and one line with status 2 as a process
    assert message in str(done.exception)
