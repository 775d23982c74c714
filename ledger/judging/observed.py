"""The errors inside an attempt, each with its kind and its signs; and how it ended.

Pure, and without blame: this is what can be seen, whatever a rule set makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ledger.attempt import BEFORE_THE_POLICY, Attempt, happened
from ledger.facts import (
    Fact,
    RewardAssigned,
    SandboxFailed,
    ToolCallCompleted,
    TrajectoryFinished,
    TurnFailed,
)
from ledger.facts.lists import EngineStage, Stage, StopReason
from ledger.judging.error_kinds import UNKNOWN, error_kinds
from ledger.judging.evidence import Evidence, PeerError
from ledger.judging.rule_set import Limits
from ledger.judging.signs import Sign, Signs

_RUNS_COMMANDS = (Stage.TOOL, Stage.VERIFY)
_LIFETIME_SLACK = timedelta(seconds=1)
"""A sandbox that was lost this long before its declared end had reached it: clocks differ."""
_TRIAL_CRASHES = frozenset(
    {
        "verifier_crashed",
        "verifier_timeout",
        "timeout",
        "harness_crashed",
        "command_failed",
        "bad_command",
        "disk_full",
        "out_of_memory",
        UNKNOWN,
    }
)
"""A trial that met another kind, such as a lost sandbox, says nothing about the tests."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One error, or an ending."""

    fact: Fact | None
    """The fact that tells of it; null for the silence of an abandoned attempt."""
    stage: Stage | None
    """Where it happened; null: unknown."""
    kind: str
    """Of errors.toml, or an ending."""
    error_type: str | None
    """Raw name; null for an ending."""
    signs: Signs


@dataclass(frozen=True, slots=True)
class Observations:
    """All that judgement looks at."""

    errors: tuple[Observed, ...]
    """Every error, by time, also those that the attempt outlived."""
    ending: Observed | None
    """What ended it; null when the policy submitted."""
    verdict: Observed | None
    """What kept the reward from having a value; null when it has one, or nothing says why not."""


def observe(attempt: Attempt, evidence: Evidence, limits: Limits) -> Observations:
    """What can be seen of an ended attempt."""
    see = _Observer(attempt, evidence, limits)
    facts: list[ErrorFact] = [*attempt.sandbox_failed, *attempt.turns_failed, *attempt.tool_errors]
    facts += [each for each in attempt.rewards if each.error_type is not None]
    errors = [see.error(fact) for fact in sorted(facts, key=happened)]
    end = attempt.finished
    ending = None
    if end is not None and end.stop_reason == StopReason.ERROR:
        ending = _matching(errors, end)
        if ending is None:
            ending = see.end(end, UNKNOWN if end.error_type is None else see.kind_of(end))
            if end.error_type is not None and ending.stage is not None:
                errors.append(ending)
    elif end is None or end.stop_reason != StopReason.SUBMITTED:
        ending = see.end(end, "abandoned" if end is None else end.stop_reason.value)
    elif not attempt.first_token_seen:
        ending = see.end(end, "no_activity")
    return Observations(tuple(errors), ending, _verdict(attempt, errors, see))


ErrorFact = SandboxFailed | TurnFailed | ToolCallCompleted | RewardAssigned


def _matching(errors: list[Observed], end: TrajectoryFinished) -> Observed | None:
    """The error that ended the attempt, where a fact of its own tells more of it: of the same raw
    name, at the same stage if there is one, a sandbox's own account first, the latest. One of
    another stage was outlived, unless it is a sandbox's: where that was lost and where the loss was
    met may differ."""
    same = [
        each
        for each in errors
        if each.error_type == end.error_type
        and (end.stage in (None, each.stage) or isinstance(each.fact, SandboxFailed))
    ]
    return max(
        enumerate(same),
        key=lambda each: (
            each[1].stage == end.stage,
            isinstance(each[1].fact, SandboxFailed),
            each[0],
        ),
        default=(0, None),
    )[1]


