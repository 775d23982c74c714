"""What a simulated trainer says of its steps.

    |-- publishing --|-- waiting: the step's attempts run --|-- logprobs, ..., optimizer --|-- ? --|

Invariant: phases exclude one another and lie inside the step; what they leave is the stretch that
the plan calls unattributed. A step names no batch: that is the assembler's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase, WeightMethod
from ledger.wire.encoder import Draft
from producers.simulator.lived import Lived
from producers.simulator.plan import Training
from producers.simulator.teller import Teller


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a synchronous trainer; seconds of the run."""

    number: int
    """From 1; it trains from version `number` - 1."""
    start_s: float
    """The end of the step before it."""
    publishing_s: float
    """Seconds in which version `number` - 1 went out."""
    engines: Sequence[str]
    """Who took it."""
    phases: tuple[PhaseSpan, ...]
    """So far."""
    end_s: float
    """Of what is known so far."""
    trajectories: int = 0
    """Scored attempts."""
    trained_tokens: int = 0
    """Sampled in these."""

    @classmethod
    def begin(
        cls,
        number: int,
        start_s: float,
        training: Training,
        engines: Sequence[str],
        chance: Random,
    ) -> Step:
        """A step up to where its attempts may start."""
        seconds = training.publishing_s.draw(chance)
        publishing = PhaseSpan(Phase.PUBLISHING, 0.0, seconds)
        return cls(number, start_s, seconds, engines, (publishing,), start_s + seconds)

    @property
    def rollouts_s(self) -> float:
        """From here on its attempts may start."""
        return self.start_s + self.publishing_s

    def trained(self, lived: Sequence[Lived], training: Training, chance: Random) -> Step:
        """The same step, to its end, once its attempts have ended."""
        over_s = max((each.end_s for each in lived), default=self.rollouts_s)
        phases = [*self.phases, PhaseSpan(Phase.WAITING, self.publishing_s, over_s - self.end_s)]
        at_s = over_s
        for phase, seconds in (
            (Phase.LOGPROBS, training.logprobs_s),
            (Phase.FORWARD_BACKWARD, training.forward_backward_s),
            (Phase.OPTIMIZER, training.optimizer_s),
        ):
            phases.append(PhaseSpan(phase, at_s - self.start_s, seconds.draw(chance)))
            at_s += phases[-1].seconds
        scored = [each for each in lived if each.scored]
        return replace(
            self,
            phases=tuple(phases),
            end_s=at_s + training.unattributed_s.draw(chance),
            trajectories=len(scored),
            trained_tokens=sum(each.completion_tokens for each in scored),
        )


def step_facts(step: Step, tell: Teller) -> Iterator[tuple[float, Draft]]:
    """(seconds of the run, fact): the version that went out at its start, then the step."""
    version, published_s = step.number - 1, step.rollouts_s
    published = {
        "policy_version": version,
        "method": WeightMethod.DISTRIBUTED,
        "step": version or None,
        "publish_s": step.publishing_s,
    }
    key = f"version/{version}"
    yield published_s, tell.tell(key, "weights_published", published_s, published)
    for engine in step.engines:
        applied = {
            "policy_version": version,
            "method": WeightMethod.DISTRIBUTED,
            "engine": engine,
            "success": True,
            "apply_s": step.publishing_s,
        }
        key = f"version/{version}/{engine}"
        yield published_s, tell.tell(key, "weights_applied", published_s, applied)
    started_us = tell.us(step.start_s)
    completed = {
        "step": step.number,
        "batch_id": None,
        "from_version": version,
        "to_version": step.number,
        "started_at": datetime.fromtimestamp(started_us // 1_000_000, UTC).replace(
            microsecond=started_us % 1_000_000
        ),
        "wall_s": step.end_s - step.start_s,
        "phases": list(step.phases),
        "trajectories": step.trajectories,
        "trained_tokens": step.trained_tokens,
    }
    key = f"step/{step.number}"
    yield step.end_s, tell.tell(key, "step_completed", step.end_s, completed)
