"""What is recorded: an agent's trajectories, and everything else that a training run says.

Made from a seed, so that every run and every peer gets the same facts (but for ids and times).
Calls go to anything with the recorder's calls: a live `Recorder`, or `Drafts`, which keeps them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any

from ledger.facts import Member, PhaseSpan, PoolUse, VersionSpan
from ledger.facts.decisions import Cut
from ledger.facts.lists import Phase
from ledger.recorder import BoundRecorder
from ledger.recording.calls import RecordCalls
from ledger.wire.encoder import Draft, now_us

RUN = "0197f3a0-0000-7000-8000-00000000beef"
ENGINES = [f"http://engine-{number}:30000" for number in range(4)]
TURNS = 10
GROUP_SIZE = 8
GROUPS_PER_STEP = 8
TRAJECTORY_FACTS = 2 * TURNS + 6
"""started, three of the sandbox, a turn and a tool call each time, reward, finished."""
WORDS = ["def", "return", "self", "import", "error", "line", "test", "expected", "value", "none"]


class Drafts(RecordCalls):
    """Keeps what is recorded through it."""

    def __init__(self) -> None:
        self.kept: list[Draft] = []

    def bind(self, /, **ids: Any) -> Any:
        """As `Recorder.bind`."""
        return BoundRecorder(self, ids)  # type: ignore[arg-type]

    def _put(self, name: str, fields: dict[str, Any]) -> None:
        self.kept.append(Draft(name, fields, now_us()))


@dataclass(frozen=True, slots=True)
class Trip:
    """The values of one trajectory, made before anything is timed."""

    ids: dict[str, Any]
    """group_id, slot, trajectory_id."""
    task_id: str
    sandbox_id: str
    turns: list[dict[str, Any]]
    """(TURNS,) fields of turn_completed: 17, and 3 that are bound."""
    commands: list[str]
    """(TURNS,) arguments of the tool calls."""
    outputs: list[str]
    """(TURNS,) what the tool calls printed: 20 to 8,000 characters."""
    reward: float


class Maker:
    """Makes trips and records all the facts of a run, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._text = " ".join(self._random.choices(WORDS, k=4_000))
        self._request = count()

    def an_id(self) -> str:
        """A UUID, version 4."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def text(self, size: int) -> str:
        """So many characters out of a long text."""
        start = self._random.randrange(len(self._text) - size)
        return self._text[start : start + size]

    def turn(self, turn_no: int) -> dict[str, Any]:
        """The fields of one turn that an agent loop with an engine's metadata has."""
        rng = self._random
        generated = rng.randrange(40, 900)
        return {
            "turn_no": turn_no,
            "segment": 0,
            "engine": rng.choice(ENGINES),
            "model": "policy-30b",
            "request_id": f"req-{next(self._request):012d}",
            "prompt_tokens": 1_000 + 900 * turn_no,
            "cached_tokens": 800 * turn_no,
            "completion_tokens": generated,
            "client_s": rng.uniform(0.5, 30.0),
            "engine_s": rng.uniform(0.5, 30.0),
            "queue_s": rng.uniform(0.0, 2.0),
            "first_token_s": rng.uniform(0.05, 1.0),
            "paused_s": 0.0,
            "cost_usd": 0.0,
            "finish_reason": "stop",
            "retractions": 0,
            "version_spans": [VersionSpan(4, 0, generated)],
        }

    def trip(self, group_id: str, slot: int) -> Trip:
        """The values of one trajectory of ten turns."""
        rng = self._random
        sizes = [min(8_000, 20 + int(rng.lognormvariate(6.2, 1.2))) for _ in range(TURNS)]
        return Trip(
            {"group_id": group_id, "slot": slot, "trajectory_id": self.an_id()},
            f"task-{rng.randrange(2_000):04d}",
            f"sandbox-{rng.getrandbits(48):012x}",
            [self.turn(turn_no) for turn_no in range(TURNS)],
            [self.text(rng.randrange(20, 300)) for _ in range(TURNS)],
            [self.text(size) for size in sizes],
            float(rng.random() < 0.4),
        )

    def trips(self) -> Iterator[Trip]:
        """Trajectories without end, group by group."""
        while True:
            group_id = self.an_id()
            for slot in range(GROUP_SIZE):
                yield self.trip(group_id, slot)

    def turns(self, facts: int) -> Iterator[Draft]:
        """So many turns, and nothing else."""
        for trip in self.trips():
            yield from [Draft("turn_completed", trip.ids | turn, now_us()) for turn in trip.turns]
            facts -= TURNS
            if facts <= 0:
                return

    def run(self, facts: int) -> Iterator[Draft]:
        """So many facts of a training run: trajectories, judgements, steps, samples."""
        return islice(self._run(), facts)

    def _run(self) -> Iterator[Draft]:
        for step in count(1):
            drafts = Drafts()
            members = [self._group(drafts, step) for _ in range(GROUPS_PER_STEP)]
            self._step(drafts, step, [group_id for group_id, _ in members])
            yield from drafts.kept

    def _group(self, drafts: Drafts, step: int) -> tuple[str, list[Member]]:
        group_id = self.an_id()
        trips = [self.trip(group_id, slot) for slot in range(GROUP_SIZE)]
        drafts.group_opened(
            group_id=group_id,
            task_id=trips[0].task_id,
            expected_size=GROUP_SIZE,
            target_step=step,
            policy_version=step - 1,
        )
        for trip in trips:
            record_trajectory(drafts, trip)
            self._sample(drafts)
        members = [self._judge(drafts, trip) for trip in trips]
        drafts.group_decided(
            group_id=group_id,
            rule_set=1,
            decision="batch",
            members=members,
            mean=0.4,
            std=0.5,
            algorithm="grpo",
            cut=Cut({"events/0": step}, datetime.now(UTC), step - 1, "{}", "0" * 64),
        )
        return group_id, members

    def _judge(self, drafts: Drafts, trip: Trip) -> Member:
        drafts.trajectory_judged(**trip.ids, rule_set=1, outcome="completed", trainable=True)
        return Member(
            trip.ids["slot"], trip.ids["trajectory_id"], self.an_id(), trip.reward, True, None,
            False, trip.reward - 0.4, True,
        )  # fmt: skip

    def _sample(self, drafts: Drafts) -> None:
        """What a clock samples meanwhile: four engines and the pools."""
        rng = self._random
        for engine in ENGINES:
            drafts.engine_sampled(
                engine=engine,
                policy_version=4,
                gpus=8,
                kv_used_tokens=rng.randrange(1_000_000),
                kv_capacity_tokens=1_000_000,
                running=rng.randrange(64),
                queued=rng.randrange(9),
                generation_tokens_per_s=rng.uniform(100.0, 4_000.0),
            )
        pools = [PoolUse("sandboxes", rng.randrange(64), 64, 0), PoolUse("http", 12, 256, 0)]
        drafts.pool_sampled(pools=pools, in_queue=3, in_model=rng.randrange(60), in_tool=9)

    def _step(self, drafts: Drafts, step: int, group_ids: list[str]) -> None:
        spans = [PhaseSpan(phase, 5.0 * at, 5.0) for at, phase in enumerate(Phase)]
        drafts.step_completed(
            step=step,
            batch_id=self.an_id(),
            from_version=step - 1,
            to_version=step,
            started_at=datetime.now(UTC),
            wall_s=60.0,
            phases=spans,
            trajectories=GROUP_SIZE * len(group_ids),
            trained_tokens=300_000,
            loss=0.01,
            grad_norm=0.3,
            metrics={"entropy": 0.4, "kl": 0.001, "clip_fraction": 0.02},
        )
        drafts.weights_published(policy_version=step, method="disk", step=step, publish_s=4.0)
        for engine in ENGINES:
            drafts.weights_applied(policy_version=step, engine=engine, success=True, apply_s=2.5)


