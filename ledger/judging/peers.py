"""What attempts at other tasks, and the tasks' own trials, say: an index that is shown every fact.

Evidence goes by when things happened, on the producers' clocks, and not by the log's: behind an
outage, and in an import, everything arrives in the log at once, and unrelated losses would seem to
be one. Without a time, an error is no evidence and finds none.

Invariant: what it gives depends on which facts it was shown, not on their order, nor on how often.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from ledger.attempt import BEFORE_THE_POLICY, Attempt, happened
from ledger.facts import (
    Fact,
    GroupOpened,
    SandboxFailed,
    TaskValidated,
    TrajectoryStarted,
    TurnFailed,
)
from ledger.judging.error_kinds import error_kinds
from ledger.judging.evidence import PEER_WINDOW_MAX_S, Baseline, Evidence, PeerError
from ledger.judging.observed import declared_end, fullest

MAX_PEERS = 8
"""At most so many other tasks are written out, the nearest in time first."""

_LOSSES = frozenset({"sandbox_lost", "sandbox_unreachable", "sandbox_error", "connection"})
_ENGINE_FAILURES = frozenset({"engine_unavailable", "engine_error", "connection", "timeout"})
_WINDOW = timedelta(seconds=PEER_WINDOW_MAX_S)

Where = Literal["sandbox", "engine"]


class _Seen(NamedTuple):
    at: datetime
    event_id: str
    group_id: str
    error_type: str
    place: str | None
    fullest: float | None


class Peers:
    """Shown every fact of the runs that it is asked about."""

    def __init__(self) -> None:
        self._seen: dict[Where, list[_Seen]] = {"sandbox": [], "engine": []}
        self._tasks: dict[str, str] = {}
        self._trials: dict[str, dict[str, TaskValidated]] = {}

    def see(self, fact: Fact) -> None:
        """Remember a fact that may be evidence; others are passed over."""
        remember = _REMEMBER.get(type(fact))
        if remember is not None:
            remember(self, fact)

    def evidence(self, attempt: Attempt) -> Evidence:
        """What has been seen around this attempt's errors; empty when it had none."""
        task_id = attempt.started.task_id if attempt.started else self._tasks.get(attempt.group_id)
        if task_id is None:
            return Evidence()
        lost = self._near("sandbox", task_id, attempt.sandbox_failed)
        failed = self._near("engine", task_id, attempt.turns_failed)
        return Evidence((*lost, *failed), tuple(self._baselines(attempt, task_id)))

    def forget_before(self, moment: datetime) -> None:
        """Drop errors that happened before `moment`."""
        for seen in self._seen.values():
            del seen[: bisect.bisect_left(seen, moment, key=_at)]

    def forget_group(self, group_id: str) -> None:
        """Drop the group's task: its errors are no evidence to others any more."""
        self._tasks.pop(group_id, None)

    def _add(self, where: Where, seen: _Seen) -> None:
        known = self._seen[where]
        at = bisect.bisect_left(known, _order(seen), key=_order)
        if at == len(known) or known[at].event_id != seen.event_id:
            known.insert(at, seen)

    def _near(self, where: Where, task_id: str, errors: Iterable[Fact]) -> list[PeerError]:
        found: dict[str, tuple[timedelta, _Seen]] = {}
        known = self._seen[where]
        for error in errors:
            if (at := error.occurred_at) is None:
                continue
            first = bisect.bisect_left(known, at - _WINDOW, key=_at)
            for seen in known[first : bisect.bisect_right(known, at + _WINDOW, key=_at)]:
                task = self._tasks.get(seen.group_id, task_id)
                near = (abs(seen.at - at), seen)
                if task != task_id and (task not in found or _nearer(near, found[task])):
                    found[task] = near
        nearest = sorted(found, key=lambda task: (found[task][0], task))[:MAX_PEERS]
        peers = [_peer(where, task, found[task][1]) for task in nearest]
        return sorted(peers, key=lambda each: (each.at, each.event_id))

    def _baselines(self, attempt: Attempt, task_id: str) -> Iterable[Baseline]:
        """The task's newest trial, if it came to no verdict."""
        if not _has_errors(attempt):
            return
        reward = attempt.reward
        checksum = reward.task_checksum if reward else None
        trials = [
            each
            for each in self._trials.get(task_id, {}).values()
            if checksum == each.task_checksum
            or (None in (checksum, each.task_checksum) and each.run_id == attempt.run_id)
        ]
        newest = max(trials, key=happened, default=None)
        if newest is not None and newest.error_type is not None:
            yield Baseline(newest.event_id, newest.error_type)


def _has_errors(attempt: Attempt) -> bool:
    """Whether there is anything that a trial of the task might explain."""
    if attempt.sandbox_failed or attempt.turns_failed or attempt.tool_errors:
        return True
    ends = (attempt.finished, *attempt.rewards)
    return any(each is not None and each.error_type is not None for each in ends)


def _at(seen: _Seen) -> datetime:
    return seen.at


def _order(seen: _Seen) -> tuple[datetime, str]:
    return seen.at, seen.event_id


def _nearer(one: tuple[timedelta, _Seen], other: tuple[timedelta, _Seen]) -> bool:
    return (one[0], one[1].event_id) < (other[0], other[1].event_id)


def _peer(where: Where, task_id: str, seen: _Seen) -> PeerError:
    return PeerError(
        where, seen.event_id, task_id, seen.error_type, seen.place, seen.at, seen.fullest
    )


def _sandbox(peers: Peers, fact: SandboxFailed) -> None:
    if (
        fact.occurred_at is not None
        and fact.stage not in BEFORE_THE_POLICY
        and not declared_end(fact)
        and error_kinds().of(fact.error_type, fact.error) in _LOSSES
    ):
        seen = _Seen(
            fact.occurred_at,
            fact.event_id,
            fact.group_id,
            fact.error_type,
            fact.backend,
            fullest(fact),
        )
        peers._add("sandbox", seen)  # pyright: ignore[reportPrivateUsage]


def _engine(peers: Peers, fact: TurnFailed) -> None:
    kind = error_kinds().of(fact.error_type, fact.error)
    if fact.occurred_at is not None and kind in _ENGINE_FAILURES:
        seen = _Seen(
            fact.occurred_at, fact.event_id, fact.group_id, fact.error_type, fact.engine, None
        )
        peers._add("engine", seen)  # pyright: ignore[reportPrivateUsage]


def _task_of(peers: Peers, fact: GroupOpened | TrajectoryStarted) -> None:
    peers._tasks[fact.group_id] = fact.task_id  # pyright: ignore[reportPrivateUsage]


def _trial(peers: Peers, fact: TaskValidated) -> None:
    peers._trials.setdefault(fact.task_id, {})[fact.event_id] = fact  # pyright: ignore[reportPrivateUsage]


_REMEMBER: dict[type, Callable[[Peers, Any], None]] = {
    SandboxFailed: _sandbox,
    TurnFailed: _engine,
    GroupOpened: _task_of,
    TrajectoryStarted: _task_of,
    TaskValidated: _trial,
}