def _verdict(attempt: Attempt, errors: list[Observed], see: _Observer) -> Observed | None:
    reward = attempt.reward
    if reward is None:
        return None
    if reward.value is not None:
        if math.isfinite(reward.value):
            return None
        return Observed(reward, Stage.VERIFY, "reward_not_finite", None, see.own)
    return next((each for each in errors if each.fact is reward), None)


class _Observer:
    """Looks at the errors of one attempt."""

    def __init__(self, attempt: Attempt, evidence: Evidence, limits: Limits) -> None:
        self._attempt = attempt
        self._evidence = evidence
        self._limits = limits
        self.own = frozenset(self._own_signs())
        """Signs of the attempt itself."""

    def kind_of(self, fact: ErrorFact | TrajectoryFinished) -> str:
        return error_kinds().of(fact.error_type or "", fact.error)

    def error(self, fact: ErrorFact) -> Observed:
        """One error that has a fact of its own."""
        stage = _stage(fact)
        signs = set(self.own)
        if not self._after_first_token(fact, stage):
            signs.discard(Sign.AFTER_FIRST_TOKEN)
        if isinstance(fact, TurnFailed):
            if fact is not max(self._attempt.turns_failed, key=happened):
                signs.discard(Sign.CLOCK_RAN_OUT)  # the clock can only have cut off the last one
            signs.add(Sign.TO_ENGINE)
            signs.update(_engine_signs(fact, self._evidence, self._limits))
        else:
            lost = fact if isinstance(fact, SandboxFailed) else self._loss_behind(fact)
            signs.update(self._sandbox_signs(lost, stage))
        kind, error_type = self.kind_of(fact), fact.error_type or ""
        signs.update(self._trial_signs())
        return Observed(fact, stage, kind, error_type, frozenset(signs))

    def end(self, end: TrajectoryFinished | None, kind: str) -> Observed:
        """An ending that no other fact tells of."""
        stage = end.stage if end is not None else None
        error_type = end.error_type if end is not None else None
        if stage is None:
            stage = error_kinds().stages.get(kind)
        signs = set(self.own)
        if stage in BEFORE_THE_POLICY:
            signs.discard(Sign.AFTER_FIRST_TOKEN)
        if (
            stage is Stage.MODEL and kind != "harness_crashed"
        ):  # which is on this side of the request
            signs.add(Sign.TO_ENGINE)
        if error_type is not None:
            signs.update(self._sandbox_signs(None, stage), self._trial_signs())
        return Observed(end, stage, kind, error_type, frozenset(signs))

    def _own_signs(self) -> Iterator[Sign]:
        attempt, end = self._attempt, self._attempt.finished
        if attempt.first_token_seen:
            yield Sign.AFTER_FIRST_TOKEN
        if attempt.abandoned is not None and attempt.abandoned.producer_silent:
            yield Sign.PRODUCER_SILENT
        if end is None:
            return
        if end.stop_reason == StopReason.CLOCK_CAP:
            yield Sign.CLOCK_RAN_OUT
        cap, clock = end.clock_cap_s, end.policy_clock_s
        if cap is not None and clock is not None and clock < cap * (1 - self._limits.clock_slack):
            yield Sign.STARVED

    def _after_first_token(self, fact: ErrorFact, stage: Stage) -> bool:
        if isinstance(fact, TurnFailed):
            first = self._attempt.first_token_turn
            if first is None:
                return self._attempt.first_token_seen
            return first < fact.turn_no or bool(fact.tokens_so_far)
        return stage not in BEFORE_THE_POLICY and self._attempt.first_token_seen

    def _loss_behind(self, fact: ToolCallCompleted | RewardAssigned) -> SandboxFailed | None:
        """The sandbox's own account of what a command or the tests ran into."""
        of_it = [each for each in self._attempt.sandbox_failed if each.sandbox_id is not None]
        return next((each for each in of_it if each.sandbox_id == fact.sandbox_id), None)

    def _sandbox_signs(self, lost: SandboxFailed | None, stage: Stage | None) -> Iterator[Sign]:
        ran = lost.in_command if lost is not None else None
        if (stage in _RUNS_COMMANDS) if ran is None else ran:
            yield Sign.IN_COMMAND
        if stage is Stage.VERIFY and self._last_start_failed():
            yield Sign.SANDBOX_NOT_STARTED
        if lost is None:
            return
        if (full := fullest(lost)) is not None and full >= self._limits.near_limit:
            yield Sign.NEAR_LIMIT
        if declared_end(lost):
            yield Sign.DECLARED_END
        if _hit_together(lost, lost.backend, "sandbox", self._evidence, self._limits):
            yield Sign.PEERS_LOST

    def _last_start_failed(self) -> bool:
        up = max((each.try_no for each in self._attempt.sandbox_started), default=-1)
        failed = [f.try_no for f in self._attempt.sandbox_failed if f.stage == Stage.SANDBOX_START]
        return max(failed, default=-1) > up

    def _trial_signs(self) -> Iterator[Sign]:
        for baseline in self._evidence.baselines:
            kind = error_kinds().of(baseline.error_type)
            if kind in _TRIAL_CRASHES:
                yield Sign.BASELINE_CRASHES
            if kind == "out_of_memory":
                yield Sign.BASELINE_OUT_OF_MEMORY


