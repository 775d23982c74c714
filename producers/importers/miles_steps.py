"""Training steps of miles: from the trainer's phases by its clock, else from printed seconds.

A step reaches from the end of one training to the end of the next. What lies before the training
is waiting, but for weight updates and engine switches in it; the parts of the training are told by
name. The stream names no policy version, so weight updates are phases here, and no facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase as PhaseName
from producers.importers.miles_dashboard import Phase
from producers.importers.source import Json

_OUTSIDE = {
    "update_weights": PhaseName.PUBLISHING,
    "sleep": PhaseName.ENGINE_SWITCH,
    "wake_up": PhaseName.ENGINE_SWITCH,
}
_INSIDE = {
    "data_preprocess": PhaseName.LOADING,
    "log_probs": PhaseName.LOGPROBS,
    "ref_log_probs": PhaseName.LOGPROBS,
    "actor_train": PhaseName.FORWARD_BACKWARD,
}


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step by the trainer's clock; seconds since the epoch."""

    start: float
    end: float
    phases: list[PhaseSpan]
    row: Json
    """The line of its training."""


def timed_steps(phases: Sequence[Phase]) -> list[TimedStep]:
    """Every step whose training has ended, in order."""
    steps: list[TimedStep] = []
    trainings = [phase for phase in phases if phase.name == "train"]
    waits = [phase for phase in phases if phase.name == "train_wait"]
    end = None
    for training in trainings:
        if end is None:
            before = [wait.start for wait in waits if wait.end <= training.start + 1.0]
            end = min(before, default=training.start)
        start, end = end, training.end
        spans = list(_spans(phases, start, training))
        steps.append(TimedStep(start, end, spans, training.row))
    return steps


def _spans(phases: Iterable[Phase], start: float, training: Phase) -> Iterable[PhaseSpan]:
    """The phases of a step, which exclude one another."""
    outside = _between(phases, _OUTSIDE, start, training.start)
    at = start
    for name, begin, end in outside:
        if begin > at:
            yield PhaseSpan(PhaseName.WAITING, at - start, begin - at)
        yield PhaseSpan(name, begin - start, end - begin)
        at = end
    if training.start > at:
        yield PhaseSpan(PhaseName.WAITING, at - start, training.start - at)
    for name, begin, end in _between(phases, _INSIDE, training.start, training.end):
        yield PhaseSpan(name, begin - start, end - begin)


def _between(
    phases: Iterable[Phase], names: dict[str, PhaseName], start: float, end: float
) -> list[tuple[PhaseName, float, float]]:
    """Phases of these names inside [start, end], by start, each cut to what the one before it
    leaves."""
    found: list[tuple[PhaseName, float, float]] = []
    at = start
    for phase in sorted(phases, key=lambda phase: phase.start):
        if phase.name in names:
            begin, finish = max(phase.start, at), min(phase.end, end)
            if finish > begin:
                found.append((names[phase.name], begin, finish))
                at = finish
    return found
