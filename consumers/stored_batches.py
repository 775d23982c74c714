"""Batches as topic `batches` has them, against those that come out again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Self

from consumers.replay_compare import NOTHING, Difference, Gone, Replayed
from ledger.batch_log import BatchReader
from ledger.batches import BatchDamaged, Sample, TrainingBatch
from ledger.log import EventLog

VISIBLE_S = 5.0
"""What was appended with a fact that was read is in topic `batches` for readers within this."""


def compare_handed(
    step: int | None,
    handed: TrainingBatch | str | None,
    again: TrainingBatch,
    differences: list[Difference],
) -> str | None:
    """What the trainer was handed against what comes out; why the two can't be compared."""
    if isinstance(handed, str):
        return handed
    if handed is None:
        differences.append(Difference(step, None, None, "records", "appended", NOTHING))
    else:
        differences += batch_differences(handed, again)
    return None


def count_batch(
    step: int | None, differences: list[Difference], gone: str | None, replayed: Replayed
) -> None:
    """Note how a batch came out."""
    if gone is not None and not differences:
        replayed.batches.gone += 1
        replayed.gone.append(Gone(step, None, gone))
    else:
        replayed.batches.count(bool(differences))
    replayed.differences += differences


def batch_differences(handed: TrainingBatch, packed: TrainingBatch) -> Iterator[Difference]:
    """What the trainer was handed against what comes out. Pure."""
    step = handed.step
    for each in fields(TrainingBatch):
        if each.name not in ("samples", "batch_id"):
            one, other = getattr(handed, each.name), getattr(packed, each.name)
            if one != other:
                yield Difference(step, None, None, f"handed {each.name}", one, other)
    before, after = _samples(handed), _samples(packed)
    if list(before) != list(after):
        yield Difference(step, None, None, "handed samples", len(before), len(after))
    for key, sample in before.items():
        other = after.get(key)
        if other is not None:
            for name, one, two in _sample_differences(sample, other):
                yield Difference(step, sample.group_id, sample.trajectory_id, name, one, two)


def _samples(batch: TrainingBatch) -> dict[tuple[str, int], Sample]:
    return {(each.trajectory_id, each.segment): each for each in batch.samples}


def _sample_differences(one: Sample, other: Sample) -> Iterator[tuple[str, Any, Any]]:
    for each in fields(Sample):
        before, after = getattr(one, each.name), getattr(other, each.name)
        if before != after:
            if isinstance(before, bytes) and isinstance(after, bytes):
                before, after = _shown(before), _shown(after)
            yield f"handed {each.name} of segment {one.segment}", before, after


def _shown(column: bytes) -> str:
    return f"{len(column)} bytes {column[:8].hex()}…"


class StoredBatches:
    """The batches of one run as topic `batches` has them, handed out in their order."""

    def __init__(self, log: EventLog, run_id: str) -> None:
        self._log = log
        self._reader = BatchReader(log, run_id)
        self._starts = log.start_positions("batches")
        self._ahead: list[TrainingBatch] = []
        self._damaged: str | None = None
        self._wait_until: float | None = None

    def take(
        self, batch_id: str, later: Callable[[TrainingBatch], bool]
    ) -> TrainingBatch | str | None:
        """A batch; why it can't be had; or null, when it should be there and isn't. Those before
        it are passed over; `later` tells one that comes behind it."""
        while True:
            while self._ahead:
                batch = self._ahead[0]
                if batch.batch_id != batch_id and later(batch):
                    return self._missing()
                self._ahead.pop(0)
                if batch.batch_id == batch_id:
                    return batch
            if self._damaged is not None:
                return self._damaged
            if self._at_end() and self._waited():
                return self._missing()
            try:
                self._ahead += [taken.batch for taken in self._reader.poll(0.1)]
            except BatchDamaged as error:
                self._damaged = f"topic batches can't be read on: {error}"

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _at_end(self) -> bool:
        ends: Mapping[Any, int] = self._log.end_positions("batches")
        return all(self._reader.reached[place] >= end for place, end in ends.items())

    def _waited(self) -> bool:
        """Once, for all batches: they were appended before the first of them was asked for."""
        if self._wait_until is None:
            self._wait_until = time.monotonic() + VISIBLE_S
        return time.monotonic() > self._wait_until

    def _missing(self) -> str | None:
        removed = [f"{place} begins at {at}" for place, at in self._starts.items() if at > 0]
        return f"its records are not in the log ({', '.join(removed)})" if removed else None
