"""One attempt, as far as its facts have been read: a fold that changes nothing in place.

    attempt = NOTHING
    for fact in facts:
        attempt = attempt.with_fact(fact)
    if attempt.complete: ...

Invariants:

1. The order of the facts doesn't matter, and a fact that comes twice counts once.
2. No long text is kept of what went well; errors are kept whole, since judgement reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from ledger.facts import (
    Fact,
    RewardAssigned,
    SandboxFailed,
    SandboxPrepared,
    SandboxStarted,
    SandboxStopped,
    ToolCallCompleted,
    TrajectoryFact,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
    TurnCompleted,
    TurnFailed,
)
from ledger.facts.lists import Outcome, Stage
from ledger.judging.evidence import Abandonment, abandonment_in

MAX_NUMBER = 65_535
"""Turns and tool calls of one attempt are numbered up to this."""

Changes = dict[str, Any]
"""Fields of an attempt that a fact changes; empty: none."""

_IDS = ("run_id", "group_id", "slot", "trajectory_id")
BEFORE_THE_POLICY = (Stage.QUEUE, Stage.SANDBOX_START, Stage.SETUP)
"""Stages in which the policy hasn't acted yet."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class BadFact(ValueError):
    """A fact that can't be of this attempt; the message says value, rule and place."""


class Turn(NamedTuple):
    """What is kept of a turn_completed."""

    event_id: str
    turn_no: int
    """From 0."""
    segment: int
    """From 0."""
    completion_tokens: int | None
    """Tokens that the policy sampled; null: unknown to an importer."""
    tokens_sha256: str | None
    """Digest of its payload in topic `tokens`; null: none was sent."""

    @classmethod
    def of(cls, fact: TurnCompleted) -> Turn:
        return cls(
            fact.event_id,
            fact.turn_no,
            fact.segment,
            fact.completion_tokens,
            fact.tokens_sha256,
        )


class Attempt(NamedTuple):
    """What the facts of one trajectory say. Start from `NOTHING`.

    A named tuple, since each fact makes another one: that costs a dataclass five times as much."""

    run_id: str = ""
    """Empty until the first fact."""
    group_id: str = ""
    """Empty until the first fact."""
    slot: int = -1
    """-1 until the first fact."""
    trajectory_id: str = ""
    """Empty until the first fact."""
    started: TrajectoryStarted | None = None
    """Null: not read yet."""
    finished: TrajectoryFinished | None = None
    """Null: it runs, or the fact hasn't been read yet."""
    abandoned: Abandonment | None = None
    """Null: its lease holds. What `finished` says comes before this."""
    turns: tuple[Turn, ...] = ()
    """Completed turns in the order read."""
    turns_seen: int = 0
    """Bit n: turn n has completed."""
    first_token_turn: int | None = None
    """The first turn in which the policy sampled a token; null: none has been read."""
    turns_failed: tuple[TurnFailed, ...] = ()
    """In the order read, as all that follow."""
    tool_calls_seen: int = 0
    """Bit n: tool call n has completed."""
    tool_errors: tuple[ToolCallCompleted, ...] = ()
    """Tool calls that failed themselves (error_type), without arguments and output."""
    rewards: tuple[RewardAssigned, ...] = ()
    """All of them, also later re-scores."""
    sandbox_started: tuple[SandboxStarted, ...] = ()
    sandbox_prepared: tuple[SandboxPrepared, ...] = ()
    sandbox_failed: tuple[SandboxFailed, ...] = ()
    sandbox_stopped: tuple[SandboxStopped, ...] = ()
    last_occurred_at: datetime | None = None
    """Latest occurred_at of its facts; null: none has a time."""
    last_log_time_us: int = 0
    """Latest log time of its facts, microseconds since the epoch; what its lease counts from."""

    def with_fact(self, fact: Fact, log_time_us: int = 0) -> Attempt:
        """This and one more fact; the same object when `fact` adds nothing.

        Raises BadFact for a fact of another trajectory, or numbered out of range."""
        take = _TAKE.get(type(fact))
        if take is None:
            return self
        ids = self._ids_from(cast(TrajectoryFact, fact))
        changes = take(self, fact)
        if not changes:
            return self
        changes |= ids
        if (at := fact.occurred_at) is not None and at > (self.last_occurred_at or _LONG_AGO):
            changes["last_occurred_at"] = at
        if log_time_us > self.last_log_time_us:
            changes["last_log_time_us"] = log_time_us
        return self._replace(**changes)

    def abandon(self, why: Abandonment) -> Attempt:
        """The same attempt, ended by the lease reaper."""
        return self._replace(abandoned=why)

    @property
    def ended(self) -> bool:
        """Whether it can be judged."""
        return self.finished is not None or self.abandoned is not None

    @property
    def first_token_seen(self) -> bool:
        """Whether the policy has sampled a token. An importer that knows no turns is believed
        that it did, once the attempt had come to where the policy acts."""
        if self.first_token_turn is not None:
            return True
        if (end := self.finished) is None or end.turns_completed is not None:
            return False
        return end.stage not in BEFORE_THE_POLICY

    @property
    def missing(self) -> tuple[str, ...]:
        """What `trajectory_finished` declares and hasn't been read, by name; empty when complete.
        Token payloads are not looked at."""
        end = self.finished
        if end is None:
            return ("trajectory_finished",)
        due = (
            ("turn_completed", end.turns_completed, self.turns_seen.bit_count()),
            ("turn_failed", end.turns_failed, len(self.turns_failed)),
            ("tool_call_completed", end.tool_calls, self.tool_calls_seen.bit_count()),
            ("reward_assigned", int(end.reward_due), len(self.rewards)),
        )
        return tuple(name for name, declared, read in due if read < (declared or 0))

    @property
    def complete(self) -> bool:
        """Whether every fact that `trajectory_finished` declares has been read."""
        return not self.missing

    @property
    def reward(self) -> RewardAssigned | None:
        """The reward that counts: the first with a value, else the first. Later re-scores never
        replace it, or the best of several would be picked. Null: none has been read."""
        if len(self.rewards) < 2:
            return self.rewards[0] if self.rewards else None
        return min(self.rewards, key=lambda each: (each.value is None, *happened(each)))

    def _ids_from(self, fact: TrajectoryFact) -> Changes:
        if self.trajectory_id == fact.trajectory_id:
            return {}
        if self.trajectory_id:
            wrong = f"trajectory_id must be {self.trajectory_id}, got {fact.trajectory_id}"
            raise BadFact(f"{wrong} (event {fact.event_id})")
        return {name: getattr(fact, name) for name in _IDS}


