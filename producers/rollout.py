"""Groups of attempts: opened in order, with a limit on the attempts in flight.

Invariant: a group is opened, as a fact, before its first attempt starts, and every slot of it
starts or the process ends. An attempt in flight when the rollout is cancelled ends as `cancelled`;
a slot that had not started stays `never_started`. A refill is another attempt in its slot, never
another slot.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterable
from dataclasses import dataclass, field

from ledger.facts import GroupDecided
from ledger.log import LogError
from ledger.recorder import Recorder
from producers.agent import Agent, Ending
from producers.engine import EngineError
from producers.raw_type import raw_type
from producers.refills import Refills
from producers.sandbox import SandboxError
from producers.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Group:
    """A task that is about to be attempted."""

    task: Task
    size: int
    """Attempts that are scored together: its slots."""
    policy_version: int | None
    """The newest published version; None: unknown."""
    target_step: int | None = None
    """The training step that it is sampled for; None: none in particular."""
    group_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """UUID of the group."""


@dataclass(slots=True)
class Tally:
    """What became of the attempts so far."""

    groups: int = 0
    attempts: int = 0
    """Attempts that ended, those cancelled included."""
    stop_reasons: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    """By raw class, of attempts that an error ended."""
    rewards: list[float] = field(default_factory=list[float])
    """Of the attempts that a verifier scored."""


class RolloutBroken(Exception):
    """Attempt after attempt failed for lack of an engine or a sandbox. To go on would only use the
    tasks up."""


class FailureRow:
    """Attempts in a row that an engine or a sandbox kept from a score."""

    def __init__(self, patience: int) -> None:
        """`patience`: so many are one too many."""
        self._patience = patience
        self._length = 0

    def add(self, ending: Ending) -> None:
        """Raises RolloutBroken for one failure too many. A scored attempt ends the row, whatever
        ended it: a policy that breaks its sandbox is no lack of sandboxes."""
        failed = isinstance(ending.error, EngineError | SandboxError) and ending.reward is None
        self._length = self._length + 1 if failed else 0
        if self._length >= self._patience:
            raise RolloutBroken(
                f"fewer than {self._patience} attempts in a row may fail, got"
                f" {self._length}; the last in {ending.stage}: {ending.error}"
            )


class Rollout:
    """Runs groups. One object per run."""

    def __init__(self, agent: Agent, recorder: Recorder, concurrency: int, tally: Tally) -> None:
        """`tally` is kept up to date."""
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self._agent = agent
        self._recorder = recorder
        self._room = asyncio.Semaphore(concurrency)
        self._refilling = False
        self._undecided: dict[str, Group] = {}
        self._in_flight: Counter[str] = Counter()
        self._decided = asyncio.Event()
        self._failures = FailureRow(patience=max(2 * concurrency, 16))
        self.tally = tally

    async def run(self, groups: AsyncIterable[Group], refills: Refills | None = None) -> None:
        """Open and run `groups` to their end. The next group is asked for only when an attempt
        of it could start, so a source may hold back (that is how back-pressure is made).

        With `refills` it ends when all its groups are decided, and answers requests until then.

        Raises RolloutBroken when attempt after attempt fails for lack of an engine or a sandbox."""
        self._refilling = refills is not None
        try:
            await self._run(groups, refills)
        except BaseExceptionGroup as failed:
            # The first cause, not the group of those that it cancelled.
            if (known := failed.subgroup((RolloutBroken, LogError))) is not None:
                raise known.exceptions[0] from None
            raise

    async def _run(self, groups: AsyncIterable[Group], refills: Refills | None) -> None:
        source = aiter(groups)
        async with asyncio.TaskGroup() as attempts:
            answering = attempts.create_task(self._answer(refills, attempts)) if refills else None
            await self._room.acquire()
            while (group := await anext(source, None)) is not None:
                opened_at = self._open(group)
                for slot in range(group.size):
                    attempts.create_task(self._attempt(group, slot, opened_at))
                    await self._room.acquire()
            self._room.release()
            if answering is not None:
                while self._undecided:
                    self._decided.clear()
                    await self._decided.wait()
                answering.cancel()

    async def _answer(self, refills: Refills, attempts: asyncio.TaskGroup) -> None:
        async for fact in refills.facts():
            if isinstance(fact, GroupDecided):
                self._undecided.pop(fact.group_id, None)
                self._decided.set()
            elif (group := self._undecided.get(fact.group_id)) is not None:
                attempts.create_task(self._refill(group, fact.slot, fact.trajectory_id))

    async def _refill(self, group: Group, slot: int, replaces: str) -> None:
        asked_at = time.monotonic()
        await self._room.acquire()
        if group.group_id in self._undecided:
            await self._attempt(group, slot, asked_at, replaces)
        else:  # its deadline passed while this waited
            self._room.release()

    def _open(self, group: Group) -> float:
        if self._refilling:
            self._undecided[group.group_id] = group
        self._recorder.group_opened(
            group_id=group.group_id,
            task_id=group.task.task_id,
            expected_size=group.size,
            target_step=group.target_step,
            policy_version=group.policy_version,
        )
        self.tally.groups += 1
        return time.monotonic()

    async def _attempt(
        self, group: Group, slot: int, asked_at: float, replaces: str | None = None
    ) -> None:
        self._in_flight[group.group_id] += 1
        try:
            trajectory_id = str(uuid.uuid4())
            recorder = self._recorder.bind(
                group_id=group.group_id, slot=slot, trajectory_id=trajectory_id
            )
            recorder.trajectory_started(
                task_id=group.task.task_id,
                replaces=replaces,
                queue_s=time.monotonic() - asked_at,
            )
            ending = await self._agent.attempt(group.task, recorder, trajectory_id)
            self._count(ending)
            self._failures.add(ending)
        except asyncio.CancelledError:
            self.tally.attempts += 1
            self.tally.stop_reasons["cancelled"] += 1
            raise
        finally:
            self._room.release()
            self._in_flight[group.group_id] -= 1
            if not self._in_flight[group.group_id]:
                del self._in_flight[group.group_id]
                self._recorder.hurry()  # the assembler may decide about the group

    def _count(self, ending: Ending) -> None:
        tally = self.tally
        tally.attempts += 1
        tally.stop_reasons[ending.stop_reason] += 1
        if ending.error is not None:
            tally.errors[raw_type(ending.error)] += 1
        if ending.reward is not None:
            tally.rewards.append(ending.reward)
