"""What a log or a spool holds, for tests of the recorder: facts in order, each once.

facts_in(url)                      every fact, partition by partition, duplicates dropped
turns_in(url)                      turn numbers of its turn_completed facts
check_numbers(facts)               no hole, nothing twice, each incarnation for itself
spools(tmp_path)                   files in the spool folders of a test's recorders
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ledger.avro import decode
from ledger.facts import Fact
from ledger.log import EventLog, Topic
from ledger.open_log import open_log
from ledger.recorder import Recorder
from tests.builders import an_id

RUN = an_id("run")
GROUP = an_id("group")
TRAJECTORY = an_id("trajectory")
IDS: dict[str, Any] = {"group_id": GROUP, "slot": 0, "trajectory_id": TRAJECTORY}
"""What every turn needs beside its number."""

Make = Callable[..., Recorder]
"""Fixture `make`: a recorder on the log of a URL."""

ROOT = Path(__file__).parent.parent


def values_in(log: EventLog, topic: Topic) -> list[bytes]:
    """Every value, in order in each partition."""
    ends = log.end_positions(topic)
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    deadline = time.monotonic() + 30.0
    with log.reader(log.start_positions(topic)) as reader:
        while any(reader.positions[place] < end for place, end in ends.items()):
            assert time.monotonic() < deadline, "the log can't be read to its end"
            for batch in reader.poll(0.2):
                found[batch.partition] += batch.values
    return [value for partition in sorted(found) for value in found[partition]]


def facts_in(url: str) -> list[Any]:
    """Every fact once: the same bytes may come again, other bytes of the same id may not."""
    with open_log(url) as log:
        return each_once(values_in(log, "events"))


def each_once(values: Sequence[bytes]) -> list[Any]:
    seen: dict[str, bytes] = {}
    facts: list[Any] = []
    for value in values:
        fact = decode(value)
        assert isinstance(fact, Fact)
        if seen.setdefault(fact.event_id, value) == value and seen[fact.event_id] is value:
            facts.append(fact)
        assert seen[fact.event_id] == value
    return facts


def of(facts: Sequence[Any], name: str, producer: str | None = None) -> list[Any]:
    """Those of one class."""
    return [
        fact for fact in facts if type(fact).__name__ == name and producer in (None, fact.producer)
    ]


def turns_in(url: str, producer: str | None = None) -> list[int]:
    """Turn numbers, in the order in which the log has them."""
    return [fact.turn_no for fact in of(facts_in(url), "TurnCompleted", producer)]


def check_numbers(facts: Sequence[Any]) -> dict[str, int]:
    """How many facts each incarnation has, which are numbered from 0 without a hole."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for fact in facts:
        numbers[fact.incarnation].append(fact.producer_seq)
    for found in numbers.values():
        assert sorted(found) == list(range(len(found)))
    return {incarnation: len(found) for incarnation, found in numbers.items()}


def spools(tmp_path: Path, suffix: str = "*") -> list[str]:
    """Names of what lies in spool folders, without incarnations."""
    found = (tmp_path / "spool").rglob(f"*.{suffix}")
    return sorted(path.name.split("-")[0] + path.suffix for path in found)


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


PRELUDE = """
import os, signal, sys, threading, time, logging
from ledger.recorder import Recorder
from tests.recorded import IDS, RUN
url, spool = sys.argv[1:3]
def a_recorder(**options):
    return Recorder(url, producer="script", run_id=RUN, spool_dir=spool, **options)
"""


def start_script(code: str, url: str, spool: Path, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs `code` behind PRELUDE."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, url, str(spool), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(code: str, url: str, spool: Path, returns: int = 0) -> str:
    """Run `code` to its end; what it printed."""
    process = start_script(code, url, spool)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == returns, errors
    return out
