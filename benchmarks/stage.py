"""Where everything happens: a temporary directory with a real Kafka broker, and the processes
that are measured one after the other."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measured import Measured
from benchmarks.workload import RUN
from deploy.kafka.broker import Broker
from ledger.open_log import open_log
from ledger.wire.encoder import Draft, FactEncoder

ROOT = Path(__file__).parent.parent
PEER_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
FILL_CHUNK = 10_000
WORKER_TIMEOUT_S = 900


@dataclass(slots=True)
class Stage:
    """One run of the benchmark."""

    directory: Path
    bootstrap: str
    seed: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, what: str) -> str:
        """A name that nothing has yet."""
        return f"{what}{next(self._numbers)}"

    def path(self, what: str) -> str:
        """A fresh path in the directory; nothing is there yet."""
        return str(self.directory / self.fresh(what))

    def kafka(self, what: str) -> str:
        """The URL of a fresh Kafka log, with the default number of partitions."""
        return f"kafka://{self.bootstrap}/{self.fresh(what)}"

    def sqlite(self, what: str) -> str:
        """The URL of a fresh SQLite log."""
        return f"sqlite:///{self.path(what)}.db"

    def work(self, name: str, **arguments: Any) -> Measured:
        """Run one function of `benchmarks.worker` in a process of its own."""
        line = [sys.executable, "-m", "benchmarks.worker", name, json.dumps(arguments)]
        return _run(line)

    def peer(self, script: str, *arguments: str) -> Measured:
        """Run a peer's script with the peers' own packages."""
        return _run([str(PEER_PYTHON), str(ROOT / "benchmarks" / script), *arguments])


@contextmanager
def stage(seed: int) -> Iterator[Stage]:
    """A broker for as long as the block lasts."""
    with TemporaryDirectory(prefix="rollbook-bench-") as directory:
        broker = Broker(Path(directory) / "kafka")
        try:
            yield Stage(Path(directory), broker.start(), seed)
        finally:
            broker.stop()


def fill(url: str, drafts: Iterable[Draft]) -> None:
    """Append facts to a log without a recorder."""
    encoder = FactEncoder("bench", RUN)
    left = iter(drafts)
    with open_log(url) as log:
        while chunk := list(itertools.islice(left, FILL_CHUNK)):
            encoded = encoder.encode(chunk)
            if encoded.refused:
                raise encoded.refused[0].error
            log.append("events", encoded.events, 60.0)


def alternate(
    rounds: int, *sides: Callable[[], Measured], pause: Callable[[], None] = lambda: None
) -> list[list[Measured]]:
    """Run the sides in turn, so that what disturbs the machine meets them all: for each side
    (rounds,) measurements."""
    found: list[list[Measured]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, results in zip(sides, found, strict=True):
            pause()
            results.append(side())
    return found


def _run(line: list[str]) -> Measured:
    run = subprocess.run(
        line,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WORKER_TIMEOUT_S,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    lines = run.stdout.splitlines()
    if run.returncode or not lines:
        raise RuntimeError(f"{' '.join(line)} failed:\n{run.stdout[-2000:]}{run.stderr[-4000:]}")
    return Measured.of_line(lines[-1])
