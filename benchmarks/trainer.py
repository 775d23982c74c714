"""The trainer: tokens a second beside plain torch and TRL, and what of a step is none of its work.

    python -m benchmarks.trainer [--samples 16] [--rounds 5]

The same model, batch and update, one step of each in turn. The target is the faster peer's rate at
the size where computing dominates; the tiny model is for information.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.measured import Measured, middle, paired, paired_cpu
from benchmarks.report import Row, machine, progress, table
from benchmarks.stage import ROOT, alternate
from benchmarks.trainer_batch import SIZES
from benchmarks.trainer_steps import outside_share

PEERS = ROOT / ".venv-bench" / "trainer-peers"
"""TRL and what it needs beside our own packages: `benchmarks/setup.sh`."""
WARM_UP = 2


class Worker:
    """A trainer in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def step(self) -> Measured:
        """Have it do one step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"a worker ended with status {self._process.wait()}")
        return Measured.of_line(line)


@contextmanager
def worker(name: str, size: str, samples: int) -> Iterator[Worker]:
    """Start one, and end it."""
    command = [sys.executable, "-m", "benchmarks.trainer_worker", name, size, str(samples)]
    environment = os.environ | {"PYTHONPATH": str(PEERS)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def compare(size: str, samples: int, rounds: int) -> list[Row]:
    """Rows of one model size."""
    names = ("ours", "plain", "trl")
    with ExitStack() as stack:
        steps = [stack.enter_context(worker(name, size, samples)).step for name in names]
        progress(f"{size}: warming up")
        alternate(WARM_UP, *steps)
        progress(f"{size}: {rounds} rounds")
        ours, *peers = alternate(rounds, *steps)
    target = 1.0 if size == "compute" else None
    return [
        Row(
            f"{size}: one step, tokens a second, against {label}",
            _rate(ours),
            _rate(theirs),
            paired(ours, theirs),
            paired_cpu(ours, theirs),
            least=target,
        )
        for label, theirs in zip(("torch + transformers", "TRL's GRPO loss"), peers, strict=True)
    ]


def _rate(rounds: list[Measured]) -> str:
    median = middle(rounds)
    return f"{median.rate:,.0f}/s ({median.cpu_s:.2f} s CPU)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__)
    parser.add_argument("--samples", type=int, default=16, help="samples of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each, behind warming up")
    arguments = parser.parse_args()
    rows = [row for size in SIZES for row in compare(size, arguments.samples, arguments.rounds)]
    share, steps = outside_share(arguments.samples, arguments.rounds)
    rows.append(
        Row(
            f"share of {steps} steps outside the named work", f"{share:.1%}", "10%", share, most=0.1
        )
    )
    print(f"machine: {machine()}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
