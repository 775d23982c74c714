"""Rank 0's dealings with the log: which batch comes next, and which facts are owed.

Invariant: where to read on moves with the batch that is taken, trained on or refused. A batch that
was refused, in this life or an earlier one, is never trained on: its groups are dropped already.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.batches import Refusal
from ledger.log import Positions
from trainer.checkpoint import Progress, Restored, Saved
from trainer.history import History
from trainer.outbox import HeldFact, Outbox
from trainer.packing import Sample
from trainer.step_clock import StepTime
from trainer.take import BatchLoader, Loaded, step_refusal, with_lags

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
"""How often a wait looks at whether to stop."""


@dataclass(frozen=True, slots=True)
class Job:
    """A batch to train on, the same on every rank."""

    batch_id: str
    """The batch."""
    step: int | None
    """The step that it is meant for; null: the next one."""
    samples: list[Sample]
    """In the batch's order."""
    trajectories: int
    """Of which the samples are segments."""
    positions: Positions
    """Where to read on behind it."""


class Desk:
    """Of one life of a trainer; used by one thread."""

    def __init__(self, loader: BatchLoader, outbox: Outbox, history: History) -> None:
        self._loader = loader
        self._outbox = outbox
        self._refused = set(history.refused)
        self._orphaned = history.orphaned

    def open(
        self, progress: Progress, restored: Restored | None, lost: list[int], startup_s: float
    ) -> None:
        """Tells the log that training goes on from here, without the versions in `lost`."""
        path, step = None, None
        if restored is not None:
            path, step = str(restored.path), progress.step
            for version in lost:
                self._outbox.derive(
                    "weights_orphaned",
                    f"{version}/{step}",
                    restored.saved_at,
                    policy_version=version,
                    resumed_from=path,
                    resumed_step=step,
                )
            self._orphaned |= set(lost)
        self._outbox.hold(
            "trainer_started",
            "start",
            datetime.now(UTC),
            resumed_from=path,
            resumed_step=step,
            policy_version=progress.version,
            startup_s=startup_s,
        )
        self._outbox.send()

    def take(self, progress: Progress, wait_s: float, stopped: Callable[[], bool]) -> Job | None:
        """The next batch that may be trained on; null when none came in time, or when stopped.
        Raises as `BatchLoader.next`."""
        until = time.monotonic() + wait_s
        while not stopped() and time.monotonic() < until:
            loaded = self._loader.next(_LOOK_S)
            if loaded is None or loaded.batch.batch_id in self._refused:
                continue
            refused = step_refusal(loaded, progress.version, self._orphaned)
            if refused is None:
                return _job(loaded, progress.version)
            self.refuse(loaded.batch.batch_id, loaded.batch.step, refused)
        return None

    def refuse(self, batch_id: str, step: int | None, refused: Refusal) -> None:
        """Tells the log at once: the assembler makes room for another batch."""
        logger.warning("batch %s is refused (%s): %s", batch_id, refused.reason, refused.detail)
        self._refused.add(batch_id)
        self._outbox.hold(
            "batch_refused",
            batch_id,
            datetime.now(UTC),
            batch_id=batch_id,
            step=step,
            reason=refused.reason,
            detail=refused.detail,
        )
        self._outbox.send()

    def completed(self, before: Progress, after: Progress, spent: StepTime, **fields: Any) -> None:
        """A step was done; the log hears of it with `send`."""
        self._outbox.hold(
            "step_completed",
            after.step,
            spent.ended_at,
            step=after.step,
            batch_id=after.batch_id,
            from_version=before.version,
            to_version=after.version,
            started_at=spent.started_at,
            wall_s=spent.wall_s,
            phases=spent.phases,
            **fields,
        )

    def checkpointed(self, saved: Saved, progress: Progress) -> list[HeldFact]:
        """All that the checkpoint has to carry, the fact of itself included."""
        self._outbox.hold(
            "checkpoint_saved",
            progress.step,
            datetime.now(UTC),
            step=progress.step,
            policy_version=progress.version,
            path=str(saved.path),
            batch_id=progress.batch_id,
            batch_positions=progress.told_positions,
            size_bytes=saved.size_bytes,
            save_s=saved.save_s,
        )
        return self._outbox.held

    def send(self) -> None:
        """Hands in what is owed. What can't be made durable now is kept, and no reason to stop."""
        if not self._outbox.send():
            logger.warning("facts are not safe yet, and will be in the next checkpoint")


def _job(loaded: Loaded, trains_from: int) -> Job:
    batch = loaded.batch
    return Job(
        batch_id=batch.batch_id,
        step=batch.step,
        samples=with_lags(loaded, trains_from),
        trajectories=len({sample.trajectory_id for sample in batch.samples}),
        positions=loaded.positions,
    )
