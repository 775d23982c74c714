"""What a simulated run declares: itself, its tasks, its resources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from random import Random
from typing import Any

from ledger.facts.lists import RunKind
from ledger.wire.encoder import Draft
from producers.simulator.attempt import BACKEND
from producers.simulator.plan import Resources, RunPlan
from producers.simulator.teller import Teller

DATASET = "simulated-tasks"


def task_id(number: int) -> str:
    """The name of a task."""
    return f"task-{number:05d}"


def pass_rates(plan: RunPlan) -> list[float]:
    """(tasks,) how likely each task is solved, in the mean `plan.pass_rate`.

    Task i has ease u, evenly spread over (0, 1), and is solved with probability u^(1/p - 1), whose
    mean is p: few tasks are easy when p is small. The ease belongs to the task, whatever the seed
    and the policy, so that two policies meet the same easy ones."""
    order = list(range(plan.tasks))
    Random(f"{DATASET}/{plan.tasks}").shuffle(order)
    power = 1 / plan.pass_rate - 1
    return [((place + 0.5) / plan.tasks) ** power for place in order]


def declare_run(plan: RunPlan, tell: Teller, seed: int) -> Iterator[Draft]:
    """`run_declared` and a `task_declared` for each task."""
    names = [task_id(number) for number in range(plan.tasks)]
    run = {
        "kind": plan.kind,
        "name": plan.name,
        "parent_policy_version": plan.policy_version if plan.kind is RunKind.EVAL else None,
        "pass_threshold": 1.0,
        "configuration": json.dumps(
            {"simulated": {"seed": seed, "plan": plan_data(plan)}}, sort_keys=True
        ),
        "dataset": DATASET,
        "split": "all",
        "subset_sha256": hashlib.sha256("\n".join(names).encode()).hexdigest(),
        "tasks": plan.tasks,
        "attempts_per_task": plan.group_size,
        "temperature": 1.0,
        "top_p": 1.0,
        "context_cap_tokens": plan.context_cap_tokens,
        "turn_cap": plan.attempt.turn_cap,
        "scaffold": "simulated",
        "model": "simulated-policy",
    }
    yield tell.tell("run", "run_declared", 0.0, run)
    for name in names:
        yield tell.tell(f"task/{name}", "task_declared", 0.0, {"task_id": name})


def declare_resources(resources: Resources, at_s: float, tell: Teller) -> Draft:
    """What is in use from `at_s` on."""
    fields: dict[str, Any] = {
        "engine_nodes": resources.engine_nodes,
        "engines": resources.engine_nodes,
        "engine_gpus_per_node": resources.engine_gpus_per_node,
        "engine_gpu_type": "simulated",
        "kv_tokens_per_engine": resources.kv_tokens_per_engine,
        "engine_context_cap_tokens": resources.engine_context_cap_tokens,
        "trainer_gpus": resources.trainer_gpus,
        "trainer_gpu_type": "simulated",
        "colocated": False,
        "sandbox_backend": BACKEND,
        "sandbox_slots": resources.sandbox_slots,
        "sandbox_vcpus": 2.0,
        "trajectory_concurrency": resources.trajectory_concurrency,
    }
    return tell.tell(f"resources/{at_s!r}", "resources_declared", at_s, fields)


def engines_of(resources: Resources, run_id: str) -> Sequence[str]:
    """Addresses of the engines: of this run alone, since samples belong to engines."""
    return [f"http://sim-{run_id[-8:]}-{node}:30000" for node in range(resources.engine_nodes)]


def plan_data(plan: RunPlan) -> dict[str, Any]:
    """The plan as JSON holds it; no limit is null."""

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: known(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, list | tuple):
            return [known(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return None if value == float("inf") else value

    return known(asdict(plan))
