"""One group, as far as its facts have been read.

Invariants:

1. The order in which facts of different producers are read doesn't matter, and a fact that comes
   twice counts once (`ledger.attempt` keeps both for each attempt).
2. What can't be is noted by name in `problem`, and the group is then never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consumers.advantages import usable_reward
from ledger.attempt import NOTHING, Attempt, BadFact, happened
from ledger.facts import (
    GroupOpened,
    RefillRequested,
    RewardAssigned,
    TrajectoryFact,
    TrajectoryJudged,
    TurnCompleted,
)

Spans = tuple[tuple[int, int, int], ...]
"""(policy version, first completion token, behind the last) of one turn."""


@dataclass(slots=True)
class GroupState:
    """What the facts of one group say."""

    group_id: str
    partition: int
    """Of topic `events`."""
    first_offset: int
    """Of its first fact."""
    first_log_time_us: int
    """Of that fact, by the log's clock: its deadline counts from here."""
    opened: GroupOpened | None = None
    """Null: not read yet; facts of its attempts may come first."""
    problem: str | None = None
    """Why it can never be trained on, by its own facts; null: nothing is wrong."""
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    """By trajectory id."""
    writers: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Trajectory id -> incarnations that wrote facts of it."""
    spans: dict[str, dict[int, Spans]] = field(default_factory=dict[str, dict[int, Spans]])
    """Trajectory id -> turn no. -> who sampled what."""
    judged: dict[str, TrajectoryJudged] = field(default_factory=dict[str, TrajectoryJudged])
    """Trajectory id -> its newest recorded judgement by the rule set in use."""
    refills: dict[str, RefillRequested] = field(default_factory=dict[str, RefillRequested])
    """Trajectory id -> the refill requested for it."""
    whole: set[str] = field(default_factory=set[str])
    """Attempts found to be complete with their tokens; that stays so."""

    def open(self, fact: GroupOpened) -> None:
        """The group was opened. Opened twice, the earlier one counts, if both say the same."""
        first = self.opened
        if first is not None and first.expected_size != fact.expected_size:
            sizes = sorted((first.expected_size, fact.expected_size))
            self.problem = (
                f"group {self.group_id} must be opened with one size, got {sizes[0]} and {sizes[1]}"
            )
        if first is None or happened(fact) < happened(first):
            self.opened = fact

    def take(self, fact: TrajectoryFact, log_time_us: int, rule_set: int) -> bool:
        """A fact about one of its attempts; whether it may now be decided. Raises BadFact."""
        trajectory_id = fact.trajectory_id
        before = self.attempts.get(trajectory_id, NOTHING)
        if before is not NOTHING and fact.slot != before.slot:
            raise BadFact(
                f"slot of trajectory {trajectory_id} must be {before.slot}, got {fact.slot}"
                f" (event {fact.event_id})"
            )
        if isinstance(fact, RefillRequested):
            self.refills[trajectory_id] = fact
            return False
        if isinstance(fact, TrajectoryJudged):
            if fact.rule_set == rule_set:
                self.judged[trajectory_id] = fact
            return False  # what it says is judged again from the same facts and evidence
        after = before.with_fact(fact, log_time_us)
        self.attempts[trajectory_id] = after
        writers = self.writers.get(trajectory_id, ())
        if fact.incarnation not in writers:
            self.writers[trajectory_id] = (*writers, fact.incarnation)
        if isinstance(fact, TurnCompleted) and fact.version_spans:
            spans = tuple(
                (each.policy_version, each.start, each.end) for each in fact.version_spans
            )
            self.spans.setdefault(trajectory_id, {}).setdefault(fact.turn_no, spans)
        return after.finished is not None

    def in_slots(self) -> list[list[Attempt]]:
        """(expected_size,) attempts of each slot in the order of their start."""
        size = self.opened.expected_size if self.opened is not None else 0
        slots: list[list[Attempt]] = [[] for _ in range(size)]
        for attempt in self.attempts.values():
            if 0 <= attempt.slot < size:
                slots[attempt.slot].append(attempt)
        for attempts in slots:
            if len(attempts) > 1:
                attempts.sort(key=_by_start)
        return slots

    def strays(self) -> list[str]:
        """Attempts in slots that the group doesn't have: they are no members."""
        size = self.opened.expected_size if self.opened is not None else 0
        return [
            f"slot of trajectory {each.trajectory_id} must be 0 to {size - 1}, got {each.slot}"
            f" (group {self.group_id})"
            for each in self.attempts.values()
            if not 0 <= each.slot < size
        ]


def problem_of_reward(fact: RewardAssigned) -> str | None:
    """Why a reward counts as none though it has a value; null: it has none, or is fine."""
    if fact.value is None or usable_reward(fact.value):
        return None
    return f"a reward must be a finite number, got {fact.value}: it counts as none"


def _by_start(attempt: Attempt) -> tuple[bool, object, str]:
    # One whose start wasn't read comes last: it can't be told what it replaces.
    started = attempt.started
    if started is None:
        return True, (), attempt.trajectory_id
    return False, happened(started), attempt.trajectory_id