def record_trajectory(recorder: Any, trip: Trip) -> None:
    """Record one trajectory as an agent loop does: TRAJECTORY_FACTS calls."""
    attempt = recorder.bind(**trip.ids)
    attempt.trajectory_started(task_id=trip.task_id, queue_s=0.4)
    attempt.sandbox_started(
        sandbox_id=trip.sandbox_id, backend="e2b", template="base", vcpus=2.0, start_s=1.2
    )
    attempt.sandbox_prepared(sandbox_id=trip.sandbox_id, setup_s=3.4)
    for number, (turn, command, output) in enumerate(
        zip(trip.turns, trip.commands, trip.outputs, strict=True)
    ):
        attempt.turn_completed(**turn)
        attempt.tool_call_completed(
            turn_no=number,
            tool_call_no=number,
            sandbox_id=trip.sandbox_id,
            name="bash",
            arguments=command,
            wall_s=0.8,
            sandbox_s=0.7,
            exit_code=0,
            timed_out=False,
            output=output,
        )
    attempt.sandbox_stopped(sandbox_id=trip.sandbox_id, reason="finished", lifetime_s=120.0)
    attempt.reward_assigned(
        value=trip.reward, verifier="tests", tests_passed=7, tests_failed=2, verify_s=9.5
    )
    attempt.trajectory_finished(
        stop_reason="submitted", turns_completed=TURNS, turns_failed=0, tool_calls=TURNS,
        reward_due=True, policy_clock_s=110.0,
    )  # fmt: skip
