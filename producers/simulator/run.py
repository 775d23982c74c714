"""A whole simulated run, as drafts in the order of their times.

Invariant: everything follows from the plan and the seed. Every attempt draws from a stream of its
own (of seed, plan's name and place), so that one that ends early leaves the others as they are.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from random import Random

from ledger.wire.checks import to_micros
from ledger.wire.encoder import Draft
from producers.simulator.attempt import live
from producers.simulator.lived import Lived, Seat, cut
from producers.simulator.plan import RunPlan, Span
from producers.simulator.room import Room
from producers.simulator.samples import Samples
from producers.simulator.scope import (
    declare_resources,
    declare_run,
    engines_of,
    pass_rates,
    plan_data,
    task_id,
)
from producers.simulator.teller import NAMESPACE, Teller, derived
from producers.simulator.training import Step, step_facts

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When a simulated run begins, unless told otherwise."""


@dataclass(frozen=True)
class SimulatedRun:
    """A plan that is lived through with one seed."""

    plan: RunPlan
    """What it is like."""
    seed: int
    """Another seed is another run of the same plan."""
    start: datetime = START
    """Its zero, UTC."""
    for_copies: bool = False
    """Ids as `copies.py` needs them, in place of derived ones."""

    @cached_property
    def run_id(self) -> str:
        """UUID (version 5) of plan, seed and start."""
        whole = [plan_data(self.plan), self.seed, self.start.isoformat()]
        return derived(NAMESPACE, json.dumps(whole, sort_keys=True), marked=self.for_copies)

    @cached_property
    def teller(self) -> Teller:
        """Makes its facts and ids."""
        return Teller(
            self.run_id,
            to_micros(self.start),
            f"simulated: {self.plan.name}, seed {self.seed}",
            for_copies=self.for_copies,
        )

    def drafts(self) -> Iterator[Draft]:
        """All its facts."""
        return _Course(self).run()


class _Course:
    """A run as it goes."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._plan = plan = run.plan
        self._tell = run.teller
        self._room = Room()
        self._samples = Samples(plan.sample_every_s)
        self._rates = pass_rates(plan)
        self._groups = itertools.count()
        self._spans = list(_starts(plan))
        self._ahead = list(self._spans)
        self._span = plan.spans[0]
        self._engines = engines_of(self._span.resources, run.run_id)
        self._attempts = 0
        self._held: list[tuple[float, int, Draft]] = []
        """A heap: (seconds of the run, place among all that were told, fact)."""
        self._told = 0

    def run(self) -> Iterator[Draft]:
        """All facts."""
        plan, tell = self._plan, self._tell
        yield from declare_run(plan, tell, self._run.seed)
        yield self._next_span()
        if plan.training is not None:
            yield from self._train()
        elif (end_s := _end_of(plan)) is not None:
            yield from self._stream(end_s)
        else:
            for _ in range(plan.tasks):
                self._group(0.0, plan.policy_version)
        yield from self._until(None)
        spans = [(at, span, engines_of(span.resources, tell.run_id)) for at, span in self._spans]
        yield from self._samples.facts(tell, spans, tell.an_id("engines"))

    def _next_span(self) -> Draft:
        at_s, self._span = self._ahead.pop(0)
        resources = self._span.resources
        self._engines = engines_of(resources, self._tell.run_id)
        self._room.grow(at_s, resources.trajectory_concurrency, resources.sandbox_slots)
        return declare_resources(resources, at_s, self._tell)

    def _stream(self, end_s: float) -> Iterator[Draft]:
        """Groups without a pause until the last span is over; who is in flight then is cut."""
        while True:
            while self._ahead and self._ahead[0][0] <= self._room.next_s:
                self._hold(self._ahead[0][0], self._next_span())
            opened_s = self._room.next_s
            if opened_s >= end_s:
                return
            self._group(opened_s, self._plan.policy_version, end_s=end_s)
            yield from self._until(opened_s)

    def _train(self) -> Iterator[Draft]:
        training = self._plan.training
        assert training is not None
        chance = Random(f"{self._run.seed}/{self._plan.name}/training")
        end_s = 0.0
        yield self._tell.tell("trainer", "trainer_started", 0.0, {"policy_version": 0})
        for number in range(1, training.steps + 1):
            step = Step.begin(number, end_s, training, self._engines, chance)
            lived = [
                each
                for _ in range(training.groups_per_step)
                for each in self._group(step.rollouts_s, number - 1, target_step=number)
            ]
            step = step.trained(lived, training, chance)
            for at_s, draft in step_facts(step, self._tell):
                self._hold(at_s, draft)
            end_s = step.end_s
            yield from self._until(end_s)

    def _group(
        self,
        opened_s: float,
        version: int,
        target_step: int | None = None,
        end_s: float | None = None,
    ) -> list[Lived]:
        """One group: opened, and each of its attempts lived through."""
        number = next(self._groups)
        task = number % self._plan.tasks
        group_id = self._tell.an_id(f"group/{number}")
        opened = {
            "group_id": group_id,
            "task_id": task_id(task),
            "expected_size": self._plan.group_size,
            "target_step": target_step,
            "policy_version": version,
        }
        key = f"group/{number}/opened"
        self._hold(opened_s, self._tell.tell(key, "group_opened", opened_s, opened))
        lived: list[Lived] = []
        for slot in range(self._plan.group_size):
            seat = Seat(
                group_id,
                slot,
                self._tell.an_id(f"attempt/{number}/{slot}"),
                task_id(task),
                self._engines[self._attempts % len(self._engines)],
                version,
                self._rates[task],
                opened_s,
            )
            self._attempts += 1
            if (attempt := self._attempt(seat, f"{number}/{slot}", end_s)) is not None:
                lived.append(attempt)
        return lived

    def _attempt(self, seat: Seat, name: str, end_s: float | None) -> Lived | None:
        """One attempt; none where the run ends before it could start."""
        admitted = self._room.admit(seat.opened_s)
        if end_s is not None and admitted.started_s >= end_s:
            self._room.leave(admitted.started_s)
            return None
        chance = Random(f"{self._run.seed}/{self._plan.name}/{name}")
        lived = live(self._plan.attempt, seat, admitted, self._tell, chance)
        self._room.leave(lived.end_s)
        if end_s is not None:
            lived = cut(lived, end_s, seat, self._tell)
        for at_s, draft in lived.facts:
            self._hold(at_s, draft)
        self._samples.add(lived.stays, admitted.slot_s)
        return lived

    def _hold(self, at_s: float, draft: Draft) -> None:
        heapq.heappush(self._held, (at_s, self._told, draft))
        self._told += 1

    def _until(self, at_s: float | None) -> Iterator[Draft]:
        """What was held back and happened before `at_s`; all of it: None."""
        while self._held and (at_s is None or self._held[0][0] < at_s):
            yield heapq.heappop(self._held)[2]


def _starts(plan: RunPlan) -> Iterator[tuple[float, Span]]:
    at_s = 0.0
    for span in plan.spans:
        yield at_s, span
        at_s += span.seconds or 0.0


def _end_of(plan: RunPlan) -> float | None:
    """When the last span is over; null: when all groups have ended."""
    if plan.spans[-1].seconds is None:
        return None
    return sum(span.seconds or 0.0 for span in plan.spans)