def fullest(fact: SandboxFailed) -> float | None:
    """Share of the memory or disk limit that was in use, the larger of the two; None: unknown."""
    pairs = (
        (fact.memory_used_bytes, fact.memory_limit_bytes),
        (fact.disk_used_bytes, fact.disk_limit_bytes),
    )
    shares = [used / limit for used, limit in pairs if used is not None and limit]
    return max(shares, default=None)


def declared_end(fact: SandboxFailed) -> bool:
    """Whether the sandbox had reached the end that its service declares."""
    end, at = fact.backend_end_at, fact.occurred_at
    return end is not None and at is not None and end - _LIFETIME_SLACK <= at


def _stage(fact: ErrorFact) -> Stage:
    match fact:
        case SandboxFailed():
            return fact.stage
        case TurnFailed():
            return Stage.MODEL
        case ToolCallCompleted():
            return Stage.TOOL
        case RewardAssigned():
            return Stage.VERIFY


def _engine_signs(fact: TurnFailed, evidence: Evidence, limits: Limits) -> Iterator[Sign]:
    if fact.stage == EngineStage.DECODE or fact.tokens_so_far:
        yield Sign.DECODING
    status = fact.http_status
    if status is not None and (status == 429 or status >= 500):
        yield Sign.SERVER_REFUSED
    elif status is not None and 400 <= status != 408:
        yield Sign.REQUEST_REFUSED
    if _hit_together(fact, fact.engine, "engine", evidence, limits):
        yield Sign.ENGINE_PEERS_FAILED


def _hit_together(
    fact: Fact, place: str | None, where: str, evidence: Evidence, limits: Limits
) -> bool:
    """Whether enough other tasks were hit within one window that has `fact` in it."""
    at, window = fact.occurred_at, timedelta(seconds=limits.peer_window_s)
    if at is None:
        return False
    peers = [each for each in evidence.peers if _counts(each, place, where, limits)]
    starts = [at, *(each.at for each in peers if at - window <= each.at < at)]
    return any(
        len({each.task_id for each in peers if start <= each.at <= start + window})
        >= limits.peer_tasks
        for start in starts
    )


def _counts(peer: PeerError, place: str | None, where: str, limits: Limits) -> bool:
    if peer.where != where or (peer.fullest is not None and peer.fullest >= limits.near_limit):
        return False
    return None in (peer.place, place) or peer.place == place
