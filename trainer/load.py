"""What one rank computes of a batch: its micro-batches, on its device.

All ranks make the same plan, each takes its part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer import groups
from trainer.model import Learner
from trainer.packing import MicroBatch, Sample, pack, padded, plan


@dataclass(frozen=True, slots=True)
class Load:
    """What a step computes in one epoch."""

    work: list[MicroBatch]
    """Of this rank, on its device."""
    microbatches: int
    """Of all ranks."""
    computed_tokens: int
    """Of all ranks, padding included."""
    padding: int
    """Of these, padding."""


def load_of(samples: Sequence[Sample], learner: Learner, budget: int) -> Load:
    """This rank's part of a batch, in micro-batches of at most `budget` tokens."""
    data, pad_to = groups.data(), learner.settings.pad_to
    lengths = [len(sample.token_ids) for sample in samples]
    split = plan(lengths, budget, data.size())
    batches = [pack(samples, each, pad_to) for each in split[data.rank()]]
    computed = [
        padded(sum(lengths[number] for number in each), pad_to) for rank in split for each in rank
    ]
    return Load(
        work=[batch.to(learner.device) for batch in batches],
        microbatches=len(computed),
        computed_tokens=sum(computed),
        padding=sum(computed) - sum(lengths),
    )
