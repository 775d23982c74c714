"""Stored attempts -> batches for supervised fine-tuning. Pure.

    attempts of some runs ─ reward, task, whole, tokens ─▶ in an order drawn by a seed ─▶ at most
    k of each task ─▶ n at a time ─▶ SftBatch ─ with payloads ─▶ TrainingBatch

Invariants:

1. The same attempts and settings give the same batches, whatever the order in which they were
   read: traces are in the order of a digest of seed and trajectory id.
2. A trace is in one batch. Each of its sampled tokens weighs the same: its advantage is 1, and no
   trace is compared with others.
3. A batch's hash covers its ordered traces and the configuration.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from consumers.advantages import usable_reward
from consumers.assembling.group_state import GroupState
from consumers.assembling.publish import batch_id_of
from consumers.assembling.settings import BadSettings, sha256_of
from consumers.assembling.token_index import TokenIndex
from consumers.batches import Payloads, samples_of_attempt
from ledger.attempt import Attempt
from ledger.batches import TrainingBatch, largest_id

WEIGHT = 1.0
"""Of every sampled token, in place of an advantage."""
TRACES_MAX = 4_000
"""Most traces of a batch: their ids have to fit into one fact."""


@dataclass(frozen=True)
class SftSettings:
    """Which traces are trained on, and in what order."""

    from_runs: tuple[str, ...]
    """UUIDs of the runs whose attempts are the traces."""
    reward_min: float = 1.0
    """Traces with less reward are left out."""
    tasks: tuple[str, ...] | None = None
    """Only traces of these tasks; null: of all."""
    traces_per_task: int | None = None
    """Most traces of one task; null: all."""
    traces_per_batch: int = 32
    """The last batch may have fewer."""
    seed: int = 0
    """Draws the order, and so which traces of a task are taken."""
    tokenizer: str | None = None
    """Name or digest of the tokenizer, for the batch's header."""
    vocabulary_size: int | None = None
    """Token ids are below this; traces with others are left out. Null: not checked."""

    def __post_init__(self) -> None:
        if not self.from_runs:
            raise BadSettings("traces must come from at least 1 run, got none (--from)")
        if len(set(self.from_runs)) < len(self.from_runs):
            raise BadSettings(f"runs must be given once, got {' '.join(self.from_runs)} (--from)")
        if not math.isfinite(self.reward_min):
            raise BadSettings(f"reward_min must be a finite number, got {self.reward_min}")
        if self.tasks is not None and not self.tasks:
            raise BadSettings("tasks must be at least 1, got none")
        for what, value, most in (
            ("traces_per_task", self.traces_per_task, None),
            ("traces_per_batch", self.traces_per_batch, TRACES_MAX),
            ("vocabulary_size", self.vocabulary_size, None),
        ):
            if value is not None and value < 1:
                raise BadSettings(f"{what} must be at least 1, got {value}")
            if value is not None and most is not None and value > most:
                raise BadSettings(f"{what} must be at most {most}, got {value}")

    @classmethod
    def read(cls, canonical: str) -> SftSettings:
        """What `canonical` gave. Raises BadSettings."""
        try:
            fields = json.loads(canonical)
            tasks = fields["tasks"]
            fields |= {"from_runs": tuple(fields["from_runs"])}
            return cls(**(fields | {"tasks": None if tasks is None else tuple(tasks)}))
        except (ValueError, KeyError, TypeError) as error:
            raise BadSettings(f"a cut's configuration can't be read: {error}") from None

    @cached_property
    def canonical(self) -> str:
        """All settings as JSON, the same text for the same settings."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))


class Trace(NamedTuple):
    """An attempt that may be trained on."""

    attempt: Attempt
    group: GroupState

    @property
    def task_id(self) -> str:
        """The task, by the attempt's start or its group."""
        started, opened = self.attempt.started, self.group.opened
        if started is not None:
            return started.task_id
        return opened.task_id if opened is not None else ""

    @property
    def digests(self) -> list[str]:
        """Of its payloads."""
        return [turn.tokens_sha256 for turn in self.attempt.turns if turn.tokens_sha256 is not None]


