"""Runs whose groups somebody decided, told fact by fact: what an account says of them can be worked
out by hand.

    run = TellRun(an_id("run"))
    run.group(0, "zero_variance", [Slot(1.0), Slot(1.0)])     opened, tried and dropped
    run.group(1, None, [Slot(1.0), Slot(None, ExclusionReason.VERIFIER)])
    run.batch(1, [1]); run.step(1)
    run.facts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ledger.facts import Fact
from ledger.facts.lists import (
    Blame,
    DropReason,
    ExclusionReason,
    GroupDecision,
    Outcome,
    StopReason,
)
from tests.assembled import Teller, a_member
from tests.builders import AT, an_id


def at(seconds: float) -> datetime:
    return AT.replace(microsecond=0) + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Slot:
    """One attempt of a group."""

    reward: float | None
    """Null: the verifier gave none."""
    exclusion: ExclusionReason | None = None
    """Why it doesn't vote; null: it votes."""
    start_s: float = 0.0
    end_s: float = 10.0
    masked: bool = False
    outcome: Outcome = Outcome.COMPLETED
    turns: Sequence[dict[str, Any]] = ()
    """Fields of its turns; `end_s` is when one was answered."""
    late: bool = False
    """Whether it began when the group had been decided."""


@dataclass
class TellRun:
    """Tells of a run; `facts` has everything said so far, in the order of the log."""

    run_id: str
    seed: int = 0
    facts: list[Fact] = field(default_factory=list[Fact])

    def __post_init__(self) -> None:
        self._tell = Teller(an_id("teller"), seed=7_000 + self.seed)

    def say(self, kind: str, /, **fields: Any) -> Any:
        fact = self._tell(kind, **({"run_id": self.run_id} | fields))
        self.facts.append(fact)
        return fact

    def group_id(self, number: int) -> str:
        return an_id(f"{self.run_id} group", number)

    def batch_id(self, step: int) -> str:
        return an_id(f"{self.run_id} batch", step)

    def trajectory_id(self, group: int, slot: int) -> str:
        return an_id(f"{self.run_id} attempt {slot}", group)

    def group(
        self,
        number: int,
        drop_reason: str | None,
        slots: Sequence[Slot],
        decision: GroupDecision = GroupDecision.BATCH,
        **opened: Any,
    ) -> None:
        """A group from its opening to its decision."""
        group = {"group_id": self.group_id(number)}
        usual = {"task_id": f"task {number}", "expected_size": len(slots), "policy_version": 3}
        self.say("group_opened", **group, **(usual | opened))
        for slot, each in enumerate(slots):
            if not each.late:
                self._attempt(number, slot, each)
        self.say(
            "group_decided",
            **group,
            rule_set=1,
            algorithm="grpo",
            decision=decision if drop_reason is None else GroupDecision.DROPPED,
            drop_reason=None if drop_reason is None else DropReason(drop_reason),
            members=[
                a_member(
                    slot,
                    self.trajectory_id(number, slot),
                    each.reward,
                    each.exclusion,
                    masked=each.masked,
                )
                for slot, each in enumerate(slots)
                if not each.late
            ],
        )
        for slot, each in enumerate(slots):
            if each.late:
                self._attempt(number, slot, each)

    def batch(self, step: int, groups: Sequence[int], **fields: Any) -> None:
        ids = [self.group_id(group) for group in groups]
        self.say(
            "batch_assembled", batch_id=self.batch_id(step), step=step, group_ids=ids, **fields
        )

    def step(self, step: int, batch: int | None = None, **fields: Any) -> None:
        usual = {"started_at": at(50), "occurred_at": at(60), "wall_s": 10.0}
        batch_id = self.batch_id(step if batch is None else batch)
        self.say("step_completed", step=step, batch_id=batch_id, **(usual | fields))

    def _attempt(self, group: int, slot: int, each: Slot) -> None:
        ids: dict[str, Any] = {
            "group_id": self.group_id(group),
            "slot": slot,
            "trajectory_id": self.trajectory_id(group, slot),
        }
        end = {"occurred_at": at(each.end_s)}
        task_id = f"task {group}"
        self.say("trajectory_started", **ids, task_id=task_id, occurred_at=at(each.start_s))
        for turn_no, turn in enumerate(each.turns):
            fields = {key: value for key, value in turn.items() if key != "end_s"}
            answered = at(turn.get("end_s", each.end_s))
            self.say("turn_completed", **ids, occurred_at=answered, turn_no=turn_no, **fields)
        blame = Blame(each.exclusion) if each.exclusion in set(Blame) else None
        stop = StopReason.ERROR if blame else StopReason.SUBMITTED
        self.say("trajectory_finished", **ids, **end, stop_reason=stop, reward_due=True)
        if each.reward is not None:
            self.say("reward_assigned", **ids, **end, value=each.reward, verifier="tests")
        self.say(
            "trajectory_judged",
            **ids,
            **end,
            rule_set=1,
            outcome=Outcome.ERRORED if blame else each.outcome,
            blame=blame,
            cause_class="lost" if blame else None,
            trainable=each.exclusion is None,
        )
