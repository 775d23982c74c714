"""The training loop: a batch, a step, a checkpoint, the facts, the weights; and again.

    step k      waiting, loading, logprobs, forward_backward, optimizer
    step k + 1  checkpoint of k, facts of k, publication of k, then as above

Invariants:

1. Facts of a step reach the log only behind its checkpoint, where one is due, and its weights reach
   an engine only behind its facts. So whenever the trainer is killed, what others saw of a step it
   still knows when it resumes, or the log does.
2. All ranks do the same: what rank 0 decides alone (which batch, whether to stop) it tells first.
3. A step that is refused changes neither weights nor versions; its batch is named in a fact. It is
   refused for its first epoch; a later one that can't be done is left out, and the step's `epochs`
   says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ledger.batches import Refusal
from ledger.facts.lists import Phase
from trainer import checkpoint, checkpoint_files, groups
from trainer.checkpoint import Progress
from trainer.desk import Desk, Job
from trainer.load import Load, load_of
from trainer.loss_settings import OldPolicy
from trainer.model import Learner
from trainer.packing import MicroBatch
from trainer.step import (
    StepRefused,
    StepResult,
    Update,
    Work,
    gradients,
    result_of,
    score,
    update,
)
from trainer.step_clock import StepClock
from trainer.training_settings import TrainingSettings

logger = logging.getLogger(__name__)

_WAIT_S = 5.0
"""Rank 0 says so often that it still waits: ranks give up on one that is silent for long."""


class Publisher(Protocol):
    """Brings weights to the engines; every rank calls the same. See `trainer/publish.py`."""

    @property
    def newest(self) -> int | None:
        """The highest version that was ever exported; null: none was."""
        ...

    def publish(self, learner: Learner, version: int, step: int) -> object:
        """Engines get the weights that `step` made as this version, which is above all others."""
        ...

    def adopt(self, version: int) -> object:
        """Engines get a version that was exported in an earlier life. Raises ValueError on every
        rank if it isn't there any more."""
        ...


