"""What a decision is made of: the context that it depends on, and what it can say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from consumers.assembling.cut import Now
from consumers.assembling.settings import AssemblerSettings
from ledger.attempt import Attempt
from ledger.facts import Member
from ledger.facts.lists import DropReason, ExclusionReason, GroupDecision, RunKind
from ledger.judgement import Evidence, Judgement, RuleSet


@dataclass(frozen=True, slots=True)
class Context:
    """All that a decision depends on beside the group's own facts and tokens."""

    settings: AssemblerSettings
    rules: RuleSet
    kind: RunKind
    """Of the run: groups of an evaluation are decided `evaluated`."""
    policy_version: int | None
    """Newest published version that training goes on from; null: none is known."""
    orphaned: Set[int]
    """Versions that training didn't go on from."""
    last_step: int
    """The step that the newest batch is for; 0: there is none."""
    now: Now
    silent: Set[str]
    """Incarnations whose leases have run out."""
    last_seen_us: Mapping[str, int]
    """Incarnation -> time of its last record, by the log's clock."""
    evidence: Callable[[Attempt], Evidence]
    """What peers say about an attempt's errors."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An attempt that ended, and what the rules say of it."""

    attempt: Attempt
    judgement: Judgement
    exclusion: ExclusionReason | None
    """Why it can't vote; null when it can."""
    tokens_verified: bool


class Refill(NamedTuple):
    """A slot needs another attempt."""

    judged: Judged
    """The last attempt in the slot."""
    refill_no: int
    """From 1."""
    reason: ExclusionReason


@dataclass(frozen=True, slots=True)
class Hold:
    """Not yet."""

    refills: tuple[Refill, ...] = ()
    """To ask for, now."""
    again_at_us: int | None = None
    """When to look again though nothing new came; null: nothing is known but the deadline."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a group."""

    decision: GroupDecision
    drop_reason: DropReason | None
    members: tuple[Member, ...]
    """By slot, then by start."""
    mean: float | None
    std: float | None
    judged: tuple[Judged, ...] = ()
    """Members that had ended."""
    detail: str | None = None
    """What is wrong with the group, where it was refused."""


class Versions(NamedTuple):
    """Policy versions of the tokens that a group is trained on."""

    oldest: int
    newest: int
    all: frozenset[int]
