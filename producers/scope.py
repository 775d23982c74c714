"""What a rollout declares before its first attempt: the run, its tasks and its resources.

A figure without its scope is no figure, so all of it is facts: two runs can be compared, or be
seen to differ, from the log alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ledger.facts.lists import RunKind
from ledger.recorder import Recorder
from producers.agent import AgentSettings
from producers.engine import EngineInfo
from producers.tasks.task import TaskSet


@dataclass(frozen=True, slots=True)
class RunScope:
    """The names of a run, and what it measures by."""

    kind: RunKind
    """Train or eval."""
    name: str
    """For people; not unique."""
    group_size: int
    """Attempts per task that are scored together."""
    parent_run_id: str | None = None
    """The run whose weights it starts from or evaluates."""
    parent_policy_version: int | None = None
    """The version of the parent that it starts from or evaluates."""
    pass_threshold: float = 1.0
    """A reward of at least this passes."""
    configuration: dict[str, Any] = field(default_factory=dict[str, Any])
    """All other settings, without secrets."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a rollout runs under."""

    concurrency: int
    """Attempts in flight."""
    sandbox_backend: str
    """Who runs the sandboxes."""
    sandbox_slots: int
    """Sandboxes at once."""


def declare(
    recorder: Recorder,
    scope: RunScope,
    tasks: TaskSet,
    agent: AgentSettings,
    engines: Sequence[EngineInfo],
    limits: Limits,
) -> None:
    """Record `run_declared`, a `task_declared` for each task, and `resources_declared`."""
    caps, sampling = agent.caps, agent.sampling
    recorder.run_declared(
        kind=scope.kind,
        name=scope.name,
        parent_run_id=scope.parent_run_id,
        parent_policy_version=scope.parent_policy_version,
        pass_threshold=scope.pass_threshold,
        configuration=json.dumps(
            {**scope.configuration, "caps": asdict(caps), "sampling": asdict(sampling)},
            sort_keys=True,
        ),
        dataset=tasks.dataset,
        split=tasks.split,
        subset=tasks.subset,
        subset_sha256=tasks.subset_sha256,
        tasks=len(tasks.tasks),
        attempts_per_task=scope.group_size,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        output_cap_tokens=caps.output_tokens,
        context_cap_tokens=caps.context_tokens,
        turn_cap=caps.turns,
        clock_cap_s=caps.clock_s,
        scaffold=tasks.scaffold,
        model=engines[0].model,
    )
    for task in tasks.tasks:
        recorder.task_declared(
            task_id=task.task_id,
            stratum=task.stratum,
            stratum_weight=task.stratum_weight,
            task_checksum=task.checksum,
            repository=task.repository,
            base_commit=task.base_commit,
            statement=task.statement,
        )
    recorder.resources_declared(
        engines=len(engines),
        kv_tokens_per_engine=_same(info.kv_capacity_tokens for info in engines),
        engine_context_cap_tokens=_same(info.context_length for info in engines),
        max_running_requests=_same(info.max_running_requests for info in engines),
        sandbox_backend=limits.sandbox_backend,
        sandbox_slots=limits.sandbox_slots,
        trajectory_concurrency=limits.concurrency,
    )


def _same(values: Iterable[int | None]) -> int | None:
    """The one value that all have; None where they differ: undeclared is better than wrong."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
