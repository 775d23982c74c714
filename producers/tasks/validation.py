"""Tasks are tried before they are used: the gold patch has to pass and the empty one to fail.

Invariant: a task is valid only if every try of both gave a verdict and all agreed. A sandbox that
failed says nothing about the task: what it kept from being known is null in `task_validated`,
beside the error's raw type.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ledger.recorder import BoundRecorder
from producers.raw_type import raw_type
from producers.sandbox import SandboxError
from producers.tasks.task import Task, Verdict

if TYPE_CHECKING:
    from producers.sandbox_pool import Sandboxes

logger = logging.getLogger(__name__)

PASSES = 1.0
"""The reward of work that is right."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What the tries said, in the terms of the fact `task_validated`."""

    valid: bool
    """Fit for use."""
    gold_passes: bool | None
    """Null: some try gave no verdict."""
    empty_fails: bool | None
    """Null: some try gave no verdict."""
    repeats: int
    """Tries of each."""
    flaky: bool | None
    """Whether tries disagreed; null: too few verdicts to tell."""
    gold_s: float | None = None
    """Mean seconds that the tests took on the gold patch."""
    empty_s: float | None = None
    """Mean seconds that the tests took on the empty patch."""
    error_type: str | None = None
    """Raw type of the first error that kept it from a verdict."""
    error: str | None = None
    """That error's text."""


async def validate(
    task: Task, sandboxes: Sandboxes, recorder: BoundRecorder, repeats: int = 1
) -> Validation:
    """Try gold and empty patch `repeats` times each, in sandboxes of their own, one after another,
    and record `task_validated`. Never raises for what a task or a sandbox does."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats} (validate)")
    gold = [await _try(task, sandboxes, gold=True) for _ in range(repeats)]
    empty = [await _try(task, sandboxes, gold=False) for _ in range(repeats)]
    validation = conclude(gold, empty)
    recorder.task_validated(
        task_id=task.task_id,
        valid=validation.valid,
        gold_passes=validation.gold_passes,
        empty_fails=validation.empty_fails,
        repeats=validation.repeats,
        flaky=validation.flaky,
        gold_s=validation.gold_s,
        empty_s=validation.empty_s,
        template=task.template,
        task_checksum=task.checksum,
        error_type=validation.error_type,
        error=validation.error,
    )
    return validation


def conclude(gold: Sequence[Verdict], empty: Sequence[Verdict]) -> Validation:
    """What the verdicts of the tries, as many of each, say about the task. Pure."""
    gold_passes = _all(gold, passing=True)
    empty_fails = _all(empty, passing=False)
    disagree = _disagree(gold) or _disagree(empty)
    flaky = disagree if disagree or min(map(_scored, (gold, empty))) > 1 else None
    unclear = next((one for one in (*gold, *empty) if one.value is None), None)
    return Validation(
        valid=bool(gold_passes and empty_fails and not flaky),
        gold_passes=gold_passes,
        empty_fails=empty_fails,
        repeats=len(gold),
        flaky=flaky,
        gold_s=_mean([one.verify_s for one in gold]),
        empty_s=_mean([one.verify_s for one in empty]),
        error_type=unclear.error_type if unclear else None,
        error=unclear.error if unclear else None,
    )


async def _try(task: Task, sandboxes: Sandboxes, *, gold: bool) -> Verdict:
    began = time.monotonic()
    try:
        async with sandboxes.open(UNRECORDED, task.template) as sandbox:
            await task.setup(sandbox)
            if gold:
                await task.apply_gold(sandbox)
            fresh = partial(sandboxes.instead_of, sandbox, UNRECORDED)
            return await task.verify(sandbox, fresh)
    except Exception as error:
        if not isinstance(error, SandboxError):
            seconds = time.monotonic() - began
            logger.warning("%s: no verdict after %.1f s: %s", task.task_id, seconds, error)
        return Verdict(value=None, error_type=raw_type(error), error=str(error))


class _Unrecorded(BoundRecorder):
    """Records nothing: the sandboxes of a validation belong to no attempt, and no fact could name
    theirs."""

    def __init__(self) -> None:
        """Needs no recorder."""

    def bind(self, /, **ids: Any) -> BoundRecorder:
        """Itself."""
        return self

    @property
    def ids(self) -> dict[str, Any]:
        """None."""
        return {}

    def _put(self, name: str, fields: dict[str, Any]) -> None:
        pass


UNRECORDED = _Unrecorded()


def _passes(verdict: Verdict) -> bool | None:
    return None if verdict.value is None else verdict.value >= PASSES


def _all(verdicts: Sequence[Verdict], *, passing: bool) -> bool | None:
    """Whether all passed, or all failed; None if one gave no verdict and the others all did so."""
    found = [_passes(verdict) for verdict in verdicts]
    if (not passing) in found:
        return False
    return None if None in found else True


def _disagree(verdicts: Sequence[Verdict]) -> bool:
    return len({_passes(verdict) for verdict in verdicts} - {None}) > 1


def _scored(verdicts: Sequence[Verdict]) -> int:
    return sum(verdict.value is not None for verdict in verdicts)


def _mean(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) / len(known) if known else None
