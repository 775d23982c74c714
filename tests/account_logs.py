"""Logs to read accounts from: what a run's producers, assembler and trainer tell, in seconds.

STORIES = Stories()

@STORIES.told
def slow(story: Story) -> None:
    story.group(1, size=2, step=1)
    story.attempt(1, 0, 0.0, 12.5)

ask = STORIES.book(folder); ask(slow, "step_time", "wall_s, waiting_s", "ORDER BY step")

To make a book takes longer than a test, so one has the runs of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import duckdb

from ledger.facts import Cut, Fact, PhaseSpan
from ledger.facts.lists import ExclusionReason, Outcome, Phase, RunKind, StopReason
from ledger.kept import KEPT, kin
from ledger.one_run import OneRun, covers
from ledger.open_log import open_log
from ledger.some_runs import SomeRuns
from tests.accounts import in_order
from tests.assembled import a_member
from tests.books import append, projected
from tests.builders import a_fact, an_id

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TRUNCATING = (
    StopReason.TURN_CAP,
    StopReason.OUTPUT_CAP,
    StopReason.CONTEXT_CAP,
    StopReason.CLOCK_CAP,
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Story:
    """One run, told in seconds after START; what is told later may have happened earlier."""

    def __init__(self, name: str, kind: RunKind = RunKind.TRAIN) -> None:
        self.run_id = an_id(name)
        self.name = name
        self._told: list[tuple[float, Fact]] = []
        self.tell("run_declared", 0.0, kind=kind, name=name, pass_threshold=1.0)

    def group_id(self, group: int) -> str:
        return an_id(f"{self.name}/group", group)

    def trajectory_id(self, group: int, slot: int, refill: int = 0) -> str:
        return an_id(f"{self.name}/trajectory {group}/{slot}", refill)

    def trainer(self, life: int = 0) -> str:
        """An incarnation, as the book has it."""
        return an_id(f"{self.name}/{an_id('trainer', life)}")

    def ids(self, group: int, slot: int, refill: int = 0) -> dict[str, Any]:
        """What every fact about an attempt needs."""
        return {
            "group_id": self.group_id(group),
            "slot": slot,
            "trajectory_id": self.trajectory_id(group, slot, refill),
        }

    def tell(self, name: str, seconds: float, /, **fields: Any) -> None:
        """A fact that happened then."""
        usual = {"run_id": self.run_id, "occurred_at": at(seconds)}
        self._told.append((seconds, a_fact(name, only_required=True, **(usual | fields))))

    def resources(self, seconds: float, **declared: Any) -> None:
        self.tell("resources_declared", seconds, **declared)

    def group(self, group: int, size: int, *, opened: float = 0.0, step: int | None = None) -> None:
        self.tell(
            "group_opened",
            opened,
            group_id=self.group_id(group),
            task_id=f"task {group}",
            expected_size=size,
            target_step=step,
        )

    def attempt(
        self,
        group: int,
        slot: int,
        start: float,
        end: float | None,
        *,
        refill: int = 0,
        stop: StopReason = StopReason.SUBMITTED,
        reward: float | None = 1.0,
        queue_s: float | None = None,
        rule_set: int | None = 1,
        **judged: Any,
    ) -> dict[str, Any]:
        """One that started and, unless `end` is None, ended, was scored and judged; its ids."""
        ids = self.ids(group, slot, refill)
        self.tell("trajectory_started", start, **ids, task_id=f"task {group}", queue_s=queue_s)
        if end is None:
            return ids
        self.tell("reward_assigned", end, **ids, value=reward, verifier="tests")
        self.tell("trajectory_finished", end, **ids, stop_reason=stop, reward_due=True)
        if rule_set is not None:
            self.judge(ids, end, rule_set, **({"outcome": _outcome(stop)} | judged))
        return ids

    def judge(self, ids: dict[str, Any], seconds: float, rule_set: int = 1, **judged: Any) -> None:
        usual = {"outcome": Outcome.COMPLETED, "trainable": True}
        self.tell("trajectory_judged", seconds, **ids, rule_set=rule_set, **(usual | judged))

    def decide(
        self,
        group: int,
        seconds: float,
        size: int,
        *,
        excluded: Sequence[int] = (),
        decision: str = "batch",
        **fields: Any,
    ) -> None:
        """The group is decided: its slots vote, but for those excluded."""
        members = [
            a_member(
                slot,
                self.trajectory_id(group, slot),
                exclusion=ExclusionReason.INFRASTRUCTURE if slot in excluded else None,
            )
            for slot in range(size)
        ]
        usual = {"rule_set": 1, "algorithm": "grpo", "cut": _cut(seconds)}
        self.tell(
            "group_decided",
            seconds,
            group_id=self.group_id(group),
            decision=decision,
            members=members,
            **(usual | fields),
        )

    def batch(self, step: int, groups: Sequence[int], ready: float, held_s: float = 0.0) -> str:
        """A batch for a step; its id."""
        batch_id = an_id(f"{self.name}/batch", step)
        self.tell(
            "batch_assembled",
            ready + held_s,
            batch_id=batch_id,
            step=step,
            group_ids=[self.group_id(group) for group in groups],
            ready_at=at(ready),
            held_s=held_s,
            cut=_cut(ready + held_s),
        )
        return batch_id

    def step(
        self,
        step: int,
        start: float,
        end: float,
        phases: Sequence[tuple[Phase, float, float]] = (),
        *,
        life: int = 0,
        **fields: Any,
    ) -> None:
        """A step of one life of the trainer; each phase from second to second of the story."""
        self.tell(
            "step_completed",
            end,
            step=step,
            incarnation=an_id("trainer", life),
            started_at=at(start),
            wall_s=end - start,
            phases=[PhaseSpan(phase, a - start, b - a) for phase, a, b in phases],
            **fields,
        )

    @property
    def facts(self) -> list[Fact]:
        """In the order of time, numbered by incarnation."""
        return in_order(
            replace(
                fact,
                event_id=an_id(f"{self.name}/fact", number),
                incarnation=an_id(f"{self.name}/{fact.incarnation}"),
            )
            for number, (_, fact) in enumerate(sorted(self._told, key=lambda told: told[0]))
        )


def _outcome(stop: StopReason) -> Outcome:
    if stop in TRUNCATING:
        return Outcome.TRUNCATED
    ends = {StopReason.CANCELLED: Outcome.CANCELLED, StopReason.ERROR: Outcome.ERRORED}
    return ends.get(stop, Outcome.COMPLETED)


def _cut(seconds: float) -> Cut:
    return Cut(
        positions={},
        log_time=at(seconds),
        policy_version=None,
        configuration="{}",
        configuration_sha256="0" * 64,
    )


class Ask(Protocol):
    """What a view says of a run; a row of one column is its value, and ids are text."""

    def __call__(self, of: Story, view: str, columns: str, rest: str = "") -> list[Any]: ...


class Stories:
    """The runs of a module."""

    def __init__(self) -> None:
        self._stories: list[Story] = []

    def told(self, tell: Callable[[Story], None]) -> Story:
        """A run of the function's name, as it tells it."""
        story = Story(tell.__name__)
        tell(story)
        return self.add(story)

    def add(self, story: Story) -> Story:
        """A run told elsewhere; its name is its own."""
        self._stories.append(story)
        return story

    def book(self, folder: Path) -> Ask:
        """A book of the log of all of them. Whoever asks is answered of the whole book, and of one
        run alone where that must be the same."""
        url, path = f"sqlite:///{folder / 'log.db'}", folder / "book"
        facts = [fact for story in self._stories for fact in story.facts]
        with open_log(url) as log:
            append(log, facts)
        inserted = projected(url, path)
        assert (inserted.facts, inserted.quarantined, inserted.duplicates) == (len(facts), 0, 0)
        book = duckdb.connect(str(path), read_only=True)
        book.execute("SET TimeZone = 'UTC'")
        one_run, some_runs = OneRun(book), SomeRuns(book)

        def ask(of: Story, view: str, columns: str, rest: str = "") -> list[Any]:
            query = f"SELECT {columns} FROM {view} WHERE run_id = ? {rest}"
            found = [_plain(row) for row in book.execute(query, [of.run_id]).fetchall()]
            cursors = list[duckdb.DuckDBPyConnection]()
            if covers(view):
                one_run.show(UUID(of.run_id)).prepare(query)
                cursors.append(one_run.cursor)
            if KEPT.get(view) == view:
                some_runs.show(kin(book, view, {UUID(of.run_id)}), query)
                cursors.append(some_runs.cursor)
            for cursor in cursors:
                alone = cursor.execute(query, [of.run_id]).fetchall()
                assert len(alone) == len(found)
                if columns != "*":  # whole rows may have any of several values
                    assert [_plain(row) for row in alone] == found
            return found

        return ask


def _plain(row: tuple[Any, ...]) -> Any:
    values = tuple(
        str(each)
        if type(each).__name__ == "UUID"
        else round(each, 6)
        if isinstance(each, float)
        else each
        for each in row
    )
    return values[0] if len(values) == 1 else values
