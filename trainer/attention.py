"""Core attention on torch's own kernels, over packed samples.

Megatron's own for installations without Transformer Engine knows no packed samples and keeps a
matrix of scores. This one runs torch's attention kernel on each sample by itself: no token sees
another sample, no mask is built, and a sample has the outcome that it has alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass
class PackedSamples(PackedSeqParams):
    """Where samples begin and end in a micro-batch; `lengths` spares a copy from the GPU in every
    layer."""

    lengths: tuple[int, ...] = ()
    """Tokens of each sample, in order."""


def packed_samples(lengths: tuple[int, ...], device: torch.device) -> PackedSamples:
    """The description of packed samples that Megatron hands to rope and attention."""
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    longest = max(lengths)
    return PackedSamples(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        lengths=lengths,
    )


class TorchAttention(MegatronModule):
    """Causal attention; heads and groups are those of this tensor-parallel rank."""

    def __init__(
        self, config: TransformerConfig, softmax_scale: float | None = None, **_: Any
    ) -> None:
        super().__init__(config=config)
        if config.attention_dropout:
            raise ValueError(f"attention_dropout must be 0, got {config.attention_dropout}")
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        packed_seq_params: PackedSamples | None = None,
        **_: Any,
    ) -> Tensor:
        """Packed: (t, heads, dim) to (t, heads, dim). Else (s, b, heads, dim) to
        (s, b, heads * dim), for samples of one length."""
        if attention_mask is not None:
            raise ValueError("attention is causal within samples: attention_mask must be null")
        if packed_seq_params is None:
            heads = self._attend(*(part.permute(1, 2, 0, 3) for part in (query, key, value)))
            return heads.permute(2, 0, 1, 3).flatten(2)
        lengths = packed_seq_params.lengths
        samples = zip(*(part.split(lengths) for part in (query, key, value)), strict=True)
        return torch.cat(
            [
                self._attend(*(part.transpose(0, 1)[None] for part in sample))[0].transpose(0, 1)
                for sample in samples
            ]
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(b, heads, s, dim)"""
        grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale, enable_gqa=grouped
        )
