"""Training batches: what topic `batches` carries, ready to train on.

    TrainingBatch ─ encode ─▶ body ─ split ─▶ BatchChunk records ─ log ─▶ join ─ decode ─▶ the same

A batch is one Avro body, cut into records below the log's limit, all with the run's key and so in
one partition, one behind the other. `ledger/batch_log.py` reads them.

Invariants:

1. A sample is one segment of one trajectory; all segments of a trajectory have its advantage.
2. Columns are packed little-endian: int32 ids, uint8 mask, float32 logprobs; what left the engine
   comes to the trainer bit by bit.
3. A batch that breaks a rule when it is taken is refused by `refusal`, which names the rule.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ledger.facts.base import Uuid
from ledger.tokens import Columns, Tokens, floats, ids_of, unpack_columns

CHUNK_BYTES = 4 * 1024 * 1024 - 4096
"""Most bytes of a body in one record: with its ids it stays below the log's limit."""


@dataclass(frozen=True, slots=True)
class SampleSpan:
    """Tokens of a sample that one policy version sampled."""

    policy_version: int
    """The version."""
    start: int
    """First token, by its place in the sample, from 0."""
    end: int
    """Behind the last one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One segment of one trajectory."""

    group_id: Uuid
    """The group."""
    trajectory_id: Uuid
    """The attempt."""
    slot: int
    """Its place in the group."""
    segment: int
    """From 0 in the trajectory."""
    advantage: float
    """Of the trajectory: the same in all its segments."""
    token_ids: bytes
    """(n,) little-endian int32."""
    loss_mask: bytes
    """(n,) uint8: 1 where the policy sampled the token."""
    rollout_logprobs: bytes
    """(n,) little-endian float32: the engine's, 0 where loss_mask is 0."""
    version_spans: list[SampleSpan]
    """Which policy versions sampled which tokens, in order; tokens in none are of the prompt, or
    nobody said."""

    def __len__(self) -> int:
        return len(self.loss_mask)

    @property
    def columns(self) -> Columns:
        """The packed columns."""
        return self.token_ids, self.loss_mask, self.rollout_logprobs

    def tokens(self) -> Tokens:
        """The columns as numbers."""
        return unpack_columns(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """What one training step trains on."""

    run_id: Uuid
    """UUID of the run."""
    batch_id: Uuid
    """UUID derived from the hash."""
    batch_sha256: str
    """Digest of the ordered members, advantages and configuration, as in `batch_assembled`."""
    step: int | None = None
    """The step that it is meant for; null for SFT."""
    policy_version: int | None = None
    """The newest published version when it was assembled; null: none was known."""
    max_staleness: int | None = None
    """Most versions that a token may be older than the one trained from; null: no bound."""
    group_ids: list[Uuid] = field(default_factory=list[Uuid])
    """The groups, in order."""
    trace_ids: list[str] = field(default_factory=list[str])
    """The traces, in order, when it is for SFT."""
    configuration: str
    """The assembler's settings, canonical JSON."""
    model: str | None = None
    """Name of the policy's model, where the run declares it."""
    tokenizer: str | None = None
    """Name or digest of the tokenizer, where it is known."""
    vocabulary_size: int | None = None
    """Token ids are below this, where it is known."""
    max_token_id: int
    """The largest token id in it; -1 when it has no token."""
    selection: dict[str, float] = field(default_factory=dict[str, float])
    """What over-sampling took and left, by name: `taken_trajectories`, `left_mean_tokens`; empty
    unless groups were dropped for it."""
    samples: list[Sample]
    """Group by group in order, in each by slot and segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChunk:
    """One record of topic `batches`: a part of a batch's body."""

    run_id: Uuid
    """UUID of the run."""
    batch_id: Uuid
    """The batch."""
    chunk: int
    """Which part this is, from 0."""
    chunks: int
    """How many parts there are."""
    sha256: str
    """Hex digest of the whole body."""
    body: bytes
    """The part."""


class BatchDamaged(ValueError):
    """Records that don't make up a batch; the message says value, rule and place."""


class Refusal(NamedTuple):
    """Why a batch must not be trained on: the fields of a `batch_refused` fact."""

    reason: str
    """stale, nan, vocabulary, empty."""
    detail: str
    """Value, rule and place."""


def split_body(run_id: str, batch_id: str, body: bytes) -> list[BatchChunk]:
    """A batch's body as records."""
    sha256 = hashlib.sha256(body).hexdigest()
    parts = [body[at : at + CHUNK_BYTES] for at in range(0, max(len(body), 1), CHUNK_BYTES)]
    return [
        BatchChunk(
            run_id=run_id,
            batch_id=batch_id,
            chunk=number,
            chunks=len(parts),
            sha256=sha256,
            body=part,
        )
        for number, part in enumerate(parts)
    ]


def join_body(parts: Sequence[BatchChunk]) -> bytes:
    """The body of a batch from all its records, in order. Raises BatchDamaged."""
    first = parts[0]
    numbers = [part.chunk for part in parts]
    if numbers != list(range(first.chunks)):
        raise BatchDamaged(
            f"batch {first.batch_id} must have chunks 0 to {first.chunks - 1}, got {numbers}"
        )
    body = b"".join([part.body for part in parts])
    if (sha256 := hashlib.sha256(body).hexdigest()) != first.sha256:
        raise BatchDamaged(f"batch {first.batch_id} must have digest {first.sha256}, got {sha256}")
    return body


def refusal(
    batch: TrainingBatch, trains_from: int | None, vocabulary_size: int | None = None
) -> Refusal | None:
    """Why `batch` must not be trained on by a step that trains from version `trains_from`, with a
    model of `vocabulary_size` tokens; null when it may be. Looks at every token and logprob."""
    if not batch.samples:
        return Refusal("empty", f"batch {batch.batch_id} has no sample")
    if (stale := stale_refusal(batch, trains_from)) is not None:
        return stale
    for sample in batch.samples:
        where = f"trajectory {sample.trajectory_id} segment {sample.segment}"
        if not math.isfinite(sample.advantage) or not finite(sample.rollout_logprobs):
            return Refusal("nan", f"advantage and logprobs of {where} must be finite numbers")
    if vocabulary_size is not None and batch.max_token_id >= vocabulary_size:
        return Refusal(
            "vocabulary",
            f"token ids must be below {vocabulary_size}, got {batch.max_token_id}"
            f" (batch {batch.batch_id})",
        )
    return None


def stale_refusal(batch: TrainingBatch, trains_from: int | None) -> Refusal | None:
    """The part of `refusal` that a further step can change, which looks at no token."""
    bound = batch.max_staleness
    if bound is None or trains_from is None:
        return None
    for sample in batch.samples:
        oldest = min((span.policy_version for span in sample.version_spans), default=trains_from)
        if trains_from - oldest > bound:
            return Refusal(
                "stale",
                f"tokens of trajectory {sample.trajectory_id} segment {sample.segment} must be at"
                f" most {bound} versions older than {trains_from}, got version {oldest}",
            )
    return None


def largest_id(samples: Iterable[Sample]) -> int:
    """The largest token id of all samples; -1 when they have no token."""
    return max((max(ids_of(each.token_ids), default=-1) for each in samples), default=-1)


def finite(logprobs: bytes) -> bool:
    """Whether a packed column of float32 holds numbers only."""
    # A sum is nan or infinite if any of them is; float64 can't overflow on so many float32.
    return math.isfinite(sum(floats(logprobs)))