class SftBatch(NamedTuple):
    """What one step trains on."""

    traces: tuple[Trace, ...]
    """In order."""

    @property
    def trace_ids(self) -> list[str]:
        """Their trajectory ids."""
        return [each.attempt.trajectory_id for each in self.traces]

    @property
    def digests(self) -> dict[str, list[str]]:
        """Group -> digests of the payloads that it is made of."""
        found: dict[str, list[str]] = {}
        for each in self.traces:
            found.setdefault(each.group.group_id, []).extend(each.digests)
        return found

    def sha256(self, configuration: str) -> str:
        """Digest of the ordered traces and the configuration."""
        configured = sha256_of(configuration)
        content = {"configuration": configured, "traces": self.trace_ids, "weight": WEIGHT}
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        return sha256_of(text)


def candidates(groups: Iterable[GroupState], settings: SftSettings) -> list[Trace]:
    """Attempts that are whole and good enough, in the order drawn; their tokens aside."""
    found = [
        Trace(attempt, group)
        for group in groups
        for attempt in group.attempts.values()
        if _good(attempt, settings.reward_min)
    ]
    if settings.tasks is not None:
        tasks = frozenset(settings.tasks)
        found = [trace for trace in found if trace.task_id in tasks]
    return sorted(found, key=lambda trace: _draw(settings.seed, trace.attempt.trajectory_id))


def chosen(traces: Iterable[Trace], tokens: TokenIndex, settings: SftSettings) -> Iterator[Trace]:
    """Of the candidates in order, those whose tokens are there: at most so many of each task."""
    taken: Counter[str] = Counter()
    most = settings.traces_per_task
    for trace in traces:
        if most is not None and taken[trace.task_id] >= most:
            continue
        if has_tokens(trace, tokens):
            taken[trace.task_id] += 1
            yield trace


def has_tokens(trace: Trace, tokens: TokenIndex) -> bool:
    """Whether all payloads of a trace are there and can be trained on."""
    return all(tokens.verified(trace.group.group_id, sha256) for sha256 in trace.digests)


def batches_of(traces: Sequence[Trace], settings: SftSettings) -> list[SftBatch]:
    """(n,) batches in order."""
    size = settings.traces_per_batch
    return [SftBatch(tuple(traces[at : at + size])) for at in range(0, len(traces), size)]


def training_batch(
    run_id: str,
    model: str | None,
    batch: SftBatch,
    payloads: Payloads,
    settings: SftSettings,
    configuration: str,
) -> TrainingBatch:
    """The batch, ready to train on. Raises KeyError for a payload that is missing."""
    sha256 = batch.sha256(configuration)
    samples = [
        sample
        for attempt, group in batch.traces
        for spans in [group.spans.get(attempt.trajectory_id, {})]
        for sample in samples_of_attempt(attempt, spans, WEIGHT, payloads)
    ]
    return TrainingBatch(
        run_id=run_id,
        batch_id=batch_id_of(run_id, sha256),
        batch_sha256=sha256,
        trace_ids=batch.trace_ids,
        configuration=configuration,
        model=model,
        tokenizer=settings.tokenizer,
        vocabulary_size=settings.vocabulary_size,
        max_token_id=largest_id(samples),
        samples=samples,
    )


def _good(attempt: Attempt, reward_min: float) -> bool:
    """Whether an attempt is whole and has the reward, and something to train on."""
    reward = attempt.reward
    if reward is None or reward.value is None or not usable_reward(reward.value):
        return False
    turns = attempt.turns
    sampled = any(turn.completion_tokens != 0 for turn in turns)
    told = all(turn.tokens_sha256 is not None for turn in turns)
    return reward.value >= reward_min and attempt.complete and sampled and told


def _draw(seed: int, trajectory_id: str) -> str:
    return sha256_of(f"{seed}/{trajectory_id}")
