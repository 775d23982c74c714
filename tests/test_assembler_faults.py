"""The assembler is killed at random moments while groups flow, on the real Kafka.

`kill -9`, and now and then frozen while a newer one takes over and woken up again. At the end every
group was decided once, no attempt is in two batches and none is lost, the frozen ones wrote nothing
and said why, and every recorded decision comes out the same when it is made again at its cut.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from consumers.replay_batches import replay_batches
from ledger.avro import encode_fact
from ledger.batch_log import BatchReader, read_batches
from ledger.facts import BatchAssembled, GroupDecided
from ledger.log import EventLog, Record
from ledger.open_log import open_log
from tests.assembled import RUN, Teller, Told, a_group, group_id, the_run
from tests.recorded import each_once, values_in
from tests.test_assembler import write

GROUPS_A_ROUND = 10
GROUPS_PER_BATCH = 3
SETTINGS = [f"groups_per_batch={GROUPS_PER_BATCH}", "max_untaken_batches=2", "max_staleness=1000"]


@dataclass
class Lab:
    """A log, the assembler of its run, and a trainer that takes what it assembles."""

    url: str
    folder: Path
    log: EventLog
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> subprocess.Popen[str]:
        """Start an assembler, and wait until it has read the log to its end."""
        command = [sys.executable, "-m", "api.cli", "assemble", "--follow", "--run", RUN]
        options = [part for each in SETTINGS for part in ("--set", each)]
        errors = self.folder / f"assembler-{len(self.processes)}.err"
        with errors.open("w") as out:
            process = subprocess.Popen(
                [*command, "--log", self.url, *options], stderr=out, text=True
            )
        self.processes.append(process)
        deadline = time.monotonic() + 120
        while "assembling" not in errors.read_text():
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.01)
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"assembler-{self.processes.index(process)}.err").read_text()

    def train(self) -> None:
        """Take batches in order, and tell of a step for each."""
        tell = Teller(seed=900)
        with BatchReader(self.log, RUN) as reader:
            while not self.stop.is_set():
                for taken in reader.poll(0.1):
                    batch = taken.batch
                    step = tell("step_completed", step=batch.step, batch_id=batch.batch_id)
                    self.log.append("events", [Record(RUN, encode_fact(step))])

    def tell_groups(self, rounds: int, chance: random.Random) -> None:
        """Groups in random order, several at a time, so that kills meet them half told."""
        for number in range(rounds):
            numbers = range(number * GROUPS_A_ROUND, (number + 1) * GROUPS_A_ROUND)
            stories = [list(reversed(story(each))) for each in numbers]
            while stories and not self.stop.is_set():
                of_one = chance.choice(stories)
                write(self.log, [of_one.pop() for _ in range(min(12, len(of_one)))])
                stories = [each for each in stories if each]
                time.sleep(0.01)


def story(number: int) -> list[Told]:
    """Every fifth group says nothing, and every seventh has too few that count."""
    rewards: list[float | None] = [1, 0, 1]
    if number % 5 == 0:
        rewards = [1, 1, 1]
    elif number % 7 == 0:
        rewards = [None, 1, None]
    return a_group(number, rewards)


def expected(number: int) -> str:
    if number % 5 == 0:
        return "dropped: zero_variance"
    return "dropped: too_few_valid" if number % 7 == 0 else "batch: None"


@pytest.fixture
def lab(kafka_url: str, tmp_path: Path) -> Iterator[Lab]:
    with open_log(kafka_url) as log:
        lab = Lab(kafka_url, tmp_path, log)
        try:
            yield lab
        finally:
            lab.stop.set()
            for process in lab.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


@pytest.mark.kafka
@pytest.mark.fault
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(10, marks=pytest.mark.timeout(900)),
        pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(5400)]),
    ],
)
def test_killing_the_assembler_at_any_moment_decides_every_group_once(
    lab: Lab, rounds: int
) -> None:
    seed = int(os.environ.get("ROLLBOOK_TEST_SEED", random.randrange(2**32)))
    print(f"seed {seed} (ROLLBOOK_TEST_SEED)")
    chance = random.Random(seed)
    write(lab.log, the_run())
    teller = threading.Thread(target=lab.tell_groups, args=(rounds, random.Random(seed + 1)))
    trainer = threading.Thread(target=lab.train)
    current = lab.start()
    teller.start()
    trainer.start()
    zombies: list[subprocess.Popen[str]] = []
    for number in range(rounds):
        time.sleep(chance.uniform(0.0, 1.5))
        if number % 5 == 4:
            current.send_signal(signal.SIGSTOP)
            zombies.append(current)
        else:
            current.kill()
            current.wait()
        current = lab.start()
        if len(zombies) and zombies[-1].poll() is None and chance.random() < 0.7:
            zombies[-1].send_signal(signal.SIGCONT)
    for zombie in zombies:
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(120) == 2
        assert "is fenced" in lab.said(zombie) or "has epoch" in lab.said(zombie)
    teller.join(300)
    wait_until_decided(lab, rounds * GROUPS_A_ROUND)
    current.send_signal(signal.SIGTERM)
    assert current.wait(60) == 0, lab.said(current)
    lab.stop.set()
    trainer.join(60)
    check(lab, rounds * GROUPS_A_ROUND)


def wait_until_decided(lab: Lab, groups: int) -> None:
    """Until every group is decided, and in a batch as far as batches are full."""
    due = sum(expected(number).startswith("batch") for number in range(groups))
    deadline = time.monotonic() + 300
    while True:
        facts = each_once(values_in(lab.log, "events"))
        decided = {fact.group_id for fact in facts if isinstance(fact, GroupDecided)}
        batches = sum(isinstance(fact, BatchAssembled) for fact in facts)
        if len(decided) == groups and batches == due // GROUPS_PER_BATCH:
            return
        assert time.monotonic() < deadline, (len(decided), groups, batches, due)
        time.sleep(0.5)


def check(lab: Lab, groups: int) -> None:
    values = values_in(lab.log, "events")
    assert len(values) == len(set(values))
    facts = each_once(values)
    decisions = [fact for fact in facts if isinstance(fact, GroupDecided)]
    assert {fact.group_id: f"{fact.decision}: {fact.drop_reason}" for fact in decisions} == {
        group_id(number): expected(number) for number in range(groups)
    }
    assert len(decisions) == groups  # each once
    assembled = sorted(
        (fact for fact in facts if isinstance(fact, BatchAssembled)), key=lambda fact: fact.step
    )
    assert [fact.step for fact in assembled] == list(range(1, len(assembled) + 1))
    taken = [each.batch for each in read_batches(lab.log, RUN)]
    assert [batch.batch_sha256 for batch in taken] == [fact.batch_sha256 for fact in assembled]
    trained = Counter(
        (sample.trajectory_id, sample.segment) for batch in taken for sample in batch.samples
    )
    assert set(trained.values()) == {1}
    assert len({group for batch in taken for group in batch.group_ids}) == len(taken) * (
        GROUPS_PER_BATCH
    )
    check_numbers(facts)
    again = replay_batches(lab.log, RUN)
    assert (again.differences, again.gone) == ([], [])
    assert (again.groups.equal, again.batches.equal) == (groups, len(assembled))
    print(
        f"{groups} groups, {len(taken)} batches by {len(lab.processes)} assemblers;"
        f" {again.groups.equal} decisions and {again.batches.equal} batches are the same again"
    )


def check_numbers(facts: list[Any]) -> None:
    """No hole in the numbers of any assembler, killed or not."""
    numbers: dict[str, list[int]] = {}
    for fact in facts:
        if fact.producer == "assembler":
            numbers.setdefault(fact.incarnation, []).append(fact.producer_seq)
    assert len(numbers) > 1
    for of_one in numbers.values():
        assert sorted(of_one) == list(range(len(of_one)))