class Trainer:
    """Trains from where a run stands. Used by one thread, on every rank."""

    def __init__(
        self,
        learner: Learner,
        settings: TrainingSettings,
        folder: Path,
        run_id: str,
        *,
        progress: Progress,
        next_version: int,
        desk: Desk | None,
        publisher: Publisher | None = None,
        reference: torch.nn.Module | None = None,
    ) -> None:
        """`folder` is for checkpoints. `next_version` is the first one that nobody has used.
        `desk` is rank 0's, and null on the others; `reference` is for a loss with a KL term."""
        self.progress = progress
        self._learner = learner
        self._settings = settings
        self._folder = folder
        self._run_id = run_id
        self._next_version = next_version
        self._desk = desk
        self._publisher = publisher
        self._reference = reference
        self._saved_step: int | None = None
        self._clock = StepClock(torch.cuda.synchronize)

    def run(self, last_step: int, stopped: Callable[[], bool]) -> None:
        """Brings the weights as they are to the engines, then trains until `last_step` is done (the
        first one behind it, where its batch was refused) or `stopped` says so on rank 0: the step
        that runs is finished, and saved."""
        self._clock = StepClock(torch.cuda.synchronize)  # what came before is start-up, no step
        self._publish_again()
        while self.progress.step < last_step and (job := self._next_job(stopped)) is not None:
            if not self._step(job):
                continue
            stop = groups.agreed(stopped())
            if stop or self._checkpoint_is_due(last_step):
                self.save()
            elif self._desk is not None:
                self._desk.send()
            if stop:
                return  # a trainer that resumes publishes first
            self._publish()
        if self._saved_step not in (None, self.progress.step):
            self.save()

    def save(self) -> None:
        """A checkpoint of this moment, then the facts that it carries."""
        desk, progress = self._desk, self.progress
        with self._clock.phase(Phase.CHECKPOINT):
            checkpoint.save(
                self._folder,
                self._learner,
                progress,
                self._run_id,
                lambda saved: desk.checkpointed(saved, progress) if desk is not None else [],
            )
            self._saved_step = progress.step
            if desk is not None:
                checkpoint_files.prune(self._folder, self._settings.loop.keep_checkpoints)
        if desk is not None:
            desk.send()

    def resumed(self) -> None:
        """The newest checkpoint is of this moment."""
        self._saved_step = self.progress.step

    def _checkpoint_is_due(self, last_step: int) -> bool:
        step = self.progress.step
        return step % self._settings.loop.checkpoint_every == 0 or step >= last_step

    def _publish_again(self) -> None:
        """Engines may have been left with older weights, or with orphaned ones: they get those
        that training goes on from, before it does. If their export is gone, or was never whole,
        they get a new number: that of other weights would be used twice."""
        publisher, version = self._publisher, self.progress.version
        if publisher is None:
            return
        newest = groups.agreed(publisher.newest)
        if newest is not None:
            self._next_version = max(self._next_version, newest + 1)
        if newest is None or newest < version:
            self._publish()
            return
        try:
            with self._clock.phase(Phase.PUBLISHING):
                publisher.adopt(version)
        except ValueError:
            self.progress = replace(self.progress, version=self._next_version)
            self._next_version += 1
            self._publish()

    def _publish(self) -> None:
        if self._publisher is not None:
            with self._clock.phase(Phase.PUBLISHING):
                self._publisher.publish(self._learner, self.progress.version, self.progress.step)

    def _next_job(self, stopped: Callable[[], bool]) -> Job | None:
        """Rank 0's next batch, on every rank; null when it is to stop."""
        job: Job | None = None
        with self._clock.phase(Phase.WAITING):
            waits = True
            while waits:
                stop = False
                if self._desk is not None:
                    job = self._desk.take(self.progress, _WAIT_S, stopped)
                    stop = job is None and stopped()
                waits, stop = groups.agreed((job is None and not stop, stop))
                if stop:
                    return None
        with self._clock.phase(Phase.LOADING):
            return groups.agreed(job)

    def _step(self, job: Job) -> bool:
        """Trains on a batch; whether the step was done and not refused."""
        with self._clock.phase(Phase.LOADING):
            load = load_of(job.samples, self._learner, self._budget)
        work = self._work(load.work)
        try:
            result = result_of(self._epochs(work))
        except StepRefused as refused:
            if self._desk is not None:
                self._desk.refuse(job.batch_id, job.step, Refusal("nan", str(refused)))
            return False
        before = self.progress
        step = max(job.step or 0, before.step + 1)
        self.progress = Progress(step, self._next_version, job.batch_id, job.positions)
        self._next_version += 1
        self._tell(before, job, load, result)
        return True

    def _epochs(self, work: Sequence[Work]) -> list[Update]:
        """The updates of a step. Raises StepRefused if the first can't be done."""
        loss, clock = self._settings.loss, self._clock
        done: list[Update] = []
        for epoch in range(loss.ppo_epochs):
            try:
                with clock.phase(Phase.FORWARD_BACKWARD):
                    sums = gradients(self._learner, work, loss)
                with clock.phase(Phase.OPTIMIZER):
                    done.append(update(self._learner, sums))
            except StepRefused as refused:
                if not done:
                    raise
                logger.warning("a step ends before its epoch %d: %s", epoch + 1, refused)
                break
        return done

    @property
    def _budget(self) -> int:
        return self._settings.loop.microbatch_tokens or self._learner.config.context

    def _work(self, batches: Sequence[MicroBatch]) -> list[Work]:
        """Micro-batches with the logprobs that the loss asks for."""
        loss = self._settings.loss
        recompute = loss.old_policy is OldPolicy.RECOMPUTED
        if not recompute and self._reference is None:
            return [Work(batch) for batch in batches]
        nothing: list[Tensor | None] = [None] * len(batches)
        with self._clock.phase(Phase.LOGPROBS):
            olds: Sequence[Tensor | None] = nothing
            references: Sequence[Tensor | None] = nothing
            if recompute:
                olds = score(self._learner, batches, temperature=loss.temperature) or nothing
            if (model := self._reference) is not None:
                references = (
                    score(self._learner, batches, temperature=loss.temperature, model=model)
                    or nothing
                )
        return [Work(*each) for each in zip(batches, olds, references, strict=True)]

    def _tell(self, before: Progress, job: Job, load: Load, result: StepResult) -> None:
        spent = self._clock.end_step()
        if self._desk is None:
            return
        figures = {
            "padding_share": load.padding / load.computed_tokens,
            "microbatches": float(load.microbatches),
            "epochs": float(result.epochs),
        }
        self._desk.completed(
            before,
            self.progress,
            spent,
            trajectories=job.trajectories,
            trained_tokens=result.tokens,
            computed_tokens=load.computed_tokens * result.epochs,
            loss=result.loss,
            grad_norm=result.grad_norm,
            metrics=dict(result.figures) | figures,
        )
