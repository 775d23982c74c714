"""Samples of any length put together into micro-batches of a bounded number of tokens.

Every rank computes the same plan from the same lengths, so ranks agree without talking. All get
the same number of micro-batches, of nearly the same load: a rank that has less work waits.

Samples lie one behind the other with no padding between; attention and positions begin anew at
each (`trainer.attention`). Padding is only what rounds a micro-batch up to `pad_to` tokens, and the
whole of one that gets no sample because there are fewer samples than ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to train on."""

    token_ids: Sequence[int] | NDArray[Any]
    """(n,) prompt and completion."""
    loss_mask: Sequence[int] | NDArray[Any]
    """(n,) 1 where the policy sampled the token and it counts, else 0. The first is never scored,
    since nothing comes before it."""
    logprobs: Sequence[float] | NDArray[Any]
    """(n,) by the engine; ignored where loss_mask is 0."""
    advantage: float
    """Of every token."""
    lags: Sequence[int] | NDArray[Any] | None = None
    """(n,) policy versions behind the one being trained; null: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed samples. Position t predicts the token behind it: everything but `tokens` and
    `positions` is about that token, and off where there is none."""

    tokens: Tensor
    """(1, t) int64."""
    positions: Tensor
    """(1, t) int64, from 0 in each sample."""
    labels: Tensor
    """(1, t) int64, the token that follows; 0 at a sample's end."""
    mask: Tensor
    """(t,) bool: the prediction counts."""
    rollout: Tensor
    """(t,) float32 logprobs by the engine."""
    advantages: Tensor
    """(t,) float32."""
    lags: Tensor
    """(t,) int64; -1: unknown."""
    samples: Tensor
    """(t,) int64, the place in `members`; padding counts as the last."""
    lengths: tuple[int, ...]
    """Tokens of each sample, and of the padding if there is any."""
    members: tuple[int, ...]
    """Number of each sample in the batch."""
    padding: int
    """Tokens of padding, at the end."""

    def to(self, device: torch.device) -> MicroBatch:
        """The same on a device."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        moved = {name: it.to(device) for name, it in columns.items() if isinstance(it, Tensor)}
        return replace(self, **moved)


def check(samples: Sequence[Sample], vocab: int) -> None:
    """Raises ValueError for a sample whose columns differ in length, or that is of another
    vocabulary: a tensor-parallel embedding takes an unknown token for zeros without a word."""
    for number, sample in enumerate(samples):
        columns = {"loss_mask": sample.loss_mask, "logprobs": sample.logprobs}
        if sample.lags is not None:
            columns["lags"] = sample.lags
        for name, column in columns.items():
            if len(column) != len(sample.token_ids):
                raise ValueError(
                    f"{name} of sample {number} must have {len(sample.token_ids)} values, one a"
                    f" token, got {len(column)}"
                )
        for token in (min(sample.token_ids, default=0), max(sample.token_ids, default=0)):
            if not 0 <= token < vocab:
                raise ValueError(
                    f"token ids of sample {number} must be in [0, {vocab}), got {token}"
                )


def plan(lengths: Sequence[int], tokens_max: int, ranks: int = 1) -> list[list[list[int]]]:
    """Which samples go together: for each rank its micro-batches, each the samples' numbers.

    Longest first, each to the micro-batch with the fewest tokens, over as few micro-batches as
    hold them all (Graham 1969, "Bounds on Multiprocessing Timing Anomalies"). Raises ValueError
    for an empty batch, an empty sample, and one that is longer than `tokens_max`.
    """
    if not lengths:
        raise ValueError("a batch must have samples, got none")
    if min(lengths) < 1:
        raise ValueError(f"sample {lengths.index(min(lengths))} must have tokens, got none")
    longest = max(range(len(lengths)), key=lambda number: lengths[number])
    if lengths[longest] > tokens_max:
        raise ValueError(
            f"sample {longest} has {lengths[longest]} tokens, more than the"
            f" {tokens_max} of a micro-batch"
        )
    rounds = ceil(ceil(sum(lengths) / tokens_max) / ranks)
    while (bins := _spread(lengths, tokens_max, rounds * ranks)) is None:
        rounds += 1
    return [bins[rank::ranks] for rank in range(ranks)]


def padded(count: int, pad_to: int) -> int:
    """Tokens that a micro-batch of `count` is computed as: the next multiple, and never none."""
    return pad_to * max(1, ceil(count / pad_to))


def pack(samples: Sequence[Sample], members: Sequence[int], pad_to: int = 1) -> MicroBatch:
    """The samples with these numbers as one micro-batch, of a multiple of `pad_to` tokens."""
    chosen = [samples[number] for number in members]
    lengths = [len(sample.token_ids) for sample in chosen]
    count = sum(lengths)
    padding = padded(count, pad_to) - count
    spans = (*lengths, padding) if padding else tuple(lengths)
    ends = torch.tensor(spans).cumsum(0) - 1
    places = torch.arange(len(chosen)).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    advantages = torch.tensor([sample.advantage for sample in chosen], dtype=torch.float32)

    def of_next(columns: Sequence[Any], dtype: torch.dtype) -> Tensor:
        column = _column(columns, padding, dtype).roll(-1)
        column[ends] = 0
        return column

    tokens = [sample.token_ids for sample in chosen]
    unknown = [[-1] * length for length in lengths]
    lags = [none if s.lags is None else s.lags for s, none in zip(chosen, unknown, strict=True)]
    return MicroBatch(
        tokens=_column(tokens, padding, torch.int64)[None],
        positions=torch.cat([torch.arange(span) for span in spans])[None],
        labels=of_next(tokens, torch.int64)[None],
        mask=of_next([sample.loss_mask for sample in chosen], torch.bool),
        rollout=of_next([sample.logprobs for sample in chosen], torch.float32),
        advantages=torch.cat([advantages[places], torch.zeros(padding)]),
        lags=of_next(lags, torch.int64),
        samples=torch.cat([places, places.new_full((padding,), max(len(chosen) - 1, 0))]),
        lengths=spans,
        members=tuple(members),
        padding=padding,
    )


def padding_share(microbatches: Sequence[MicroBatch]) -> float:
    """Tokens of padding as a share of all that are computed."""
    computed = sum(batch.tokens.numel() for batch in microbatches)
    return sum(batch.padding for batch in microbatches) / computed


def _spread(lengths: Sequence[int], tokens_max: int, count: int) -> list[list[int]] | None:
    """Samples over `count` micro-batches, or null when one of them would be too long."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for sample in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        load, emptiest = loads[0]
        if load + lengths[sample] > tokens_max:
            return None
        bins[emptiest].append(sample)
        heapq.heapreplace(loads, (load + lengths[sample], emptiest))
    return bins


def _column(parts: Sequence[Any], padding: int, dtype: torch.dtype) -> Tensor:
    """The parts one behind the other, then zeros."""
    pieces = [torch.as_tensor(part, dtype=dtype) for part in parts]
    return torch.cat([*pieces, torch.zeros(padding, dtype=dtype)])
