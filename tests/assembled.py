"""Groups to assemble, as their producers tell of them, and a desk that decides without a log.

a_group(1, rewards=[1, 0, None])     facts and payloads of one group, in the order recorded
Desk(settings).read(*told).decide()  what the assembler would append, read back as it would be
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from consumers.assembling.cut import Now, cut_of
from consumers.assembling.plan import context_of, looked, plan
from consumers.assembling.publish import drafts_of
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings
from ledger.avro import decode
from ledger.facts import BatchAssembled, Fact, GroupDecided, Member, VersionSpan
from ledger.facts.lists import ExclusionReason, RunKind, StopReason
from ledger.judgement import Peers, load_rules
from ledger.log import Positions, TopicPartition, positions_of
from ledger.tokens import Tokens, TurnTokens, digest, pack
from ledger.wire.checks import to_micros
from ledger.wire.encoder import FactEncoder
from tests.builders import AT, a_fact, an_id

RUN = an_id("run")
AGENT = an_id("agent")
Told = Fact | TurnTokens
SETTINGS = AssemblerSettings(groups_per_batch=2)


def group_id(number: int) -> str:
    return an_id("group", number)


def trajectory_id(group: int, slot: int, refill: int = 0) -> str:
    return an_id(f"trajectory {group}/{slot}", refill)


class Teller:
    """Numbers facts so that each has an id and a time of its own, the same in every run."""

    def __init__(self, incarnation: str = AGENT, seed: int = 0) -> None:
        self._incarnation = incarnation
        self._seed = seed
        self._count = 0

    def __call__(self, name: str, **fields: Any) -> Any:
        self._count += 1
        seed = self._seed * 10_000 + self._count
        usual = {
            "run_id": RUN,
            "incarnation": self._incarnation,
            "occurred_at": AT + timedelta(seconds=self._count),
        }
        return a_fact(name, seed=seed, only_required=True, **(usual | fields))


def the_run(kind: RunKind = RunKind.TRAIN, version: int | None = 3) -> list[Told]:
    """The run is declared, and a version published."""
    tell = Teller(seed=9_999)
    told: list[Told] = [tell("run_declared", kind=kind, configuration="{}", model="tiny")]
    if version is not None:
        told.append(tell("weights_published", policy_version=version))
    return told


def a_payload(group: int, slot: int, turn_no: int, refill: int = 0) -> TurnTokens:
    """Three tokens of prompt and two that the policy sampled, different for every turn."""
    base = 100 * group + 10 * slot + turn_no
    tokens = Tokens([1, 2, base % 50, 5, 6], [0, 0, 0, 1, 1], [0.0, 0.0, 0.0, -0.5, -base / 1000])
    columns = pack(tokens)
    return TurnTokens(
        run_id=RUN,
        group_id=group_id(group),
        trajectory_id=trajectory_id(group, slot, refill),
        turn_no=turn_no,
        sha256=digest(columns),
        token_ids=columns[0],
        loss_mask=columns[1],
        logprobs=columns[2],
    )


def an_attempt(
    tell: Teller,
    group: int,
    slot: int,
    reward: float | None,
    *,
    refill: int = 0,
    turns: int = 2,
    version: int = 3,
    stop: StopReason = StopReason.SUBMITTED,
    **finished: Any,
) -> list[Told]:
    """One attempt from start to end."""
    ids: dict[str, Any] = {
        "group_id": group_id(group),
        "slot": slot,
        "trajectory_id": trajectory_id(group, slot, refill),
    }
    replaces = trajectory_id(group, slot, refill - 1) if refill else None
    told: list[Told] = [
        tell("trajectory_started", **ids, task_id=f"task {group}", replaces=replaces)
    ]
    for turn_no in range(turns):
        payload = a_payload(group, slot, turn_no, refill)
        spans = [VersionSpan(version, 0, 2)]
        told.append(payload)
        told.append(
            tell(
                "turn_completed",
                **ids,
                turn_no=turn_no,
                completion_tokens=2,
                tokens_sha256=payload.sha256,
                version_spans=spans,
            )
        )
        told.append(tell("tool_call_completed", **ids, turn_no=turn_no, tool_call_no=turn_no))
    told.append(tell("reward_assigned", **ids, value=reward, verifier="tests"))
    counts = {"turns_completed": turns, "turns_failed": 0, "tool_calls": turns, "reward_due": True}
    told.append(tell("trajectory_finished", **ids, stop_reason=stop, **(counts | finished)))
    return told


def a_member(
    slot: int,
    trajectory_id: str,
    reward: float | None = None,
    exclusion: ExclusionReason | None = None,
    *,
    masked: bool = False,
) -> Member:
    """What a decision told by hand says of one attempt; it votes unless excluded."""
    return Member(
        slot=slot,
        trajectory_id=trajectory_id,
        reward_event_id=None,
        reward=reward,
        votes=exclusion is None,
        exclusion_reason=exclusion,
        masked=masked,
        advantage=None,
        tokens_verified=True,
    )


def opened(tell: Teller, group: int, size: int, **fields: Any) -> Any:
    usual = {"group_id": group_id(group), "task_id": f"task {group}", "expected_size": size}
    return tell("group_opened", **(usual | {"policy_version": 3} | fields))


def a_group(
    group: int, rewards: Sequence[float | None], *, incarnation: str = AGENT, **fields: Any
) -> list[Told]:
    """A whole group; a reward of None is a verifier that gave none."""
    of_group = {key: fields.pop(key) for key in ("target_step", "policy_version") if key in fields}
    tell = Teller(incarnation, seed=group)
    told: list[Told] = [opened(tell, group, len(rewards), **of_group)]
    for slot, reward in enumerate(rewards):
        told += an_attempt(tell, group, slot, reward, **fields)
    return told


class Desk:
    """An assembler without a log: what it decides it reads back at once."""

    def __init__(self, settings: AssemblerSettings = SETTINGS, partitions: int = 1) -> None:
        self.state = RunState(RUN, settings, Peers())
        self.rules = load_rules(settings.rules)
        self.encoder = FactEncoder("assembler", RUN, an_id("assembler"))
        self.partitions = partitions
        self.ends: dict[TopicPartition, int] = {}
        self.time_us = to_micros(AT)
        self.settled = False
        self.appended: list[Any] = []
        """Everything decided so far."""
        self.records: list[tuple[TopicPartition, int, int, Told]] = []
        """Everything read so far, with its place and time."""

    def read(self, *told: Told) -> Desk:
        """Read facts and payloads, a second of the log's clock for each."""
        for each in told:
            self.time_us += 1_000_000
            key = each.run_id if isinstance(each, Fact) else each.group_id
            key = getattr(each, "group_id", key)
            topic = "tokens" if isinstance(each, TurnTokens) else "events"
            place = TopicPartition(topic, int(key[:4], 16) % self.partitions)
            offset = self.ends.get(place, 0)
            self.ends[place] = offset + 1
            self.records.append((place, offset, self.time_us, each))
            self._take(place, offset, self.time_us, each)
        self.state.low_water.passed(self.state.clock.us, dict(self.ends))
        return self

    def _take(self, place: TopicPartition, offset: int, at_us: int, told: Told) -> None:
        if isinstance(told, TurnTokens):
            self.state.take_tokens(place.partition, offset, at_us, told)
        else:
            self.state.take_event(place.partition, offset, at_us, told)

    def killed(self, chance: random.Random) -> Desk:
        """Another assembler that reads from the low-water of the newest batch to the end, one
        partition ahead of the other as chance has it."""
        heir = Desk(self.state.settings, self.partitions)
        heir.ends, heir.time_us, heir.records = dict(self.ends), self.time_us, self.records
        heir.appended = self.appended
        batches = [fact for fact in self.appended if isinstance(fact, BatchAssembled)]
        low: dict[TopicPartition, int] = {}
        if batches:
            heir.state.resume(batches[-1])
            low = positions_of(batches[-1].low_water)
        heir.state.low_water.passed(0, {place: low.get(place, 0) for place in self.ends})
        left: dict[TopicPartition, list[Any]] = {}
        for record in reversed(self.records):
            if record[1] >= low.get(record[0], 0):
                left.setdefault(record[0], []).append(record)
        while left:
            place = chance.choice(sorted(left))
            heir._take(*left[place].pop())
            if not left[place]:
                del left[place]
        heir.state.low_water.passed(heir.state.clock.us, dict(heir.ends))
        return heir

    def wait(self, seconds: float) -> Desk:
        """Time passes by the log's clock, and the log has been read to its end for a lease."""
        self.time_us += int(seconds * 1_000_000)
        self.state.clock.read(self.time_us)
        self.settled = True
        return self

    def decide(self) -> list[Any]:
        """Decide until nothing more is to be decided; what was appended."""
        appended: list[Any] = []
        while made := self._once():
            self.read(*made)
            appended += made
        self.appended += appended
        return appended

    def decided(self) -> dict[int, str]:
        """Group -> what became of it: `batch`, `dropped: stale`; the last decision counts."""
        numbers = {group_id(number): number for number in range(100)}
        return {
            numbers[fact.group_id]: f"{fact.decision}: {fact.drop_reason}"
            if fact.drop_reason
            else str(fact.decision)
            for fact in self.appended
            if isinstance(fact, GroupDecided)
        }

    def _once(self) -> list[Any]:
        now = Now(self.state.clock.us, self.settled)
        silent = self.state.leases.silent(now, self.state.settings.lease_s)
        bereft = sorted(self.state.leases.newly_bereft(silent))
        context = context_of(self.state, self.rules, now, silent)
        found = plan(self.state, context, [*self.state.due(now), *bereft])
        looked(self.state, found)
        if not found:
            return []
        cut = cut_of(self.ends, now, self.state.versions.newest, self.state.settings)
        low_water = Positions()
        if found.batch is not None:
            low_water = self.state.low_water.positions(self.ends, self.state.batches.values())
            self.state.forget_batches(low_water)
        encoded = self.encoder.encode(drafts_of(self.state, found, self.rules, cut, low_water))
        assert encoded.refused == []
        return [decode(record.value) for record in encoded.events]


def members_of(facts: Iterable[Any], group: int) -> list[tuple[int, str, float | None]]:
    """(slot, `votes` or the exclusion, advantage rounded) of a group's last decision."""
    decision = [f for f in facts if isinstance(f, GroupDecided) and f.group_id == group_id(group)][
        -1
    ]
    return [
        (
            each.slot,
            "masked" if each.masked else str(each.exclusion_reason or "votes"),
            None if each.advantage is None else round(each.advantage, 4),
        )
        for each in decision.members
    ]


def without(told: Iterable[Told], *kinds: type) -> list[Told]:
    """All but facts of these classes."""
    return [each for each in told if not isinstance(each, kinds)]


def changed(told: Iterable[Told], kind: type, **fields: Any) -> list[Told]:
    """The same, with these fields of every fact of one class."""
    return [
        dataclasses.replace(each, **fields) if isinstance(each, kind) else each for each in told
    ]
