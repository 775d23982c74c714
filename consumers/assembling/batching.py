"""The queue of groups that were decided for a batch, and the next batch from it. Pure.

    decided ─▶ queue ─▶ batch (when there is room) ─▶ taken by the trainer
                 └────▶ dropped: stale, orphaned_version, over_sampled

Invariants:

1. The queue's order follows from the recorded decisions alone, not from the order in which
   partitions were read, so a restart and a replay assemble the same batches.
2. A group leaves the queue once: into one batch, or dropped.
3. A batch's hash covers its ordered members, their advantages and the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from consumers.assembling.context import Versions
from consumers.assembling.group_state import GroupState
from consumers.assembling.members import outdated
from consumers.assembling.settings import AssemblerSettings, Mode, OverSampling, sha256_of
from ledger.facts import GroupDecided
from ledger.facts.lists import DropReason


@dataclass(frozen=True, slots=True)
class Queued:
    """A group that was decided for a batch."""

    group: GroupState
    decided: GroupDecided
    offset: int
    """Of the decision, in the group's partition."""
    versions: Versions | None
    """Of the tokens that are trained on; null: none."""

    @property
    def order(self) -> tuple[datetime, str]:
        """Sorts the queue."""
        return self.decided.cut.log_time, self.group.group_id

    @property
    def target_step(self) -> int | None:
        """The step that it was sampled for."""
        return None if self.group.opened is None else self.group.opened.target_step


class Dropped(NamedTuple):
    """A group that leaves the queue for nothing."""

    queued: Queued
    reason: DropReason


@dataclass(frozen=True, slots=True)
class NextBatch:
    """What the next step trains on."""

    step: int
    groups: tuple[Queued, ...]
    """In order."""
    surplus: tuple[Queued, ...]
    """Ready too, and dropped by `first_k`."""

    @property
    def ready_at(self) -> datetime:
        """When its last group was decided."""
        return max(each.decided.cut.log_time for each in self.groups)

    def lags(self, policy_version: int | None) -> tuple[int, int] | tuple[None, None]:
        """Smallest and largest lag of a token, in versions; null where none is known."""
        known = [each.versions for each in self.groups if each.versions is not None]
        if policy_version is None or not known:
            return None, None
        newest, oldest = max(each.newest for each in known), min(each.oldest for each in known)
        return policy_version - newest, policy_version - oldest

    def sha256(self, configuration_sha256: str) -> str:
        """Digest of the ordered members, advantages and the configuration."""
        content = {
            "configuration": configuration_sha256,
            "groups": [
                [
                    each.group.group_id,
                    [
                        [m.slot, m.trajectory_id, m.reward, m.votes, m.masked, m.advantage]
                        for m in each.decided.members
                    ],
                ]
                for each in self.groups
            ],
        }
        text = json.dumps(content, separators=(",", ":"), sort_keys=True, allow_nan=False)
        return sha256_of(text)


@dataclass(frozen=True, slots=True)
class StepGroups:
    """Groups that were sampled for one step."""

    opened: int
    undecided: int


def outdated_in(
    queue: Iterable[Queued],
    policy_version: int | None,
    orphaned: Set[int],
    settings: AssemblerSettings,
) -> list[Dropped]:
    """Groups of the queue whose tokens aren't fit for training any more."""
    found: list[Dropped] = []
    for each in queue:
        reason = outdated(each.versions, policy_version, orphaned, settings)
        if reason is not None:
            found.append(Dropped(each, reason))
    return found


def next_batch(
    queue: Sequence[Queued],
    last_step: int,
    untaken_batches: int,
    of_step: Mapping[int, StepGroups],
    settings: AssemblerSettings,
) -> NextBatch | None:
    """The next batch, if there are groups for it and room. `queue` is in order."""
    if untaken_batches >= settings.untaken_batches_bound:
        return None
    step = last_step + 1
    ready = [each for each in queue if _may_join(each, step, settings)]
    size = settings.groups_per_batch
    if len(ready) < size:
        if not ready or not _none_to_come(of_step.get(step), settings):
            return None
        size = len(ready)
    surplus = ready[size:] if settings.over_sampling is OverSampling.FIRST_K else []
    return NextBatch(step, tuple(ready[:size]), tuple(surplus))


def _may_join(queued: Queued, step: int, settings: AssemblerSettings) -> bool:
    target = queued.target_step
    return settings.mode is Mode.ASYNC or target is None or target <= step


def _none_to_come(groups: StepGroups | None, settings: AssemblerSettings) -> bool:
    """Whether enough groups were opened for a step, and all of them are decided."""
    return (
        settings.mode is Mode.SYNC
        and settings.short_batches
        and groups is not None
        and groups.undecided == 0
        and groups.opened >= settings.groups_per_batch
    )
