"""A simulated run that was decided and trained, encoded once, to be copied into a large book.

The simulator tells the raw facts; what an assembler and a trainer would have added is drafted here
by the simplest rule: whoever has a reward votes, whoever has none is excluded, and each step trains
on the groups that were opened for it.

Invariant: a copy refers to itself alone. So ids end in the simulator's mark, and references to
ids of version 7 are moved as `copies.py` moves the ids themselves.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from ledger.avro import HEADER_BYTES, decode
from ledger.facts import GroupOpened, Member, RewardAssigned, TrajectoryFinished, TurnCompleted
from ledger.facts.decisions import Cut
from ledger.facts.lists import ExclusionReason, StopReason
from ledger.log import Record
from ledger.wire.encoder import Draft, FactEncoder
from producers.simulator.copies import copied
from producers.simulator.published import STEPS_AFTER
from producers.simulator.run import SimulatedRun
from producers.simulator.teller import Teller

CHUNK = 5_000
_OWN_ID_END = HEADER_BYTES + 1 + 36
_REFERENCE = re.compile(rb"01[0-9a-f]{6}(?=-[0-9a-f]{4}-7[0-9a-f]{3}-)")
"""Where an id of version 7 begins, as in a decision that names the reward it used."""


@dataclass(slots=True)
class _Group:
    opened: GroupOpened
    finished: list[TrajectoryFinished] = field(default_factory=list[TrajectoryFinished])
    rewards: dict[str, RewardAssigned] = field(default_factory=dict[str, RewardAssigned])
    """By attempt."""


@dataclass(frozen=True, slots=True)
class Story:
    """One run's records, in order."""

    records: tuple[Record, ...]
    turns: int
    """Of them, completed turns."""

    def copy(self, number: int) -> list[Record]:
        """The same as another run's."""
        return [_moved(record, number) for record in copied(self.records, number)]


def story(seed: int = 1) -> Story:
    """A run of 40 steps: 320 groups of 8, about 18,000 turns."""
    run = SimulatedRun(replace(STEPS_AFTER, name="accounts"), seed, for_copies=True)
    encoder = FactEncoder("simulator", run.run_id, run.teller.an_id("simulator"))
    drafts = [_on_a_batch(draft, run.teller) for draft in run.drafts()]
    records = _encoded(encoder, drafts)
    facts = [decode(record.value) for record in records]
    records += _encoded(encoder, list(_decided(run, facts)))
    return Story(tuple(records), sum(isinstance(fact, TurnCompleted) for fact in facts))


def _moved(record: Record, number: int) -> Record:
    head, rest = record.value[:_OWN_ID_END], record.value[_OWN_ID_END:]
    later = _REFERENCE.sub(lambda found: b"%08x" % (int(found[0], 16) + number), rest)
    return Record(record.key, head + later)


def _encoded(encoder: FactEncoder, drafts: Sequence[Draft]) -> list[Record]:
    records: list[Record] = []
    for first in range(0, len(drafts), CHUNK):
        encoded = encoder.encode(list(drafts[first : first + CHUNK]))
        for refused in encoded.refused:
            raise refused.error
        records += encoded.events
    return records


def _on_a_batch(draft: Draft, tell: Teller) -> Draft:
    """A step names the batch that it trained on, which the simulator leaves open."""
    if draft.name != "step_completed":
        return draft
    batch_id = tell.an_id(f"batch/{draft.fields['step']}")
    return draft._replace(fields={**draft.fields, "batch_id": batch_id})


def _decided(run: SimulatedRun, facts: Sequence[Any]) -> Iterator[Draft]:
    groups = {fact.group_id: _Group(fact) for fact in facts if isinstance(fact, GroupOpened)}
    for fact in facts:
        if isinstance(fact, TrajectoryFinished):
            groups[fact.group_id].finished.append(fact)
        elif isinstance(fact, RewardAssigned):
            groups[fact.group_id].rewards[fact.trajectory_id] = fact
    of_step: dict[int, list[str]] = defaultdict(list)
    end_us = run.teller.us(0.0)
    for group_id, group in groups.items():
        for attempt in group.finished:
            yield Draft("trajectory_judged", _verdict(attempt), end_us)
        yield Draft("group_decided", _decision(group), end_us)
        of_step[group.opened.target_step or 0].append(group_id)
    for step, group_ids in of_step.items():
        batch = {
            "step": step,
            "batch_id": run.teller.an_id(f"batch/{step}"),
            "batch_sha256": "0" * 64,
            "group_ids": group_ids,
            "cut": _cut(),
        }
        yield Draft("batch_assembled", batch, end_us)


def _verdict(attempt: TrajectoryFinished) -> dict[str, Any]:
    lost = attempt.stop_reason == StopReason.ERROR
    cause = {"cause_stage": "tool", "cause_class": "sandbox_lost", "blame": "infrastructure"}
    return {
        "group_id": attempt.group_id,
        "slot": attempt.slot,
        "trajectory_id": attempt.trajectory_id,
        "rule_set": 1,
        "outcome": "errored" if lost else "completed",
        "trainable": not lost,
        **(cause if lost else {}),
    }


def _decision(group: _Group) -> dict[str, Any]:
    voting = {each.slot for each in group.finished if each.trajectory_id in group.rewards}
    mean = fmean([each.value or 0.0 for each in group.rewards.values()] or [0.0])
    members = [
        _member(each, group.rewards.get(each.trajectory_id), mean) for each in group.finished
    ]
    return {
        "group_id": group.opened.group_id,
        "rule_set": 1,
        "decision": "batch" if voting else "dropped",
        **({} if voting else {"drop_reason": "too_few_valid"}),
        "members": members,
        "mean": mean,
        "std": 0.5,
        "algorithm": "grpo",
        "cut": _cut(),
    }


def _member(attempt: TrajectoryFinished, reward: RewardAssigned | None, mean: float) -> Member:
    place = attempt.slot, attempt.trajectory_id
    if reward is None or reward.value is None:
        missing = ExclusionReason.REWARD_MISSING
        return Member(*place, None, None, False, missing, False, None, tokens_verified=False)
    advantage = reward.value - mean
    return Member(
        *place, reward.event_id, reward.value, True, None, False, advantage, tokens_verified=True
    )


def _cut() -> Cut:
    return Cut({"events/0": 0}, datetime(2026, 1, 1, tzinfo=UTC), 0, "{}", "0" * 64)
