"""kill -9 of the projector, a producer and the broker at random moments, on the real Kafka.

What must hold whatever was killed when: no flushed fact is lost, none counts twice, what a killed
producer had not flushed was recorded after its last pulse in the log, and a replay gives the same
rows as the book that lived through it all.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest

from consumers.audit import audit
from consumers.rebuild import project, rebuild
from deploy.kafka.broker import Broker
from ledger.open_log import open_log
from ledger.recording.spool import drain_orphans, folder_of
from tests.books import differing_tables
from tests.fault_recorder import ALIVE_EVERY_S, BURST

FACTS = 100_000
VICTIMS = ("projector", "producer", "broker")


@dataclass
class Producer:
    """One process of `fault_recorder.py` and what it said before it died."""

    name: str
    first: int
    count: int
    process: subprocess.Popen[str]
    output: Path

    def said(self, what: str) -> list[list[str]]:
        lines = [line.split() for line in self.output.read_text().splitlines()]
        return [words[1:] for words in lines if words and words[0] == what]

    @property
    def flushed(self) -> int:
        return max([self.first, *(int(words[0]) for words in self.said("flushed"))])

    @property
    def recorded(self) -> int:
        return max([self.first, *(int(words[0]) for words in self.said("recorded"))])


@dataclass
class Lab:
    """A broker, a projector and a producer, each of which may be killed."""

    folder: Path
    broker: Broker
    url: str
    seconds: float = 30.0
    """What recording all facts takes at least, so that there is time to kill something."""
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    producers: list[Producer] = field(default_factory=list)
    projector: subprocess.Popen[str] | None = None
    projectors: int = 0
    """How many were started."""

    @property
    def book(self) -> Path:
        return self.folder / "book.duckdb"

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def start_projector(self) -> None:
        """Start it, and wait until it follows: before, a SIGTERM finds no handler."""
        command = [sys.executable, "-m", "api.cli", "project", "--follow"]
        with (self.folder / "projector.err").open("a") as errors:
            self.projector = subprocess.Popen(
                [*command, "--log", self.url, "--book", str(self.book)], stderr=errors, text=True
            )
        self.projectors += 1
        self.wait_for(lambda: self.said_by_projectors("following") == self.projectors)

    def said_by_projectors(self, what: str) -> int:
        return (self.folder / "projector.err").read_text().count(what)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def start_producer(self, first: int, count: int) -> None:
        pause_s = BURST * self.seconds / FACTS
        name = f"producer-{len(self.producers)}"
        output = self.folder / f"{name}.out"
        numbers = [str(first), str(count), str(pause_s)]
        arguments = [self.url, str(self.spool), self.run_id, name, *numbers]
        with output.open("w") as out, (self.folder / "producers.err").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault_recorder", *arguments],
                stdout=out,
                stderr=errors,
                text=True,
            )
        self.producers.append(Producer(name, first, count, process, output))

    def wait_until_recorded(self, facts: int) -> None:
        self.wait_for(lambda: self.producers[-1].recorded >= facts)

    def kill(self, victim: str) -> None:
        if victim == "broker":
            self.broker.kill()
            self.broker.start()
        elif victim == "projector":
            assert self.projector is not None
            self.projector.send_signal(signal.SIGKILL)
            self.projector.wait()
            self.start_projector()
        else:
            producer = self.producers[-1]
            producer.process.send_signal(signal.SIGKILL)
            producer.process.wait()
            # The dead one may have recorded a little more than it said: leave its numbers alone.
            left = producer.first + producer.count - producer.recorded
            self.start_producer(producer.recorded, max(left, 1000))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    broker = Broker(tmp_path / "kafka")
    bootstrap = broker.start()
    lab = Lab(tmp_path, broker, f"kafka://{bootstrap}/faults?partitions=4")
    try:
        yield lab
    finally:
        for process in [lab.projector, *(each.process for each in lab.producers)]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        broker.kill()


@pytest.mark.kafka
@pytest.mark.fault
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(6, marks=pytest.mark.timeout(600)),
        pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_killing_anything_at_any_moment_loses_no_flushed_fact_and_counts_none_twice(
    lab: Lab, rounds: int
) -> None:
    seed = int(os.environ.get("ROLLBOOK_TEST_SEED", random.randrange(2**32)))
    print(f"seed {seed} (ROLLBOOK_TEST_SEED)")
    chance = random.Random(seed)
    victims = [VICTIMS[i % 3] for i in range(rounds)]
    chance.shuffle(victims)
    lab.seconds = 5.0 * rounds  # a broker that was killed is back after three
    lab.start_projector()
    lab.start_producer(0, FACTS)
    for number, victim in enumerate(victims):
        # By progress, not by time, so that each share of the facts sees one death.
        lab.wait_until_recorded(int((number + chance.random()) * FACTS / rounds))
        time.sleep(chance.uniform(0, 0.05))
        print(f"kill -9 {victim} after {lab.producers[-1].recorded} facts")
        lab.kill(victim)
    finish(lab)
    with contextlib.closing(duckdb.connect(str(lab.book), read_only=True)) as book:
        check_nothing_twice(book)
        check_flushed(book, lab)
        check_tails(book, lab)
        check_audit(book, lab)
    check_replay(lab)


def finish(lab: Lab) -> None:
    """Let the last producer end, stop the projector, drain what the dead left, catch up."""
    assert lab.producers[-1].process.wait(timeout=300) == 0
    assert lab.producers[-1].said("closed")
    assert lab.projector is not None
    lab.projector.terminate()
    assert lab.projector.wait(timeout=60) == 0
    with open_log(lab.url) as log:
        drain_orphans(log, folder_of(lab.spool, lab.url), 30.0)
        project(log, lab.book)


def numbers_of(book: duckdb.DuckDBPyConnection, producer: Producer) -> set[int]:
    rows = book.execute(
        "SELECT turn_no FROM turn_completed WHERE producer = ?", [producer.name]
    ).fetchall()
    return {number for (number,) in rows}


def check_nothing_twice(book: duckdb.DuckDBPyConnection) -> None:
    facts, ids = book.execute("SELECT count(*), count(DISTINCT event_id) FROM facts").fetchall()[0]
    assert facts == ids
    turns, different = book.execute(
        "SELECT count(*), count(DISTINCT request_id) FROM turn_completed"
    ).fetchall()[0]
    assert turns == different
    assert book.execute("SELECT count(*) FROM quarantine").fetchall() == [(0,)]


def check_flushed(book: duckdb.DuckDBPyConnection, lab: Lab) -> None:
    last = lab.producers[-1]
    assert numbers_of(book, last) == set(range(last.first, last.first + last.count))
    for producer in lab.producers:
        due = set(range(producer.first, producer.flushed))
        assert due <= numbers_of(book, producer), producer.name


def check_tails(book: duckdb.DuckDBPyConnection, lab: Lab) -> None:
    """What a killed producer lost, it recorded after its last pulse that the book has (after its
    start, where it has none), and before the next one was due."""
    for producer in lab.producers[:-1]:
        missing = set(range(producer.first, producer.recorded)) - numbers_of(book, producer)
        print(
            f"{producer.name}: {producer.recorded} recorded, {producer.flushed} flushed,"
            f" {len(missing)} lost of the tail"
        )
        if not missing:
            continue
        pulse = book.execute(
            "SELECT epoch_us(max(occurred_at)) FROM producer_alive WHERE producer = ?",
            [producer.name],
        ).fetchall()[0][0]
        said = [(int(number), int(at)) for number, at in producer.said("recorded")]
        alive = said[0][1] if pulse is None else pulse
        before = [number for number, at in said if at < alive]
        assert min(missing) >= max([producer.first, *before])
        # A generous second: a process that is about to die may be late with its pulse.
        assert said[-1][1] - alive <= (ALIVE_EVERY_S + 1.0) * 1e6


def check_audit(book: duckdb.DuckDBPyConnection, lab: Lab) -> None:
    """Nothing is wrong but the lost tails of the killed, which the audit names."""
    killed = [producer.name for producer in lab.producers[:-1]]
    for each in audit(book):
        if each.wrong:
            assert each.check == "sequence_holes"
            assert any(f"producer {name} " in each.detail for name in killed), each.detail


def check_replay(lab: Lab) -> None:
    replayed = lab.folder / "replayed.duckdb"
    with open_log(lab.url) as log:
        rebuild(log, replayed)
    assert differing_tables(lab.book, replayed) == []
