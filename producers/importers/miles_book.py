"""What miles says of a run beside its samples: steps, engines, and figures to compare with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from producers.importers import figures
from producers.importers.miles_dashboard import phases, stream
from producers.importers.miles_dump import Trained
from producers.importers.miles_steps import TimedStep, timed_steps
from producers.importers.run import ForeignRun
from producers.importers.slime import phases_of
from producers.importers.slime_lines import Numbers, read_lines
from producers.importers.source import Json, SourceFile
from producers.importers.times import UNKNOWN, epoch

_ENGINE = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "num_paused_reqs": "paused",
    "num_used_tokens": "kv_used_tokens",
    "max_total_num_tokens": "kv_capacity_tokens",
    "gen_throughput": "generation_tokens_per_s",
}
"""Metric of an engine -> field of engine_sampled. An engine prefixes its names with `sglang:`, a
router with `sglang_`."""


def add_steps(
    run: ForeignRun,
    board: Path | None,
    logs: Sequence[Path],
    root: Path,
    consumed: Mapping[int, Trained],
    rollouts: Sequence[int],
) -> None:
    """A step for each training by the dashboard's clock; where it has none, for each rollout whose
    seconds were printed. Numbers are the rollouts' own, from 0."""
    numbers = _numbers(run, board, logs, root)
    timed: list[TimedStep] = []
    if board is not None:
        found, still_open = phases(stream(board, "phases", root))
        timed = timed_steps(found)
        if still_open:
            run.note(f"{still_open} phases are open: they had not ended when the files were copied")
    if timed:
        _add_timed(run, timed, numbers, consumed, rollouts)
    else:
        _add_printed(run, numbers, consumed)
    for number, told in sorted(consumed.items()):
        _claim_consumed(run, number, told)


def _add_timed(
    run: ForeignRun,
    timed: Sequence[TimedStep],
    numbers: Mapping[int, tuple[Numbers, str]],
    consumed: Mapping[int, Trained],
    rollouts: Sequence[int],
) -> None:
    named = sorted({*rollouts, *consumed, *numbers})
    if len(named) != len(timed):
        run.note(
            f"{len(timed)} trainings have a clock and {len(named)} rollouts a number: they are"
            " matched in order from the first"
        )
    first = named[0] if named else 0
    for place, step in enumerate(timed):
        number = named[place] if place < len(named) else first + place
        told, where = numbers.get(number, ({}, ""))
        run.fact(
            "step_completed",
            epoch(step.row, "t1"),
            step.row.ref,
            step=number,
            batch_id=None,
            started_at=datetime.fromtimestamp(step.start, UTC),
            wall_s=step.end - step.start,
            phases=step.phases,
            **_work(told, consumed.get(number)),
        )
        actor = told.get("perf/actor_train_time")
        query = figures.of_step(number, "forward_backward_s")
        if actor is not None:
            run.claim(f"rollout {number} actor_train_time", actor, query, where, places=1)


def _add_printed(
    run: ForeignRun,
    numbers: Mapping[int, tuple[Numbers, str]],
    consumed: Mapping[int, Trained],
) -> None:
    for number, (told, where) in sorted(numbers.items()):
        if (wall_s := told.get("perf/step_time")) is None:
            continue
        run.fact(
            "step_completed",
            UNKNOWN,
            where,
            step=number,
            batch_id=None,
            wall_s=wall_s,
            phases=phases_of(told),
            **_work(told, consumed.get(number)),
        )
        halves = "metrics['perf/train_wait_time'] + metrics['perf/train_time']"
        run.claim(f"rollout {number} step_time", wall_s, figures.of_step(number, halves), where)


def _work(told: Numbers, trained: Trained | None) -> dict[str, Any]:
    """What a step worked on."""
    return {
        "trajectories": len(trained.samples) if trained else None,
        "trained_tokens": trained.tokens if trained else None,
        "loss": told.get("train/loss"),
        "grad_norm": told.get("train/grad_norm"),
        "metrics": dict(told),
    }


def _numbers(
    run: ForeignRun, board: Path | None, logs: Sequence[Path], root: Path
) -> dict[int, tuple[Numbers, str]]:
    """Rollout id -> its numbers, and the place of the last of them: of the console and of the
    metrics stream."""
    found: dict[int, tuple[Numbers, str]] = {}

    def add(number: int, told: Numbers, where: str) -> None:
        before, _ = found.get(number, ({}, ""))
        found[number] = (before | told, where)

    for file in logs:
        source = SourceFile.read(file, root)
        lines = read_lines(source)
        for note in lines.notes:
            run.note(note)
        for each in (*lines.rollouts.values(), *lines.steps.values()):
            add(each.number, each.numbers, source.ref(each.pointer))
    for row in stream(board, "metrics", root) if board else ():
        step = row.integer("step")
        if step is not None:
            add(step, row.member("metrics").numbers(), row.ref)
    return found


def _claim_consumed(run: ForeignRun, number: int, told: Trained) -> None:
    """The batch's raw rewards against the samples' own."""
    place = f"train_data/{number}_*.pt"
    raw = told.raw_rewards
    mean = sum(raw) / len(raw) if raw else None
    query = figures.of_attempts("avg(reward)", figures.sampled_for(number))
    run.claim(f"rollout {number} mean raw_reward", mean, query, place)
    query = figures.of_step(number, "trajectories")
    run.claim(f"rollout {number} samples trained on", len(told.samples), query, place)


def add_engines(run: ForeignRun, board: Path, root: Path) -> None:
    """Engines as they were found, and their samples."""
    for row in stream(board, "topology", root):
        nodes: defaultdict[str, int] = defaultdict(int)
        engines = row.items("engines")
        for engine in engines:
            for gpu in engine.items("gpus"):
                host = gpu.array()
                if host:
                    nodes[str(host[0].value)] += 1
        per_node = set(nodes.values())
        run.fact(
            "resources_declared",
            epoch(row, "ts"),
            row.ref,
            [row.pointer],
            engines=len(engines),
            engine_nodes=len(nodes) or None,
            engine_gpus_per_node=per_node.pop() if len(per_node) == 1 else None,
        )
    samples: defaultdict[tuple[str, float], list[Json]] = defaultdict(list)
    for row in stream(board, "engine_series", root):
        if _metric(row) in _ENGINE:
            samples[row.need_text("addr"), row.number("ts") or 0.0].append(row)
    for (engine, at), rows in samples.items():
        told: dict[str, Any] = {}
        for row in rows:
            name = _ENGINE[_metric(row)]
            value = row.number("value")
            if value is not None and math.isfinite(value):
                told[name] = value if name == "generation_tokens_per_s" else int(value)
        moment = epoch(rows[0], "ts")
        run.fact("engine_sampled", moment, rows[0].ref, [repr(at)], engine=engine, **told)


def _metric(row: Json) -> str:
    return row.need_text("metric").removeprefix("sglang:").removeprefix("sglang_")
