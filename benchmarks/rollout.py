"""The benchmark of rollouts: what the agent loop itself costs, and what recording adds to it.

    python -m benchmarks.rollout [--trajectories 192] [--rounds 8]

Starts the real SGLang server on a tiny model and the local sandbox server, and stops them. Two
questions, one run:

1. Of a turn's seconds, at one trajectory at a time: how many are the engine's, the sandbox's, and
   the loop's own.
2. CPU seconds of this process per trajectory, at concurrency 16, recording to SQLite against the
   same loop that records nothing; interleaved, medians. Target: at most 1.05.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.report import machine, progress
from consumers.rebuild import project
from deploy.engine.server import EngineServer
from deploy.engine.tiny_model import write_tiny_qwen3
from ledger.book import connect
from ledger.facts.lists import RunKind
from ledger.open_log import open_log
from ledger.recorder import BoundRecorder, Recorder
from producers.action_loop import AgentSettings
from producers.campaign import Campaign, Plan
from producers.engine import Sampling
from producers.local_e2b.launch import LocalE2B
from producers.sandboxes.settings import SandboxSettings
from producers.scope import RunScope
from producers.tasks.load import load_tasks

TARGET = 1.05

# Of one turn: what the engine and the sandbox took by the client's clock; the rest of the policy's
# clock is the loop's own. Queue and pause are on neither side.
SHARES = """
SELECT
    sum(policy_clock_s) / sum(turns) AS turn_s,
    sum(model_s) / sum(turns) AS engine_s,
    sum(tool_s) / sum(turns) AS sandbox_s
FROM (
    SELECT trajectory_id, policy_clock_s, turns, coalesce(tool_s, 0) AS tool_s
    FROM trajectories WHERE stop_reason IN ('submitted', 'turn_cap')
)
JOIN (
    SELECT trajectory_id, sum(client_s - coalesce(queue_s, 0) - coalesce(paused_s, 0)) AS model_s
    FROM turns GROUP BY trajectory_id
) USING (trajectory_id)
"""


class Unrecorded(Recorder):
    """The same calls, and nothing behind them."""

    def __init__(self) -> None:
        self.run_id = str(uuid.uuid4())

    def _put(self, name: str, fields: dict[str, Any]) -> None:
        pass

    def hurry(self) -> None:
        pass

    def bind(self, /, **ids: Any) -> BoundRecorder:
        return BoundRecorder(self, ids)


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers, and where the logs go."""

    folder: Path
    engine: str
    sandboxes: str

    def plan(self, trajectories: int, concurrency: int) -> Plan:
        """Groups of eight at micro_repair."""
        tasks = load_tasks("micro_repair:train")
        return Plan(
            scope=RunScope(kind=RunKind.TRAIN, name="benchmark", group_size=8),
            tasks=tasks,
            agent=AgentSettings(
                caps=tasks.caps, sampling=Sampling(), action_tokens=tasks.action_tokens
            ),
            engine_urls=(self.engine,),
            sandboxes=SandboxSettings(
                api_url=self.sandboxes, sandbox_url=self.sandboxes, api_key="e2b_local"
            ),
            concurrency=concurrency,
            groups=max(trajectories // 8, 1),
        )

    def recorder(self, name: str) -> Recorder:
        """To a log of its own."""
        return Recorder(
            self.log(name),
            producer="benchmark",
            run_id=str(uuid.uuid4()),
            spool_dir=self.folder / "spool",
        )

    def log(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}.db"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--trajectories", type=int, default=192, help="of each round")
    parser.add_argument("--rounds", type=int, default=8, help="of which the median counts")
    given = parser.parse_args()
    with _stage() as stage:
        _run(stage.plan(16, 16), Unrecorded())  # warm: caches, connections, imports
        turn_s, engine_s, sandbox_s = _shares(stage)
        on: list[float] = []
        off: list[float] = []
        for number in range(given.rounds):
            plan = stage.plan(given.trajectories, 16)
            for recorded in (True, False) if number % 2 else (False, True):
                if not recorded:
                    off.append(_run(plan, Unrecorded()))
                    continue
                with contextlib.closing(stage.recorder(f"round{number}")) as recorder:
                    on.append(_run(plan, recorder))
            progress(f"round {number}: CPU {on[-1] * 1e3:.1f} / {off[-1] * 1e3:.1f} ms")
    ratio = statistics.median(on) / statistics.median(off)
    print(f"machine: {machine()}; {given.rounds} rounds of {given.trajectories} trajectories\n")
    print("| measure | value | target |\n|---|---|---|")
    print(f"| a turn, one trajectory at a time | {turn_s * 1e3:.1f} ms | |")
    print(f"| of it the engine, by the client | {engine_s * 1e3:.1f} ms | |")
    print(f"| of it the sandbox, by the client | {sandbox_s * 1e3:.1f} ms | |")
    print(f"| of it the agent loop itself | {(turn_s - engine_s - sandbox_s) * 1e3:.2f} ms | |")
    print(f"| CPU per trajectory, recording | {statistics.median(on) * 1e3:.1f} ms | |")
    print(f"| CPU per trajectory, not recording | {statistics.median(off) * 1e3:.1f} ms | |")
    print(f"| ratio | {ratio:.3f} | <= {TARGET} {'met' if ratio <= TARGET else 'MISSED'} |")


@contextlib.contextmanager
def _stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        folder = Path(name)
        write_tiny_qwen3(folder / "model", seed=0)
        engine = EngineServer(folder / "engine", folder / "model")
        boxes = LocalE2B(folder / "sandboxes", slots=16, unsafe=True)
        try:
            yield Stage(folder, engine.start(), boxes.start())
        finally:
            boxes.stop()
            engine.kill()


def _run(plan: Plan, recorder: Recorder) -> float:
    """CPU seconds of this process per trajectory, until all is durable."""
    gc.collect()  # or chance decides which round pays 120 ms for what others left
    began = time.process_time()
    tally = asyncio.run(Campaign(plan, recorder).run())
    if not isinstance(recorder, Unrecorded):
        recorder.flush()
    return (time.process_time() - began) / tally.attempts


def _shares(stage: Stage) -> tuple[float, float, float]:
    """Seconds of a turn: all, the engine's, the sandbox's."""
    plan = replace(stage.plan(16, 1), sample_every_s=3600.0)
    with contextlib.closing(stage.recorder("single")) as recorder:
        _run(plan, recorder)
    with open_log(stage.log("single")) as log:
        project(log, stage.folder / "single.duckdb")
    with contextlib.closing(connect(stage.folder / "single.duckdb")) as book:
        row = book.execute(SHARES).fetchone()
    assert row is not None
    return row


if __name__ == "__main__":
    main()
