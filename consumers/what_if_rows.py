"""What a simulation came to, against what was recorded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from consumers.assembling.context import Hold
from ledger.facts import Member
from ledger.facts.lists import DropReason, GroupDecision


class Other(NamedTuple):
    """One thing on both sides."""

    what: str
    """batch, group, member or total."""
    step: int | None
    """Of a batch; null for the others."""
    group_id: str | None
    """Null for batches and totals."""
    task_id: str | None
    """Of the group."""
    trajectory_id: str | None
    """Of the member."""
    field: str
    recorded: Any
    simulated: Any


@dataclass(slots=True)
class Fate:
    """What became of a group, on one side."""

    said: str
    """Its last decision, in words."""
    kind: str
    """`batch`, `dropped: zero_variance`, `evaluated` or `held`."""
    trains: int = 0
    """Members with a gradient, if it is in a batch."""
    votes: int = 0
    masked: int = 0
    excluded: int = 0
    step: int | None = None
    """Of the batch that it is in; null: in none."""

    @classmethod
    def decided(
        cls, decision: GroupDecision, reason: DropReason | None, members: Sequence[Member]
    ) -> Fate:
        """A group that was decided."""
        votes = sum(each.votes for each in members)
        masked = sum(each.masked for each in members)
        kind = f"{decision}: {reason}" if reason else str(decision)
        why = Counter(str(each.exclusion_reason) for each in members if not each.votes)
        excluded = "".join(f", {count} {name}" for name, count in sorted(why.items()))
        said = f"{kind} ({votes} of {len(members)} vote{excluded})"
        return cls(said, kind, votes - masked, votes, masked, len(members) - votes)

    @classmethod
    def held(cls, hold: Hold) -> Fate:
        """A group that is waited for."""
        asked = [f"slot {each.judged.attempt.slot}: {each.reason}" for each in hold.refills]
        why = f"a refill is asked for, {'; '.join(asked)}" if asked else "more may come"
        return cls(f"held ({why})", "held")


class Fates(NamedTuple):
    """What became of a group, on both sides."""

    task_id: str | None
    recorded: Fate
    simulated: Fate


Steps = Mapping[int, Sequence[str]]
"""Step -> groups of its batch, in order."""


@dataclass(slots=True)
class WhatIf:
    """What a simulation came to."""

    run_id: str
    differences: list[Other] = field(default_factory=list[Other])
    """Batches, then groups, then members."""
    totals: list[Other] = field(default_factory=list[Other])
    """The same figures of both sides, also where they agree."""
    not_simulated: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(group or batch, why): nothing can be said of it."""


def group_rows(fates: Mapping[str, Fates]) -> Iterator[Other]:
    """Groups that were decided otherwise, or are in another step's batch."""
    for group_id, (task_id, one, two) in fates.items():
        if one.kind != two.kind:
            yield Other("group", None, group_id, task_id, None, "decision", one.said, two.said)
        if one.step != two.step:
            yield Other("group", None, group_id, task_id, None, "step", one.step, two.step)


def batch_rows(
    fates: Mapping[str, Fates], members: Sequence[Other], recorded: Steps, simulated: Steps
) -> Iterator[Other]:
    """Batches that would have had other groups, other members or other advantages."""
    changed = Counter(
        (each.group_id, each.field) for each in members if each.field in ("advantage", "masked")
    )
    for step in sorted({*recorded, *simulated}):
        one, two = recorded.get(step), simulated.get(step)
        if one is None or two is None or list(one) != list(two):
            yield _of_batch(step, "groups", one and " ".join(one), two and " ".join(two))
        before = sum(fates[each].recorded.trains for each in one or () if each in fates)
        after = sum(fates[each].simulated.trains for each in two or () if each in fates)
        if before != after:
            yield _of_batch(step, "members trained on", before, after)
        others = sum(changed[each, "advantage"] for each in two or ())
        if others:
            yield _of_batch(step, "other advantages", 0, others)


def totals(fates: Mapping[str, Fates], recorded: Steps, simulated: Steps) -> Iterator[Other]:
    """Figures of both sides."""
    before = _figures([each.recorded for each in fates.values()], len(recorded))
    after = _figures([each.simulated for each in fates.values()], len(simulated))
    for name in sorted({*before, *after}):
        yield Other("total", None, None, None, None, name, before[name], after[name])


def _figures(fates: Sequence[Fate], batches: int) -> Counter[str]:
    found = Counter({"batches": batches, "groups": len(fates)})
    for each in fates:
        found[f"groups {each.kind}"] += 1
        found["groups in a batch"] += each.step is not None
        found["members that vote"] += each.votes
        found["members excluded"] += each.excluded
        found["members masked"] += each.masked
        found["members trained on"] += each.trains if each.step is not None else 0
    return found


def _of_batch(step: int, name: str, recorded: Any, simulated: Any) -> Other:
    return Other("batch", step, None, None, None, name, recorded, simulated)
