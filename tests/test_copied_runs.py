"""A run in a copy of its log: what was decided comes out the same there, and goes on."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from api.log_commands import restore_log
from consumers.archive import archive_and_remove
from consumers.assembler import Assembler
from consumers.assembling import low_water
from consumers.assembling.settings import AssemblerSettings
from consumers.copy_log import Copied, copy_log
from consumers.recorded_cuts import Ends, recorded_runs
from consumers.replay_batches import replay_run
from consumers.replay_compare import Replayed, Tally
from ledger.avro import decode, encode_fact
from ledger.batch_log import read_batches
from ledger.facts import (
    BatchAssembled,
    CheckpointSaved,
    GroupDecided,
    RewardAssigned,
    TrajectoryFinished,
)
from ledger.facts.lists import RunKind
from ledger.log import EventLog, Record, TopicPartition, positions_of
from ledger.open_log import open_log
from ledger.sqlite_log import SqliteLog
from tests.assembled import RUN, Teller, Told, a_group, group_id, the_run, trajectory_id
from tests.builders import an_id
from tests.lived_runs import first_of, forged
from tests.test_assembler import assemble, facts, write

EVAL = an_id("run", 2)
ONE = AssemblerSettings(groups_per_batch=1, max_untaken_batches=9)


def of_eval(told: list[Told]) -> list[Told]:
    return [replace(each, run_id=EVAL) for each in told]


def two_runs(log: EventLog) -> None:
    """A run that trains while another is evaluated: each is assembled while the other is half
    told, and a trainer keeps where it reads on behind the first batch."""
    write(log, the_run())
    write(log, [Teller(seed=9_998)("run_declared", run_id=EVAL, kind=RunKind.EVAL)])
    for number in range(4):
        train = a_group(number, [1.0, 0.0, (0.5, None)[number % 2]])
        other = of_eval(a_group(10 + number, [1.0, 0.0]))
        write(log, [*other[:6], *train[:9]])
        if number:
            assemble(log, ONE)
        write(log, [*train[9:], *other[6:]])
        if number % 2:
            Assembler(log, EVAL, ONE).run(threading.Event(), follow=False)
        if number == 1:
            first = next(iter(read_batches(log, RUN)))
            positions = {str(place): at for place, at in first.positions.items()}
            saved = Teller(seed=820)("checkpoint_saved", step=1, batch_positions=positions)
            log.append("events", [Record(RUN, encode_fact(saved))])
    assemble(log, ONE)


@pytest.fixture(scope="module")
def told_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two runs in an SQLite log that no test changes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('told')}/log.db"
    with pytest.MonkeyPatch.context() as patch, open_log(url) as log:
        patch.setattr(low_water, "EVIDENCE_US", 0)  # a restart reads from the first batch
        two_runs(log)
    return url


@contextlib.contextmanager
def copied(source: str, target: str, without: str | None = None) -> Iterator[tuple[EventLog, Any]]:
    with open_log(source) as one, open_log(target) as other:
        yield other, copy_log(one, other, None if without is None else uuid.UUID(without))


def replayed(log: EventLog) -> dict[str, Replayed]:
    ends = Ends.of(log)
    return {run_id: replay_run(log, run_id, ends) for run_id in recorded_runs(log, ends.events)}


def hashes(log: EventLog) -> list[str]:
    return [fact.batch_sha256 for fact in facts(log, BatchAssembled)]


def assert_decided_alike(log: EventLog, runs: set[str]) -> None:
    found = replayed(log)
    assert set(found) == runs
    for each in found.values():
        assert (each.differences, each.gone) == ([], [])
        assert each.groups == Tally(equal=4)
    assert found[RUN].batches == Tally(equal=4)


def test_copies_and_erased_copies_decide_alike(told_url: str, tmp_path: Path) -> None:
    with open_log(told_url) as source:
        assert_decided_alike(source, {RUN, EVAL})
        due = hashes(source)
    with copied(told_url, f"sqlite:///{tmp_path}/all.db") as (log, done):
        assert (done.moved, done.unmoved) == (0, [])
        assert_decided_alike(log, {RUN, EVAL})
        assert hashes(log) == due
    with copied(told_url, f"sqlite:///{tmp_path}/train.db", EVAL) as (log, done):
        # 4 decisions and 4 batches, and the checkpoint's place among batches is the same
        assert (done.moved, done.unmoved) == (8, [])
        assert_decided_alike(log, {RUN})
        assert hashes(log) == due


@pytest.mark.kafka
def test_a_copy_of_several_partitions_decides_alike(kafka_url: str, tmp_path: Path) -> None:
    with open_log(kafka_url) as source:
        two_runs(source)
        due = hashes(source)
    with copied(kafka_url, f"sqlite:///{tmp_path}/train.db", EVAL) as (log, done):
        assert done.unmoved == []
        assert_decided_alike(log, {RUN})
        assert hashes(log) == due
        assert_goes_on(log)


def test_a_restored_backup_decides_alike(told_url: str, tmp_path: Path) -> None:
    with open_log(told_url) as source:
        assert isinstance(source, SqliteLog)
        source.backup(tmp_path / "backup.db")
    restore_log(tmp_path / "backup.db", tmp_path / "restored.db")
    with open_log(f"sqlite:///{tmp_path}/restored.db") as log:
        assert_decided_alike(log, {RUN, EVAL})


def assert_goes_on(log: EventLog) -> None:
    """An assembler decides nothing twice and goes on, and a trainer reads on where it was."""
    assert assemble(log, ONE).done.decided == 0
    write(log, a_group(7, [1, 0]))
    assert assemble(log, ONE).done.batches == 1
    batches = [taken.batch for taken in read_batches(log, RUN)]
    assert [batch.step for batch in batches] == [1, 2, 3, 4, 5]
    trained = [group for batch in batches for group in batch.group_ids]
    assert sorted(trained) == sorted(group_id(number) for number in (0, 1, 2, 3, 7))
    assert len(facts(log, GroupDecided)) == 5
    (saved,) = facts(log, CheckpointSaved)
    left = read_batches(log, RUN, positions_of(saved.batch_positions))
    assert [taken.batch.step for taken in left] == [2, 3, 4, 5]


def test_the_command_takes_along_what_left_the_log_for_an_archive(
    told_url: str, tmp_path: Path
) -> None:
    with copied(told_url, f"sqlite:///{tmp_path}/log.db") as (log, _):
        archive_and_remove(log, tmp_path / "archive")
    command = ["copy-log", "--log", f"sqlite:///{tmp_path}/log.db", "--without-run", EVAL]
    command += ["--archive", str(tmp_path / "archive"), "--to", f"sqlite:///{tmp_path}/copy.db"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "8 records tell positions of the copy now, not of the source" in done.stderr
    with open_log(f"sqlite:///{tmp_path}/copy.db") as log:
        assert_decided_alike(log, {RUN})


def low_water_of(log: EventLog) -> tuple[int, Any]:
    """Where the successor of the newest assembler reads on, and the fact that lies there."""
    at = facts(log, BatchAssembled)[-1].low_water["events/0"]
    with log.reader({TopicPartition("events", 0): at}) as reader:
        return at, decode(reader.poll(1.0, 1)[0].values[0])


def test_an_erased_copy_goes_on(told_url: str, tmp_path: Path) -> None:
    with open_log(told_url) as source:
        before, due = low_water_of(source)
    with copied(told_url, f"sqlite:///{tmp_path}/train.db", EVAL) as (log, _):
        after, found = low_water_of(log)
        assert isinstance(found, BatchAssembled)
        assert (found.batch_id, found.step) == (due.batch_id, 1)
        assert 0 < after < before
        assert_goes_on(log)


def test_a_true_difference_is_found_in_a_copy(told_url: str, tmp_path: Path) -> None:
    url = forged(told_url, first_of(RewardAssigned, value=0.25), "reward.db")
    with copied(url, f"sqlite:///{tmp_path}/copy.db", EVAL) as (log, _):
        found = replayed(log)[RUN]
    assert (found.groups, found.batches) == (Tally(equal=3, differing=1), Tally(equal=4))


def with_a_failed_turn(number: int) -> list[Told]:
    """A group whose first attempt had an error that its peers may excuse for a while."""
    told = a_group(number, [1, 0])
    at = next(i for i, each in enumerate(told) if isinstance(each, TrajectoryFinished))
    finished = told[at]
    assert isinstance(finished, TrajectoryFinished)
    ids = {"group_id": group_id(number), "slot": 0, "trajectory_id": trajectory_id(number, 0)}
    failed = Teller(seed=830)("turn_failed", **ids, turn_no=2)
    return [*told[:at], failed, replace(finished, turns_failed=1), *told[at + 1 :]]


def waited_for_evidence(log: EventLog) -> None:
    settings = AssemblerSettings(groups_per_batch=1, evidence_wait_s=0.2)
    write(log, [*the_run(), *with_a_failed_turn(0)])
    assert assemble(log, settings).done.decided == 0
    time.sleep(0.25)
    write(log, [Teller(seed=831)("producer_alive")])  # by which time passes
    assert assemble(log, settings).done.decided == 1


def dated_later(path: Path) -> str:
    """The log with the times that a copy on Kafka gives: all later than its cuts."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        for topic in ("events", "tokens", "batches"):
            file.execute(f"UPDATE {topic} SET log_time_us = log_time_us + 3600000000")
        file.commit()
    return f"sqlite:///{path}"


