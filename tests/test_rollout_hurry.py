"""A rollout says when somebody waits for its facts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ledger.facts.lists import Stage, StopReason
from ledger.recorder import Recorder
from producers.agent import Ending
from producers.rollout import Group, Rollout, Tally
from producers.tasks.load import load_tasks
from tests.builders import an_id


class Told(Recorder):
    """Notes how many attempts had ended whenever somebody was in a hurry."""

    def __init__(self, folder: Path) -> None:
        self.ended = 0
        self.at: list[int] = []
        super().__init__(
            f"sqlite:///{folder}/log.db", producer="p", run_id=an_id("run"), spool_dir=folder
        )

    def hurry(self) -> None:
        self.at.append(self.ended)


class Instant:
    """An agent whose attempts end at once."""

    def __init__(self, told: Told) -> None:
        self.told = told

    async def attempt(self, *_: Any) -> Ending:
        await asyncio.sleep(0)
        self.told.ended += 1
        return Ending(StopReason.SUBMITTED, Stage.VERIFY, reward=1.0)


async def two_groups() -> AsyncIterator[Group]:
    for task in list(load_tasks("micro_repair:train").tasks)[:2]:
        yield Group(task, 3, None)


def test_a_groups_facts_are_hurried_when_its_last_attempt_has_ended(tmp_path: Path) -> None:
    with Told(tmp_path) as told:
        rollout = Rollout(Instant(told), told, 3, Tally())  # type: ignore[arg-type]
        asyncio.run(rollout.run(two_groups()))
        assert (told.at, rollout.tally.attempts) == ([3, 6], 6)
