"""Batches of stored traces: which, in what order, once, and the same again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from api.cli import app
from consumers.archive import archive_and_remove
from consumers.archived_log import ArchivedLog
from consumers.assembling.group_state import GroupState
from consumers.assembling.settings import AssemblerSettings, BadSettings
from consumers.recorded_cuts import Ends
from consumers.replay_batches import replay_run
from consumers.replay_compare import Tally
from consumers.sft_assembler import SftDone, assemble_sft, sft_run
from consumers.sft_batches import SftSettings, Trace, batches_of, candidates, chosen
from consumers.stored_traces import plan_sft
from ledger.batch_log import read_batches
from ledger.batches import TrainingBatch
from ledger.facts import (
    BatchAssembled,
    RewardAssigned,
    RunDeclared,
    TrajectoryFact,
    TrajectoryFinished,
)
from ledger.log import EventLog, Fenced, LogError, LogUnavailable, Record, Topic
from ledger.open_log import open_log
from ledger.tokens import TurnTokens
from tests.assembled import RUN, a_group, the_run, trajectory_id, without
from tests.builders import an_id
from tests.lived_runs import first_of, forged
from tests.test_assembler import assemble, facts, write

CHOICE = SftSettings(from_runs=(RUN,), traces_per_batch=2)


def stored(log: EventLog) -> None:
    """Five traces with reward 1 of three tasks, and others that are no traces to train on."""
    write(log, the_run())
    write(log, a_group(0, [1, 0, 1]))
    write(log, a_group(1, [1, None]))
    write(log, a_group(2, [1, 1, 0.5]))
    write(log, without(a_group(3, [1]), TurnTokens))  # its payloads never came
    write(log, without(a_group(4, [1]), TrajectoryFinished))  # it never ended


GOOD = {(0, 0), (0, 2), (1, 0), (2, 0), (2, 1)}


def made(log: EventLog, choice: SftSettings = CHOICE, **of_run: Any) -> SftDone:
    return assemble_sft(log, sft_run(log, choice, **of_run), choice)


def batches(log: EventLog, run_id: str) -> list[TrainingBatch]:
    return [taken.batch for taken in read_batches(log, run_id)]


def traces_in(found: Sequence[TrainingBatch]) -> list[str]:
    return [trace for batch in found for trace in batch.trace_ids]


def test_traces_with_the_reward_become_batches_of_an_sft_run(log_url: str) -> None:
    with open_log(log_url) as log:
        stored(log)
        assemble(log, AssemblerSettings(groups_per_batch=1))  # that they were trained on is nothing
        done = made(log)
        found = batches(log, done.run_id)
        declared = [fact for fact in facts(log, RunDeclared) if fact.run_id == done.run_id]
        assembled = [fact for fact in facts(log, BatchAssembled) if fact.run_id == done.run_id]
    assert (done.batches, done.written, done.traces, done.tasks, done.lost) == (3, 3, 5, 3, 1)
    assert [len(batch.trace_ids) for batch in found] == [2, 2, 1]
    assert set(traces_in(found)) == {trajectory_id(*each) for each in GOOD}
    assert [(fact.kind, fact.parent_run_id, fact.model) for fact in declared] == [
        ("sft", RUN, "tiny")
    ]
    assert {fact.batch_id: fact.trace_ids for fact in assembled} == {
        batch.batch_id: batch.trace_ids for batch in found
    }
    for batch in found:
        assert (batch.step, batch.group_ids, batch.max_staleness) == (None, [], None)
        assert [each.trajectory_id for each in batch.samples] == batch.trace_ids
        for sample in batch.samples:
            assert sample.advantage == 1.0
            assert sample.tokens().loss_mask == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1]


def test_a_second_run_writes_nothing_new_though_the_log_has_grown(log_url: str) -> None:
    with open_log(log_url) as log:
        stored(log)
        first = made(log)
        write(log, a_group(5, [1, 1]))
        ends = log.end_positions("events") | log.end_positions("batches")
        again = made(log)
        assert log.end_positions("events") | log.end_positions("batches") == ends
    assert dataclasses.replace(first, written=0) == again


class Killed(Exception):
    pass


class KilledBehind:
    """A log whose process dies behind so many batches, or hears nothing of the last one."""

    def __init__(self, log: EventLog, batches: int, error: Exception) -> None:
        self._log = log
        self._left = batches
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> Any:
        self._writer = self._log.fenced_writer(name, timeout_s)
        return self

    def append(self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0) -> None:
        self._writer.append(records, timeout_s)
        self._left -= bool(records.get("batches"))
        if self._left == 0:
            raise self._error

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("error", [Killed(), LogUnavailable("no answer")], ids=["kill", "doubt"])
@pytest.mark.parametrize("behind", [1, 2, 3])
def test_one_that_was_killed_goes_on_where_it_was_at_its_own_cut(
    log_url: str, behind: int, error: Exception
) -> None:
    with open_log(log_url) as log:
        stored(log)
        with pytest.raises(type(error)):
            made(KilledBehind(log, behind, error))  # type: ignore[arg-type]
        write(log, a_group(5, [1, 1]))  # what comes now is not of this run's cut
        done = made(log)
        assert (done.batches, done.written) == (3, 3 - behind)
        found = batches(log, done.run_id)
        runs = [fact for fact in facts(log, RunDeclared) if fact.run_id == done.run_id]
        assert replay_run(log, done.run_id, Ends.of(log)).same
    assert len(runs) == 1
    assert sorted(traces_in(found)) == sorted(trajectory_id(*each) for each in GOOD)


def test_an_older_one_is_fenced(log_url: str) -> None:
    with open_log(log_url) as log:
        stored(log)

        class Overtaken(KilledBehind):
            def append(self, records: Any, timeout_s: float = 30.0) -> None:
                if records.get("batches") and self._left:
                    self._left = 0
                    assert made(self._log).written == 3
                self._writer.append(records, timeout_s)

        with pytest.raises(Fenced):
            made(Overtaken(log, 1, Killed()))  # type: ignore[arg-type]
        done = made(log)
        assert (done.batches, done.written) == (3, 0)
        assert len(traces_in(batches(log, done.run_id))) == 5


def test_a_run_keeps_to_the_settings_of_its_first_batch(sqlite_url: str) -> None:
    run_id = an_id("sft run")
    with open_log(sqlite_url) as log:
        stored(log)
        assert made(log, run_id=run_id).run_id == run_id
        with pytest.raises(BadSettings, match="has batches by other settings already"):
            made(log, dataclasses.replace(CHOICE, seed=1), run_id=run_id)
        other = made(log, dataclasses.replace(CHOICE, seed=1))
        assert other.run_id != run_id
        assert traces_in(batches(log, other.run_id)) != traces_in(batches(log, run_id))


def another_run(told: list[Any], run_id: str, model: str = "tiny") -> list[Any]:
    """What is told, of another run and other attempts."""
    kept: dict[str, str] = {}

    def renamed(each: Any) -> Any:
        fields: dict[str, Any] = {"run_id": run_id}
        for name in ("group_id", "trajectory_id", "event_id"):
            if (old := getattr(each, name, None)) is not None:
                fields[name] = kept.setdefault(old, an_id(f"{run_id}/{old}"))
        if isinstance(each, RunDeclared):
            fields["model"] = model
        return dataclasses.replace(each, **fields)

    return [renamed(each) for each in told]


def test_traces_of_several_runs_need_a_parent_and_one_model(sqlite_url: str) -> None:
    other, third = an_id("other run"), an_id("third run")
    both = dataclasses.replace(CHOICE, from_runs=tuple(sorted((RUN, other))), traces_per_task=1)
    with open_log(sqlite_url) as log:
        stored(log)
        write(log, another_run([*the_run(), *a_group(0, [1]), *a_group(7, [1])], other))
        write(log, another_run([*the_run(), *a_group(0, [1])], third, model="large"))
        with pytest.raises(BadSettings, match="a parent must be named for traces of 2 runs"):
            made(log, both)
        done = made(log, both, parent_run_id=other)
        (declared,) = [fact for fact in facts(log, RunDeclared) if fact.run_id == done.run_id]
        mixed = dataclasses.replace(CHOICE, from_runs=(RUN, third))
        with pytest.raises(BadSettings, match="traces must be of one model, got large and tiny"):
            made(log, mixed, parent_run_id=RUN)
    assert (done.traces, done.tasks) == (4, 4)  # task 0 is of both runs, and gives one
    assert declared.parent_run_id == other


def test_removed_tokens_are_read_from_the_archive_or_missed_by_name(
    log_url: str, tmp_path: Path
) -> None:
    with open_log(log_url) as log:
        stored(log)
        archive_and_remove(log, tmp_path / "archive")
        with pytest.raises(LogError, match="6 have no usable payloads"):
            made(log)
        whole = ArchivedLog(log, tmp_path / "archive")
        done = made(whole)
        assert (done.batches, done.traces) == (3, 5)
        assert replay_run(whole, done.run_id, Ends.of(log)).same
        found = replay_run(log, done.run_id, Ends.of(log))
        assert found.batches == Tally(gone=3)
        assert "traces that may be in it are not in the log any more" in found.gone[0].why
        with pytest.raises(LogError, match="can't be made again, 6 traces have lost"):
            made(log)


def test_a_changed_trace_or_hash_is_found(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        stored(log)
        done = made(log)
    for change, fields in (
        (first_of(BatchAssembled, batch_sha256="0" * 64), ["batch_sha256"]),
        (first_of(BatchAssembled, trace_ids=lambda ids: ids[::-1]), ["trace_ids"]),
        (first_of(RewardAssigned, value=0.0), ["batch_sha256", "batch_id", "trace_ids"]),
    ):
        with open_log(forged(sqlite_url, change, name=f"{fields}.db")) as log:
            found = replay_run(log, done.run_id, Ends.of(log))
        assert [each.field for each in found.differences][: len(fields)] == fields
        assert found.batches.differing >= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"from_runs": ()}, "traces must come from at least 1 run, got none"),
        ({"from_runs": (RUN, RUN)}, "runs must be given once"),
        ({"reward_min": float("nan")}, "reward_min must be a finite number, got nan"),
        ({"traces_per_task": 0}, "traces_per_task must be at least 1, got 0"),
        ({"traces_per_batch": 5000}, "traces_per_batch must be at most 4000, got 5000"),
        ({"tasks": ()}, "tasks must be at least 1, got none"),
    ],
)
def test_settings_that_can_not_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        dataclasses.replace(CHOICE, **fields)


def test_a_source_that_is_not_there_or_gives_nothing_is_an_error(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [0, 0])])
        with pytest.raises(LogError, match=r"no whole trace of .* has a reward of at least 1"):
            made(log)
        with pytest.raises(LogError, match="is not declared in this log"):
            made(log, dataclasses.replace(CHOICE, from_runs=(an_id("nobody"),)))
        with pytest.raises(LogError, match="must be of kind sft, got train"):
            made(log, run_id=RUN)


def test_the_command_takes_tasks_from_a_file_and_says_what_it_made(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        stored(log)
    (tmp_path / "tasks").write_text("task 0\n\ntask 2\n")
    command = ["assemble-sft", "--from", RUN, "--log", sqlite_url, "--per-task", "1"]
    command += ["--tasks", str(tmp_path / "tasks"), "--reward-min", "0.5"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "1 batches of 2 traces of 2 tasks, 1 batches new" in done.stderr
    again = CliRunner().invoke(app, command)
    assert "1 batches of 2 traces of 2 tasks, 0 batches new" in again.stderr


class AllThere:
    """Tokens that nobody lost."""

    def verified(self, group_id: str, sha256: str) -> bool:
        return True


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([None, 0.0, 0.5, 1.0]), min_size=1, max_size=4), max_size=6),
    st.randoms(use_true_random=False),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(1, 3)),
)
def test_the_order_of_reading_changes_nothing_and_no_task_has_too_many(
    groups: list[list[float | None]], chance: Any, seed: int, most: int | None
) -> None:
    choice = dataclasses.replace(CHOICE, seed=seed, traces_per_task=most)
    states: list[GroupState] = []
    for number, rewards in enumerate(groups):
        told = [each for each in a_group(number, rewards) if isinstance(each, TrajectoryFact)]
        chance.shuffle(told)
        state = GroupState(told[0].group_id, 0, 0, 0)
        for fact in told:
            state.take(fact, 0, rule_set=0)
        states.append(state)

    def ids(states: list[GroupState]) -> list[list[str]]:
        traces = [*chosen(candidates(states, choice), AllThere(), choice)]  # type: ignore[arg-type]
        return [batch.trace_ids for batch in batches_of(traces, choice)]

    found = ids(states)
    chance.shuffle(states)
    assert ids(states) == found
    assert all(len(batch) == 2 for batch in found[:-1])
    expected = sum(min(most or 99, rewards.count(1.0)) for rewards in groups)
    assert sum(map(len, found)) == expected


def test_a_trace_whose_tokens_are_lost_gives_its_place_to_another_of_the_task(
    sqlite_url: str,
) -> None:
    choice = dataclasses.replace(CHOICE, traces_per_task=1)
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 1, 1])])
        first = plan_sft(log, choice, Ends.of(log).places).batches[0].traces[0]
    assert isinstance(first, Trace)
    lost = first.attempt.trajectory_id
    with open_log(sqlite_url.replace("log.db", "other.db")) as log:
        told = [*the_run(), *a_group(0, [1, 1, 1])]
        write(
            log,
            [e for e in told if not (isinstance(e, TurnTokens) and e.trajectory_id == lost)],
        )
        plan = plan_sft(log, choice, Ends.of(log).places)
    (batch,) = plan.batches
    assert lost not in batch.trace_ids
    assert len(batch.traces) == 1
    assert [trace.attempt.trajectory_id for trace in plan.lost] == [lost]
