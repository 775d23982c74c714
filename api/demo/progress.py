"""What the log says of a demo while it runs: a fold over its facts, and a thread that feeds it.

The book belongs to the projector while that runs, so this reads the log itself; only the kinds of
fact that it needs are decoded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from ledger.facts import (
    BatchAssembled,
    Fact,
    GroupDecided,
    RewardAssigned,
    StepCompleted,
    TrainerStarted,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
)
from ledger.facts.lists import GroupDecision
from ledger.log import EventLog, LogError, Reader
from producers.tail import facts_in

logger = logging.getLogger(__name__)

KINDS: tuple[type[Fact], ...] = (
    BatchAssembled,
    GroupDecided,
    RewardAssigned,
    StepCompleted,
    TrainerStarted,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
)
POLL_S = 0.3
CLOSE_S = 1.0
"""Its thread dies with the process in any case."""


@dataclass(slots=True)
class RunFigures:
    """One run, so far."""

    attempts: int = 0
    """Attempts that ended."""
    passed: int = 0
    """Of these, with a reward of 1."""
    scored: int = 0
    """Of these, with a reward."""
    began: datetime | None = None
    """When the first attempt started."""
    newest: datetime | None = None
    """When the last attempt ended."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Judged attempts that something ended but the policy itself, by blame."""

    @property
    def per_hour(self) -> float | None:
        """Attempts that ended, per hour since the first one started; null: none has."""
        if self.began is None or self.newest is None or self.newest <= self.began:
            return None
        return 3600.0 * self.attempts / (self.newest - self.began).total_seconds()


class Figures:
    """The fold. Facts may come again: one that was seen counts once."""

    def __init__(self, run_id: str, last_step: int, since: datetime) -> None:
        """`run_id`: of the training run. `since`: a trainer that was ready before this is gone."""
        self.run_id = run_id
        self._since = since
        self.last_step = last_step
        self.runs: dict[str, RunFigures] = {}
        self.step: StepCompleted | None = None
        """The newest one."""
        self.started = False
        """Whether a trainer is ready, or was."""
        self.reward: float | None = None
        """Mean reward of the groups that were decided since the step before; null: none was."""
        self._assembled = 0
        self._means: list[float] = []
        self._queued = 0
        self._seen: set[str] = set()

    def take(self, fact: Fact) -> None:
        """A fact was read."""
        if fact.event_id in self._seen:
            return
        self._seen.add(fact.event_id)
        run = self.runs.setdefault(fact.run_id, RunFigures())
        match fact:
            case TrajectoryStarted():
                run.began = run.began or fact.occurred_at
            case TrajectoryFinished():
                run.attempts += 1
                run.newest = fact.occurred_at
            case RewardAssigned() if fact.value is not None:
                run.scored += 1
                run.passed += fact.value >= 1.0
            case TrajectoryJudged() if fact.blame is not None and not fact.trainable:
                run.failures[fact.blame] += 1
            case _ if fact.run_id == self.run_id:
                self._trained(fact)
            case _:
                pass

    def _trained(self, fact: Fact) -> None:
        match fact:
            case GroupDecided():
                self._queued += fact.decision is GroupDecision.BATCH
                if fact.mean is not None:
                    self._means.append(fact.mean)
            case BatchAssembled():
                self._assembled = max(self._assembled, fact.step or 0)
                self._queued -= len(fact.group_ids)
            case StepCompleted():
                self.step = fact
                if self._means:
                    self.reward = sum(self._means) / len(self._means)
                self._means.clear()
            case TrainerStarted():
                self.started = fact.occurred_at is not None and fact.occurred_at >= self._since
            case _:
                pass

    @property
    def waits_for(self) -> str:
        """What the trainer waits for now."""
        done = 0 if self.step is None else self.step.step
        if done >= self.last_step:
            return "nothing: it is done"
        if not self.started:
            return "its own start"
        if self._assembled > done:
            return "nothing: it trains"
        return f"groups for step {done + 1}, {max(0, self._queued)} ready"

    @property
    def lag(self) -> float | None:
        """Mean lag of the newest step's tokens, in policy versions; null: unknown."""
        metrics: Mapping[str, float] = {} if self.step is None else self.step.metrics
        return metrics.get("lag_mean")


class LogWatch:
    """Feeds figures from a log, in a thread of its own."""

    def __init__(self, log: EventLog, figures: Figures) -> None:
        """`log` is opened for it, and closed by it."""
        self._log = log
        self._figures = figures
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with self._log as log:
            while not self._stop.is_set():
                try:
                    with log.reader(log.start_positions("events")) as reader:
                        self._read(reader)
                except LogError as error:  # a broker that was killed comes back
                    logger.info("waiting for the log: %s", error)
                    time.sleep(1.0)

    def _read(self, reader: Reader) -> None:
        while not self._stop.is_set():
            for batch in reader.poll(POLL_S):
                for fact in facts_in(batch, KINDS):
                    self._figures.take(fact)