NOTHING = Attempt()
"""An attempt of which nothing has been read."""


def happened(fact: Fact) -> tuple[datetime, str]:
    """A key that puts facts in the order in which they happened, whatever order they came in."""
    return fact.occurred_at or _LONG_AGO, fact.event_id


Take = Callable[[Attempt, Any], Changes]


def _once(name: str) -> Take:
    def take(attempt: Attempt, fact: Fact) -> Changes:
        # A second start or end of one trajectory is a producer's slip: which one counts must not
        # depend on which came first.
        held: Fact | None = getattr(attempt, name)
        if held is not None and (held.event_id == fact.event_id or happened(held) < happened(fact)):
            return {}
        return {name: fact}

    return take


def _into(name: str) -> Take:
    def take(attempt: Attempt, fact: Fact) -> Changes:
        held: tuple[Fact, ...] = getattr(attempt, name)
        if any(each.event_id == fact.event_id for each in held):
            return {}
        return {name: (*held, fact)}

    return take


def _turn(attempt: Attempt, fact: TurnCompleted) -> Changes:
    bit = _bit(fact.turn_no, "turn_completed.turn_no", fact)
    if attempt.turns_seen & bit:
        return {}
    return {
        "turns": (*attempt.turns, Turn.of(fact)),
        "turns_seen": attempt.turns_seen | bit,
        # Unknown to an importer is not none: a completed turn has an answer.
        "first_token_turn": _earliest(attempt, fact.turn_no, fact.completion_tokens != 0),
    }


def _turn_failed(attempt: Attempt, fact: TurnFailed) -> Changes:
    _bit(fact.turn_no, "turn_failed.turn_no", fact)
    if changes := _into("turns_failed")(attempt, fact):
        sampled = bool(fact.tokens_so_far)
        changes["first_token_turn"] = _earliest(attempt, fact.turn_no, sampled)
    return changes


def _tool_call(attempt: Attempt, fact: ToolCallCompleted) -> Changes:
    bit = _bit(fact.tool_call_no, "tool_call_completed.tool_call_no", fact)
    if attempt.tool_calls_seen & bit:
        return {}
    changes: Changes = {"tool_calls_seen": attempt.tool_calls_seen | bit}
    if fact.error_type is not None:
        error = replace(fact, arguments=None, output=None)
        changes["tool_errors"] = (*attempt.tool_errors, error)
    return changes


def _judged(attempt: Attempt, fact: TrajectoryJudged) -> Changes:
    # The only fact that tells of an abandoned attempt is the judgement of whoever ended it.
    if fact.outcome != Outcome.ABANDONED or attempt.abandoned is not None:
        return {}
    return {"abandoned": abandonment_in(fact.evidence)}


def _bit(number: int, what: str, fact: Fact) -> int:
    if not 0 <= number <= MAX_NUMBER:
        raise BadFact(f"{what} must be 0 to {MAX_NUMBER}, got {number} (event {fact.event_id})")
    return 1 << number


def _earliest(attempt: Attempt, turn_no: int, sampled: bool) -> int | None:
    known = attempt.first_token_turn
    return turn_no if sampled and (known is None or turn_no < known) else known


_TAKE: dict[type, Take] = {
    TrajectoryStarted: _once("started"),
    TrajectoryFinished: _once("finished"),
    TrajectoryJudged: _judged,
    TurnCompleted: _turn,
    TurnFailed: _turn_failed,
    ToolCallCompleted: _tool_call,
    RewardAssigned: _into("rewards"),
    SandboxStarted: _into("sandbox_started"),
    SandboxPrepared: _into("sandbox_prepared"),
    SandboxFailed: _into("sandbox_failed"),
    SandboxStopped: _into("sandbox_stopped"),
}
