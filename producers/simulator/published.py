"""Plans that reproduce the figures of a published run of software-engineering agents.

Each plan says what its accounts must read, up to the sampling error of its seed. The figures were
published, the distributions were not: these are chosen so that the figures follow.

    steps-before        850 s a step: 8 sandboxes at once on the one node, and a slow way into them
    steps-after         284 s a step on the same node and the same work; 32% of rollout time comes
                        after 90% of a step's attempts have ended
    one-to-three-nodes  860 completed attempts an hour on 1 node, then 3,480 on 3 nodes with other
                        sandbox settings; then 384 at once, 23% of the KV cache in use, every slot
                        taken and attempts waiting for one
    runaway-contexts    contexts of 113K to 186K tokens against a cap of 64K that nothing enforces
    base, sft, rl       evaluations of 100 tasks x 4: pass@1 of 7.25, 12.75 and 27.5%
"""

from __future__ import annotations

from dataclasses import replace

from ledger.facts.lists import RunKind
from producers.simulator.plan import (
    AttemptPlan,
    BadPlan,
    LogNormal,
    Resources,
    RunPlan,
    Span,
    Training,
)

_STEPS = AttemptPlan(active_s=LogNormal(53.0, 0.405), turn_s=8.0)
_LONG = AttemptPlan(active_s=LogNormal(331.0, 0.5), turn_s=24.0)


def _steps(name: str, slots: int, setup_s: float) -> RunPlan:
    return RunPlan(
        name=name,
        kind=RunKind.TRAIN,
        attempt=replace(_STEPS, setup_s=LogNormal(setup_s, 0.3)),
        spans=(Span(resources=Resources(sandbox_slots=slots, trajectory_concurrency=slots)),),
        tasks=1_350,
        group_size=8,
        pass_rate=0.25,
        training=Training(steps=40, groups_per_step=8),
        notes={"published": "850 s -> 284 s a step on the same node; 32% tail"},
    )


STEPS_BEFORE = _steps("steps-before", slots=8, setup_s=14.9)
STEPS_AFTER = _steps("steps-after", slots=64, setup_s=3.0)

NODES = RunPlan(
    name="one-to-three-nodes",
    kind=RunKind.TRAIN,
    attempt=_LONG,
    spans=(
        Span(
            resources=Resources(
                engine_nodes=1,
                kv_tokens_per_engine=4_260_000,
                sandbox_slots=95,
                trajectory_concurrency=112,
            ),
            seconds=4 * 3600.0,
        ),
        Span(
            resources=Resources(
                engine_nodes=3,
                kv_tokens_per_engine=4_260_000,
                sandbox_slots=384,
                trajectory_concurrency=448,
            ),
            seconds=2 * 3600.0,
        ),
    ),
    tasks=1_350,
    group_size=8,
    pass_rate=0.25,
    notes={"published": "860 -> 3,480 an hour on 1 -> 3 nodes; 384 at once at 23% KV"},
)

RUNAWAY = RunPlan(
    name="runaway-contexts",
    kind=RunKind.TRAIN,
    attempt=replace(
        _LONG,
        active_s=LogNormal(331.0, 0.5, most=1_000.0),
        output_tokens=LogNormal(300.0, 1.0),
        runaway=0.04,
        queue_s=LogNormal(1.5, 1.2),
        request_fails=0.01,
    ),
    spans=(
        Span(
            resources=Resources(
                engine_context_cap_tokens=65_536, sandbox_slots=96, trajectory_concurrency=96
            ),
            seconds=2 * 3600.0,
        ),
    ),
    tasks=1_350,
    group_size=8,
    pass_rate=0.2,
    context_cap_tokens=65_536,
    notes={"published": "contexts of 113K to 186K tokens against a cap of 64K"},
)


def _evaluation(name: str, pass_rate: float, version: int) -> RunPlan:
    return RunPlan(
        name=name,
        kind=RunKind.EVAL,
        attempt=replace(_STEPS, lost=0.0, start_fails=0.01),
        spans=(Span(resources=Resources()),),
        tasks=100,
        group_size=4,
        pass_rate=pass_rate,
        policy_version=version,
        notes={"published": f"pass@1 {100 * pass_rate:.2f}%"},
    )


EVALUATIONS = (
    _evaluation("base", 29 / 400, 0),
    _evaluation("sft", 51 / 400, 1),
    _evaluation("rl", 110 / 400, 2),
)

SCENARIOS: dict[str, tuple[RunPlan, ...]] = {
    "steps-before": (STEPS_BEFORE,),
    "steps-after": (STEPS_AFTER,),
    "one-to-three-nodes": (NODES,),
    "runaway-contexts": (RUNAWAY,),
    "pass-at-1": EVALUATIONS,
    "published": (STEPS_BEFORE, STEPS_AFTER, NODES, RUNAWAY, *EVALUATIONS),
}
"""Runs by the name of what they show."""


def scenario(name: str) -> tuple[RunPlan, ...]:
    """The runs of a scenario. Raises BadPlan for a name that there isn't."""
    if name not in SCENARIOS:
        raise BadPlan(f"scenario must be one of {', '.join(SCENARIOS)}, got {name!r}")
    return SCENARIOS[name]
