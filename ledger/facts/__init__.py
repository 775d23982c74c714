"""Every fact there is.

See `ledger.facts.base` for what a fact is.

    runs.py          run_declared task_declared task_validated resources_declared
    trajectories.py  group_opened trajectory_started trajectory_finished reward_assigned
                     trajectory_judged
    sandboxes.py     sandbox_started sandbox_prepared sandbox_failed sandbox_stopped
    turns.py         turn_completed turn_failed tool_call_completed
    decisions.py     refill_requested group_decided batch_assembled batch_refused
    training.py      trainer_started step_completed checkpoint_saved weights_published
                     weights_applied weights_orphaned
    samples.py       engine_sampled pool_sampled
    producers.py     producer_alive producer_closed producer_lost facts_erased
"""

from __future__ import annotations

import re

from ledger.facts.base import Excerpt, Fact, GroupFact, TrajectoryFact
from ledger.facts.decisions import (
    BatchAssembled,
    BatchRefused,
    Cut,
    GroupDecided,
    Member,
    RefillRequested,
)
from ledger.facts.lists import TimeQuality
from ledger.facts.producers import FactsErased, ProducerAlive, ProducerClosed, ProducerLost
from ledger.facts.runs import ResourcesDeclared, RunDeclared, TaskDeclared, TaskValidated
from ledger.facts.samples import EngineSampled, PoolSampled, PoolUse
from ledger.facts.sandboxes import (
    SandboxFailed,
    SandboxPrepared,
    SandboxStarted,
    SandboxStopped,
)
from ledger.facts.training import (
    CheckpointSaved,
    PhaseSpan,
    StepCompleted,
    TrainerStarted,
    WeightsApplied,
    WeightsOrphaned,
    WeightsPublished,
)
from ledger.facts.trajectories import (
    ErrorJudgement,
    GroupOpened,
    RewardAssigned,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
)
from ledger.facts.turns import ToolCallCompleted, TurnCompleted, TurnFailed, VersionSpan

FACT_CLASSES: tuple[type[Fact], ...] = (
    RunDeclared,
    TaskDeclared,
    TaskValidated,
    ResourcesDeclared,
    GroupOpened,
    TrajectoryStarted,
    SandboxStarted,
    SandboxPrepared,
    SandboxFailed,
    SandboxStopped,
    TurnCompleted,
    TurnFailed,
    ToolCallCompleted,
    RewardAssigned,
    TrajectoryFinished,
    TrajectoryJudged,
    RefillRequested,
    GroupDecided,
    BatchAssembled,
    BatchRefused,
    TrainerStarted,
    StepCompleted,
    CheckpointSaved,
    WeightsPublished,
    WeightsApplied,
    WeightsOrphaned,
    EngineSampled,
    PoolSampled,
    ProducerAlive,
    ProducerClosed,
    ProducerLost,
    FactsErased,
)


def fact_name(cls: type[Fact]) -> str:
    """`TurnCompleted` -> `turn_completed`: its name in the log, the book and the recorder."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


FACTS: dict[str, type[Fact]] = {fact_name(cls): cls for cls in FACT_CLASSES}
"""Fact class by name."""

__all__ = [
    "FACTS",
    "FACT_CLASSES",
    "BatchAssembled",
    "BatchRefused",
    "CheckpointSaved",
    "Cut",
    "EngineSampled",
    "ErrorJudgement",
    "Excerpt",
    "Fact",
    "FactsErased",
    "GroupDecided",
    "GroupFact",
    "GroupOpened",
    "Member",
    "PhaseSpan",
    "PoolSampled",
    "PoolUse",
    "ProducerAlive",
    "ProducerClosed",
    "ProducerLost",
    "RefillRequested",
    "ResourcesDeclared",
    "RewardAssigned",
    "RunDeclared",
    "SandboxFailed",
    "SandboxPrepared",
    "SandboxStarted",
    "SandboxStopped",
    "StepCompleted",
    "TaskDeclared",
    "TaskValidated",
    "TimeQuality",
    "ToolCallCompleted",
    "TrainerStarted",
    "TrajectoryFact",
    "TrajectoryFinished",
    "TrajectoryJudged",
    "TrajectoryStarted",
    "TurnCompleted",
    "TurnFailed",
    "VersionSpan",
    "WeightsApplied",
    "WeightsOrphaned",
    "WeightsPublished",
    "fact_name",
]
