"""Logprobs and entropies from logits whose vocabulary is spread over tensor-parallel ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor

from trainer import groups

_ROWS = 1024
"""Entropy is computed for this many tokens at once, to bound its copy of the logits."""


def token_logprobs(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """(b, t) float32 logprobs of the labels, of the distribution that `temperature` makes.

    logits: (b, t, vocabulary / ranks). Float32 logits are overwritten at temperature 1: what else
    is wanted of them must be taken before.
    """
    if temperature != 1.0:
        logits = logits / temperature
    return -vocab_parallel_cross_entropy(logits, labels)


@torch.no_grad()
def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """(b, t) float32 entropies in nats; logits as above, left as they are."""
    group = groups.tensor()
    parts = []
    for rows in logits.flatten(0, 1).split(_ROWS):
        scaled = rows.float() / temperature
        largest = scaled.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        scaled -= largest[:, None]
        powers = scaled.exp()
        sums = torch.stack([powers.sum(-1), (powers * scaled).sum(-1)])
        dist.all_reduce(sums, group=group)
        parts.append(sums[0].log() - sums[1] / sums[0])
    return torch.cat(parts).view(logits.shape[:-1])
