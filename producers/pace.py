"""Keeps step with training: when the next group may be opened, and for which step.

    async   a group is opened while fewer than `ahead` of ours wait to be trained on
    sync    ... and only for the next step, once every engine has the version that it trains from

All of it is read from the log: what the assembler made of groups, what the trainer has trained on,
what the engines have.

Invariants:

1. Nothing is opened once the batch of the last step is there, so that no attempt is made that no
   step could use, and none has to be cancelled.
2. It doesn't end before that step is done: a trainer that refuses the batch waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ledger.facts import (
    BatchAssembled,
    BatchRefused,
    GroupDecided,
    StepCompleted,
    TrainerStarted,
    WeightsApplied,
    WeightsPublished,
)
from ledger.facts.lists import GroupDecision
from producers.tail import Tail

PaceFact = (
    BatchAssembled
    | BatchRefused
    | GroupDecided
    | StepCompleted
    | TrainerStarted
    | WeightsApplied
    | WeightsPublished
)
KINDS: tuple[type[PaceFact], ...] = get_args(PaceFact)


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """How far rollouts may run ahead of training."""

    last_step: int
    """No group is opened behind the batch of this step."""
    ahead: int = 12
    """Most groups of ours that are neither dropped nor trained on."""
    sync: bool = False
    """Whether a step's rollouts wait for the step before it."""

    def __post_init__(self) -> None:
        for name in ("last_step", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Course:
    """How far a run has come: a fold of its facts."""

    def __init__(self, settings: PaceSettings, engines: Sequence[str]) -> None:
        """`engines`: URLs of all that are rolled out on."""
        self._settings = settings
        self._engines = [url.rstrip("/") for url in engines]
        self._waiting: set[str] = set()
        self._batches: dict[str, BatchAssembled] = {}
        """By id, those that are neither trained on nor refused."""
        self._trained = 0
        self._newest_batch = 0
        """Its step."""
        self._version: int | None = None
        """What the trainer trains from."""
        self._at_engine: dict[str, int] = {}

    def opened(self, group_id: str) -> None:
        """We opened a group."""
        self._waiting.add(group_id)

    def take(self, fact: PaceFact) -> None:
        """A fact of the run was read."""
        match fact:
            case GroupDecided():
                if fact.decision is not GroupDecision.BATCH:
                    self._waiting.discard(fact.group_id)
            case BatchAssembled():
                self._batches[fact.batch_id] = fact
                self._newest_batch = max(self._newest_batch, fact.step or 0)
            case StepCompleted():
                self._trained, self._version = fact.step, fact.to_version
                self._leave(fact.batch_id)
            case BatchRefused():
                self._leave(fact.batch_id)
            case TrainerStarted() | WeightsPublished():
                if fact.policy_version is not None:
                    self._version = fact.policy_version
            case WeightsApplied():
                if fact.success:
                    self._at_engine[fact.engine.rstrip("/")] = fact.policy_version

    @property
    def over(self) -> bool:
        """Whether the last step is done."""
        return self._trained >= self._settings.last_step

    @property
    def done(self) -> bool:
        """Whether the last step is done or has its batch."""
        steps = [batch.step or 0 for batch in self._batches.values()]
        return max(self._trained, *steps, 0) >= self._settings.last_step

    @property
    def may_open(self) -> bool:
        """Whether a group may be opened now."""
        if self.done or len(self._waiting) >= self._settings.ahead:
            return False
        return not self._settings.sync or (
            not self._batches
            and self._version is not None
            and all(self._at_engine.get(url) == self._version for url in self._engines)
        )

    @property
    def target_step(self) -> int | None:
        """The step that a group is sampled for; null: whichever comes."""
        # (The assembler gives the number of a batch that was refused to no other.)
        return max(self._trained, self._newest_batch) + 1 if self._settings.sync else None

    def _leave(self, batch_id: str | None) -> None:
        batch = self._batches.pop(batch_id or "", None)
        if batch is not None:
            self._waiting.difference_update(batch.group_ids)


@dataclass(frozen=True, slots=True)
class Turn:
    """Leave to open one group."""

    target_step: int | None
    """The step that it is sampled for."""


class Pace:
    """Gives leave to open groups. Used on one event loop; `follow` runs beside."""

    def __init__(self, course: Course, tail: Tail[PaceFact]) -> None:
        self._course = course
        self._tail = tail
        self._read = asyncio.Event()
        self._failure: BaseException | None = None

    async def follow(self) -> None:
        """Read the run's facts, until cancelled."""
        try:
            async for fact in self._tail.facts():
                self._course.take(fact)
                self._read.set()
        except Exception as error:
            self._failure = error
            self._read.set()

    async def turn(self) -> Turn | None:
        """Waits for leave to open the next group; null when none is needed any more. Raises
        LogError."""
        while not self._course.may_open:
            if self._failure is not None:
                raise self._failure
            if self._course.over:
                return None
            self._read.clear()
            await self._read.wait()
        return Turn(self._course.target_step)

    def opened(self, group_id: str) -> None:
        """The group of the last turn."""
        self._course.opened(group_id)
