"""What a simulated attempt is an attempt at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledger.facts.lists import Stage, StopReason
from ledger.wire.encoder import Draft
from producers.simulator.teller import Teller


class Stay(NamedTuple):
    """An attempt was in a stage."""

    stage: Stage
    start_s: float
    end_s: float
    engine: str | None = None
    """In the model: where."""
    tokens: int = 0
    """In the model: KV that it used there."""
    queue_s: float = 0.0
    """In the model: the seconds at its start in which it only waited."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What an attempt is an attempt at."""

    group_id: str
    slot: int
    trajectory_id: str
    task_id: str
    engine: str
    policy_version: int
    pass_rate: float
    """Probability that it passes, once it is scored."""
    opened_s: float
    """When its group was opened."""

    @property
    def ids(self) -> dict[str, Any]:
        """What every fact of it has."""
        return {
            "group_id": self.group_id,
            "slot": self.slot,
            "trajectory_id": self.trajectory_id,
        }


@dataclass(slots=True)
class Lived:
    """An attempt that was lived through."""

    end_s: float
    facts: list[tuple[float, Draft]] = field(default_factory=list[tuple[float, Draft]])
    """(seconds of the run, fact), in order."""
    stays: list[Stay] = field(default_factory=list[Stay])
    """Without gaps, from its start to its end."""
    completion_tokens: int = 0
    """Sampled by the policy."""
    scored: bool = False
    """Whether it got a reward."""


def cut(lived: Lived, at_s: float, seat: Seat, tell: Teller) -> Lived:
    """The same attempt, cancelled at `at_s`, as by the end of its rollout: what it would have said
    later is not said."""
    if lived.end_s <= at_s:
        return lived
    kept = [(when, draft) for when, draft in lived.facts if when <= at_s]
    told = [draft.name for _, draft in kept]
    stays = [
        stay._replace(end_s=min(stay.end_s, at_s)) for stay in lived.stays if stay.start_s < at_s
    ]

    def say(name: str, /, **fields: Any) -> None:
        key = f"{seat.trajectory_id}/cut/{name}"
        kept.append((at_s, tell.tell(key, name, at_s, seat.ids | fields)))

    if "sandbox_started" in told:
        when, up = kept[told.index("sandbox_started")]
        place = {name: up.fields[name] for name in ("try_no", "backend", "template", "sandbox_id")}
        say("sandbox_stopped", reason="cancelled", lifetime_s=at_s - when, **place)
    say(
        "trajectory_finished",
        stop_reason=StopReason.CANCELLED,
        stage=stays[-1].stage,
        turns_completed=told.count("turn_completed"),
        turns_failed=told.count("turn_failed"),
        tool_calls=told.count("tool_call_completed"),
        reward_due="reward_assigned" in told,
        error_type="CancelledError",
    )
    return Lived(at_s, kept, stays)