def test_what_waited_for_evidence_waited_in_a_copy_too(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as log:
        waited_for_evidence(log)
    with copied(sqlite_url, f"sqlite:///{tmp_path}/copy.db") as (log, _):
        assert replayed(log)[RUN].same
    with open_log(dated_later(tmp_path / "copy.db")) as log:
        assert replayed(log)[RUN].same


def test_where_times_are_later_than_cuts_what_time_ended_is_told_and_the_rest_compared(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *a_group(1, [1, 0])])
        assemble(log, ONE)
    unfinished = first_of(TrajectoryFinished, turns_completed=3)
    url = forged(sqlite_url, unfinished, "unfinished.db")
    with open_log(url) as log:
        found = replayed(log)[RUN]
        assert [each.recomputed for each in found.differences] == ["it is held"]
    with open_log(dated_later(tmp_path / "unfinished.db")) as log:
        found = replayed(log)[RUN]
    assert (found.groups, found.differences) == (Tally(equal=1, gone=1), [])
    assert "dated after it" in found.gone[0].why
    forged(sqlite_url, first_of(RewardAssigned, value=0.25), "reward.db")
    with open_log(dated_later(tmp_path / "reward.db")) as log:
        found = replayed(log)[RUN]
    assert (found.groups, found.gone) == (Tally(equal=1, differing=1), [])


@pytest.mark.kafka
def test_a_copy_to_kafka_decides_alike_and_goes_on(told_url: str, kafka_url: str) -> None:
    with copied(told_url, kafka_url, EVAL) as (log, done):
        assert (done.unmoved, log.end_positions("events")) != ([], {})
        assert_decided_alike(log, {RUN})
        assert_goes_on(log)


def test_positions_that_nothing_in_the_copy_answers_to_are_named(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
        assemble(log, ONE)
    far: Any = lambda cut: replace(cut, positions={"events/0": 10**6})  # noqa: E731
    url = forged(sqlite_url, first_of(GroupDecided, cut=far))
    with copied(url, f"sqlite:///{tmp_path}/copy.db") as (log, done):
        assert isinstance(done, Copied)
        assert done.unmoved == [fact.event_id for fact in facts(log, GroupDecided)]
        assert "the log ends at" in replayed(log)[RUN].gone[0].why
