"""A decided batch and its payloads -> what the trainer trains on. Pure.

Invariants:

1. A sample is a stretch of turns of one segment, their tokens one behind the other, bit by bit as
   the engine gave them. All segments of a trajectory have its advantage.
2. Only members that vote and aren't masked have samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from consumers.advantages import mean_and_std
from consumers.assembling.batching import NextBatch, Queued
from consumers.assembling.group_state import Spans
from consumers.assembling.publish import batch_id_of
from consumers.assembling.settings import AssemblerSettings
from ledger.attempt import Attempt, Turn
from ledger.batches import Sample, SampleSpan, TrainingBatch, largest_id
from ledger.facts import Member
from ledger.tokens import Columns

Payloads = Mapping[str, Columns]
"""Digest -> columns."""


def digests_of(batch: NextBatch) -> dict[str, list[str]]:
    """Group -> digests of the payloads that its samples are made of."""
    return {
        queued.group.group_id: [
            turn.tokens_sha256
            for member in trained(queued)
            for turn in queued.group.attempts[member.trajectory_id].turns
            if turn.tokens_sha256 is not None
        ]
        for queued in batch.groups
    }


def training_batch(
    run_id: str,
    model: str | None,
    batch: NextBatch,
    payloads: Payloads,
    policy_version: int | None,
    settings: AssemblerSettings,
) -> TrainingBatch:
    """The batch, ready to train on."""
    sha256 = batch.sha256(settings.sha256)
    samples = [sample for queued in batch.groups for sample in samples_of(queued, payloads)]
    return TrainingBatch(
        run_id=run_id,
        batch_id=batch_id_of(run_id, sha256),
        batch_sha256=sha256,
        step=batch.step,
        policy_version=policy_version,
        max_staleness=settings.staleness_bound,
        group_ids=[each.group.group_id for each in batch.groups],
        configuration=settings.canonical,
        model=model,
        tokenizer=settings.tokenizer,
        vocabulary_size=settings.vocabulary_size,
        max_token_id=largest_id(samples),
        selection=selection(batch.groups, batch.surplus),
        samples=samples,
    )


def trained(queued: Queued) -> list[Member]:
    """Members that are trained on."""
    return [member for member in queued.decided.members if member.votes and not member.masked]


def samples_of(queued: Queued, payloads: Payloads) -> Iterator[Sample]:
    """Samples of one group, by slot and segment. Raises KeyError for a payload that is missing."""
    group = queued.group
    for member in trained(queued):
        attempt, spans = group.attempts[member.trajectory_id], group.spans.get(member.trajectory_id)
        yield from samples_of_attempt(attempt, spans or {}, member.advantage or 0.0, payloads)


def samples_of_attempt(
    attempt: Attempt, spans: Mapping[int, Spans], advantage: float, payloads: Payloads
) -> Iterator[Sample]:
    """Samples of one attempt, by segment. Raises KeyError for a payload that is missing."""
    turns = sorted(attempt.turns, key=lambda turn: turn.turn_no)
    for segment, of_segment in groupby(turns, key=lambda turn: turn.segment):
        columns, versions = _joined(list(of_segment), spans, payloads)
        yield Sample(
            group_id=attempt.group_id,
            trajectory_id=attempt.trajectory_id,
            slot=attempt.slot,
            segment=segment,
            advantage=advantage,
            token_ids=columns[0],
            loss_mask=columns[1],
            rollout_logprobs=columns[2],
            version_spans=versions,
        )


def _joined(
    turns: Sequence[Turn],
    spans: Mapping[int, Sequence[tuple[int, int, int]]],
    payloads: Payloads,
) -> tuple[Columns, list[SampleSpan]]:
    """Columns of all turns one behind the other, and who sampled what, by place in them."""
    parts = [payloads[turn.tokens_sha256 or ""] for turn in turns]
    versions: list[SampleSpan] = []
    end = 0
    for turn, (_, mask, _) in zip(turns, parts, strict=True):
        end += len(mask)
        sampled = mask.count(1) if turn.completion_tokens is None else turn.completion_tokens
        first = end - sampled  # a turn's payload ends with its completion
        for version, start, stop in spans.get(turn.turn_no, ()):
            versions.append(SampleSpan(version, first + start, min(first + stop, end)))
    columns = (
        b"".join([part[0] for part in parts]),
        b"".join([part[1] for part in parts]),
        b"".join([part[2] for part in parts]),
    )
    return columns, versions


def selection(taken: Sequence[Queued], left: Sequence[Queued]) -> dict[str, float]:
    """What over-sampling took and left: it prefers short tasks, and this shows how much. Empty
    when nothing was left."""
    if not left:
        return {}
    return dict(_figures("taken", taken)) | dict(_figures("left", left))


def _figures(which: str, groups: Sequence[Queued]) -> Iterable[tuple[str, float]]:
    attempts = [
        (member, queued.group.attempts[member.trajectory_id])
        for queued in groups
        for member in queued.decided.members
        if member.votes
    ]
    tokens = [
        float(sum(turn.completion_tokens or 0 for turn in attempt.turns)) for _, attempt in attempts
    ]
    seconds = [
        (attempt.finished.occurred_at - attempt.started.occurred_at).total_seconds()
        for _, attempt in attempts
        if attempt.finished is not None
        and attempt.started is not None
        and attempt.finished.occurred_at is not None
        and attempt.started.occurred_at is not None
    ]
    rewards = [member.reward for member, _ in attempts if member.reward is not None]
    yield f"{which}_groups", float(len(groups))
    yield f"{which}_trajectories", float(len(attempts))
    for name, values in (("tokens", tokens), ("seconds", seconds), ("reward", rewards)):
        mean, _ = mean_and_std(values)
        if mean is not None:
            yield f"{which}_mean_{name}", mean
