"""Batches for the trainer: read ahead in a thread, as numbers, and checked.

Invariants:

1. Batches come in the log's order, each with the position behind it; none is left out in silence.
2. What a model must not be trained on is refused by the value, the rule and the place. What only
   the batch decides is looked at ahead, in the thread; what the step decides, when it is taken.
3. The thread calls no torch: Megatron's stand-in for a GPU holds in the main thread only.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ledger.batch_log import BatchReader, Taken
from ledger.batches import Refusal, TrainingBatch, refusal, stale_refusal
from ledger.batches import Sample as BatchSample
from ledger.log import EventLog, LogUnavailable, Positions, TopicPartition
from trainer.packing import Sample

logger = logging.getLogger(__name__)

POLL_S = 0.2
AWAY_S = 1.0
"""Between two tries while the log is away."""
UNKNOWN = -1
"""The version of a token that nobody named one for, and its lag."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch must keep to for the model that trains."""

    vocabulary: int
    """Token ids are below this."""
    sample_tokens: int
    """No sample is longer."""
    tokenizer: str | None = None
    """Name or digest; null: not checked."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch as numbers."""

    batch: TrainingBatch
    """As the log has it."""
    samples: list[Sample]
    """In the batch's order, without lags; empty when it is refused."""
    versions: list[NDArray[Any]]
    """(n,) int64 for each sample: the version that sampled a token, or UNKNOWN."""
    positions: Positions
    """Where to read on behind it."""
    refused: Refusal | None
    """Why it must not be trained on, whatever the step."""


def load(taken: Taken, limits: Limits) -> Loaded:
    """Pure: the batch as numbers, checked against `limits`."""
    batch = taken.batch
    refused = refusal(batch, None, limits.vocabulary) or _header_refusal(batch, limits)
    samples: list[Sample] = []
    if refused is None:
        samples = [_sample(each) for each in batch.samples]
        refused = _token_refusal(batch, samples, limits)
    if refused is not None:
        return Loaded(batch, [], [], taken.positions, refused)
    return Loaded(
        batch, samples, [_versions(each) for each in batch.samples], taken.positions, None
    )


def step_refusal(loaded: Loaded, trains_from: int, orphaned: frozenset[int]) -> Refusal | None:
    """Why a step that trains from `trains_from` must not take this batch; null when it may.

    A batch with tokens of an orphaned version was assembled before training went back behind that
    version; it is dropped as the assembler drops its groups, unless its settings keep them."""
    if loaded.refused is not None:
        return loaded.refused
    if (stale := stale_refusal(loaded.batch, trains_from)) is not None:
        return stale
    if json.loads(loaded.batch.configuration).get("orphaned") == "keep":
        return None
    for sample in loaded.batch.samples:
        for span in sample.version_spans:
            if span.policy_version in orphaned:
                return Refusal(
                    "orphaned_version",
                    f"tokens of {_place(sample)} must be of versions that training went on from,"
                    f" got version {span.policy_version}",
                )
    return None


def with_lags(loaded: Loaded, trains_from: int) -> list[Sample]:
    """The samples, with versions told from the one that the step trains from. A token of a later
    version, which an orphan that is kept has, counts as unknown."""
    return [
        replace(sample, lags=np.where(versions < 0, UNKNOWN, trains_from - versions).clip(UNKNOWN))
        for sample, versions in zip(loaded.samples, loaded.versions, strict=True)
    ]


class BatchLoader:
    """Loads a run's batches ahead of the step that trains on them."""

    def __init__(
        self,
        log: EventLog,
        run_id: str,
        positions: Mapping[TopicPartition, int],
        limits: Limits,
    ) -> None:
        """Reads from `positions`, or from the first batch where they are empty. Raises
        PositionOutOfRange, LogUnavailable."""
        self._reader = BatchReader(log, run_id, positions)
        self._limits = limits
        self._ready: queue.Queue[Loaded | Exception] = queue.Queue(maxsize=1)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-loader", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> Loaded | None:
        """The next batch; null when none came in time. Raises BatchDamaged, PositionOutOfRange:
        training can't go on past a batch that can't be read."""
        try:
            loaded = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                for taken in self._reader.poll(POLL_S):
                    self._put(load(taken, self._limits))
            except LogUnavailable as error:
                logger.warning("waiting for the log: %s", error)
                self._closing.wait(AWAY_S)
            except Exception as error:
                self._put(error)  # raised where the trainer takes
                return

    def _put(self, loaded: Loaded | Exception) -> None:
        while not self._closing.is_set():
            try:
                self._ready.put(loaded, timeout=POLL_S)
                return
            except queue.Full:
                continue


def _header_refusal(batch: TrainingBatch, limits: Limits) -> Refusal | None:
    if None not in (batch.tokenizer, limits.tokenizer) and batch.tokenizer != limits.tokenizer:
        return Refusal(
            "tokenizer",
            f"tokenizer must be {limits.tokenizer}, got {batch.tokenizer} (batch {batch.batch_id})",
        )
    if (batch.vocabulary_size or 0) > limits.vocabulary:
        return Refusal(
            "vocabulary",
            f"vocabulary must be at most the model's {limits.vocabulary}, got"
            f" {batch.vocabulary_size} (batch {batch.batch_id})",
        )
    return None


def _token_refusal(batch: TrainingBatch, samples: list[Sample], limits: Limits) -> Refusal | None:
    """What can be told from the tokens alone: the header may be wrong about them."""
    for packed, sample in zip(batch.samples, samples, strict=True):
        ids = np.asarray(sample.token_ids)
        columns = (len(ids), len(sample.loss_mask), len(sample.logprobs))
        if len(set(columns)) > 1 or not len(ids):
            return Refusal(
                "damaged",
                f"columns of {_place(packed)} must have one length above 0, got {columns}",
            )
        if len(ids) > limits.sample_tokens:
            return Refusal(
                "too_long",
                f"{_place(packed)} must have at most {limits.sample_tokens} tokens, got {len(ids)}",
            )
        if ids.min() < 0 or ids.max() >= limits.vocabulary:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            return Refusal(
                "vocabulary",
                f"token ids of {_place(packed)} must be in [0, {limits.vocabulary}), got {wrong}",
            )
    # The first token is never scored: nothing comes before it.
    if not any(np.asarray(sample.loss_mask)[1:].any() for sample in samples):
        return Refusal("masked", f"batch {batch.batch_id} has no token that counts")
    return None


def _sample(sample: BatchSample) -> Sample:
    return Sample(
        token_ids=np.frombuffer(sample.token_ids, "<i4").astype(np.int64),
        loss_mask=np.frombuffer(sample.loss_mask, np.uint8).copy(),  # torch wants to own it
        logprobs=np.frombuffer(sample.rollout_logprobs, "<f4").astype(np.float32),
        advantage=sample.advantage,
    )


def _versions(sample: BatchSample) -> NDArray[Any]:
    versions = np.full(len(sample), UNKNOWN, np.int64)
    for span in sample.version_spans:
        versions[span.start : span.end] = span.policy_version
    return versions


def _place(sample: BatchSample) -> str:
    return f"trajectory {sample.trajectory_id} segment {sample.segment}"
