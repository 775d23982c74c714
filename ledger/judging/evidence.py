"""What speaks about an attempt from outside it: its peers' losses, and its task's own trials.

The policy can't reach this evidence, so it may excuse it. All of it that was at hand is written
into the `trajectory_judged` fact and can be read back from there, so that a judgement is a
function of the attempt's facts and this fact's `evidence`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

_encode = json.JSONEncoder(ensure_ascii=False).encode

PEER_WINDOW_MAX_S = 60.0
"""Peers' errors further away in time than this are no evidence under any rule set."""


class Abandonment(NamedTuple):
    """Why the lease reaper ended an attempt that never said that it ended."""

    silent_s: float
    """Seconds by the log's clock since its last fact."""
    producer_silent: bool
    """Whether its producer's pulse had stopped too; false: only this attempt fell silent."""


@dataclass(frozen=True, slots=True)
class PeerError:
    """An error of another task's attempt, near in time to one of this attempt's."""

    where: Literal["sandbox", "engine"]
    """What it hit: a sandbox lost or out of reach, or a request to an engine."""
    event_id: str
    """The fact that tells of it."""
    task_id: str
    """Another task than the attempt's: attempts at one task may all do the same to themselves."""
    error_type: str
    """Raw type."""
    place: str | None
    """The sandbox's backend, or the engine; null: unknown."""
    at: datetime
    """When it happened by its producer's clock, UTC."""
    fullest: float | None
    """Share of the memory or disk limit that was in use, the larger; null: unknown, or an
    engine's. A sandbox that its policy filled up is no evidence that others weren't."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The task's tests had no verdict on the gold or the empty patch in a fresh sandbox."""

    event_id: str
    """The task_validated fact."""
    error_type: str
    """Raw type of what kept them from a verdict."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a judgement uses beside the attempt's own facts."""

    peers: tuple[PeerError, ...] = ()
    """By time."""
    baselines: tuple[Baseline, ...] = ()
    """Of the attempt's task, with the checksum that it was scored against: one, or none."""

    def lines(self) -> list[str]:
        """(n,) JSON objects, one for each piece, for `trajectory_judged.evidence`."""
        peers = [{"peer": _plain(each) | {"at": each.at.isoformat()}} for each in self.peers]
        baselines = [{"baseline": _plain(each)} for each in self.baselines]
        return [_encode(each) for each in (*peers, *baselines)]

    @classmethod
    def read(cls, lines: Iterable[str]) -> Evidence:
        """What `lines` wrote. Pieces of other kinds, and lines that are no such object, are
        passed over."""
        peers: list[PeerError] = []
        baselines: list[Baseline] = []
        for piece in _pieces(lines):
            if "peer" in piece:
                at = datetime.fromisoformat(piece["peer"]["at"])
                peers.append(PeerError(**(piece["peer"] | {"at": at})))
            elif "baseline" in piece:
                baselines.append(Baseline(**piece["baseline"]))
        return cls(tuple(peers), tuple(baselines))


def _plain(piece: PeerError | Baseline) -> dict[str, Any]:
    # asdict copies each value deeply, which costs more than all the rest of a judgement.
    return {name: getattr(piece, name) for name in piece.__slots__}


def abandonment_line(why: Abandonment) -> str:
    """What `abandonment_in` reads."""
    return json.dumps({"abandoned": why._asdict()})


def abandonment_in(lines: Iterable[str]) -> Abandonment:
    """Why an attempt was abandoned, by the evidence of its judgement."""
    for piece in _pieces(lines):
        if "abandoned" in piece:
            return Abandonment(**piece["abandoned"])
    return Abandonment(0.0, producer_silent=False)


def _pieces(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            piece = json.loads(line)
        except ValueError:
            continue
        if isinstance(piece, dict):
            yield piece
