"""Decisions in a copy of their log come out the same, or it is said why they can't."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from consumers.copy_log import copy_log
from consumers.replay_batches import replay_batches
from consumers.replay_compare import Tally
from ledger.facts import BatchAssembled, CheckpointSaved, GroupDecided
from ledger.log import EventLog, LogError, Record, Topic
from ledger.log_over import LogOver
from ledger.sqlite_log import SqliteLog
from tests.assembled import RUN
from tests.books import record_of
from tests.builders import a_fact, an_id
from tests.lived_runs import SETTINGS, lived
from tests.test_assembler import AssemblerSettings, assemble, facts

OTHER = an_id("other run")


class Strewn(LogOver):
    """A log in which something of another run lies between any two appends."""

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        super().append(topic, records, timeout_s)
        super().append("events", [record_of(a_fact("run_declared", run_id=OTHER))], timeout_s)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventLog]:
    with SqliteLog(tmp_path_factory.mktemp("source") / "log.db") as log:
        lived(Strewn(log))
        yield log


@pytest.fixture
def target(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "copy.db") as log:
        yield log


@pytest.mark.parametrize("without", [None, uuid.UUID(OTHER)])
def test_a_copy_decides_the_same_and_nothing_again(
    source: EventLog, target: SqliteLog, without: uuid.UUID | None
) -> None:
    copied = copy_log(source, target, without)
    decided, assembled = facts(source, GroupDecided), facts(source, BatchAssembled)
    assert len(assembled) == 2
    assert (copied.moved > 0, copied.erased > 0) == (without is not None, without is not None)
    found = replay_batches(target, RUN)
    assert (found.differences, found.gone) == ([], [])
    assert (found.groups, found.batches) == (Tally(len(decided)), Tally(len(assembled)))
    assert [each.batch_sha256 for each in facts(target, BatchAssembled)] == [
        each.batch_sha256 for each in assembled
    ]
    assemble(target, AssemblerSettings.of(SETTINGS[-1], "here"))
    assert len(facts(target, GroupDecided)) == len(decided)


def test_positions_in_a_copy_are_of_the_copy(target: SqliteLog, tmp_path: Path) -> None:
    step = a_fact("checkpoint_saved", batch_positions={"batches/0": 3, "events/0": 2})
    with SqliteLog(tmp_path / "log.db") as source:
        source.append("batches", [Record(RUN, b"no batch")] * 3)
        source.append("events", [record_of(a_fact("run_declared", run_id=OTHER))] * 3)
        source.append("events", [record_of(step)])
        copied = copy_log(source, target, uuid.UUID(OTHER))
    # Nobody can say whose the three are that aren't batches, so the copy lacks them too.
    assert len(copied.unreadable) == 3
    assert copied.moved == 1
    assert [each.batch_positions for each in facts(target, CheckpointSaved)] == [
        {"batches/0": 0, "events/0": 0}
    ]


def test_times_of_a_copy_never_step_back(target: SqliteLog) -> None:
    target.append_dated("events", [Record("a", b"1"), Record("b", b"2")], [5, 7])
    with pytest.raises(LogError, match="must not step back, got 6 us after 7"):
        target.append_dated("events", [Record("c", b"3")], [6])
    target.append("events", [Record("d", b"4")])
    with target.reader(target.start_positions("events")) as reader:
        (batch,) = reader.poll(1.0)
    assert batch.log_times_us[:2] == [5, 7]
    assert batch.values == [b"1", b"2", b"4"]
