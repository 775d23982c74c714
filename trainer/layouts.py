"""Which numbers of a Hugging Face checkpoint are which of Megatron's: names, shapes and orders.

Megatron keeps queries, keys and values in one matrix, by group, and gate and up projection in
another. `weights` lists every parameter of a model from its configuration alone; a `Layout` takes
a parameter apart, puts it together, and knows each tensor-parallel rank's share. For every one of
them join(split(x)) == x and merge(take_apart(x)) == x; tests hold that.

Pure: no files, no process groups, and layers are numbered over the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import torch
from torch import Tensor

from trainer.architecture import ModelConfig

Shape = tuple[int, ...]


class Layout(Enum):
    """How Megatron orders a parameter, and how ranks share it."""

    WHOLE = "whole"
    """As in the checkpoint; every rank has all of it."""
    ROWS = "rows"
    """As in the checkpoint; each rank has a block of rows."""
    COLUMNS = "columns"
    """As in the checkpoint; each rank has a block of columns."""
    QKV = "qkv"
    """By group of heads: its queries, its key, its value. Each rank has a block of groups."""
    GATE_UP = "gate_up"
    """Gate, then up; each rank has a block of rows of both."""

    def split(self, full: Tensor, rank: int, ranks: int) -> Tensor:
        """A rank's share of Megatron's full parameter."""
        if self is Layout.WHOLE or ranks == 1:
            return full
        if self is Layout.GATE_UP:
            return torch.cat([half.chunk(ranks)[rank] for half in full.chunk(2)])
        return full.chunk(ranks, dim=int(self is Layout.COLUMNS))[rank]

    def join(self, shares: Sequence[Tensor]) -> Tensor:
        """Megatron's full parameter from all ranks' shares, in order."""
        if self is Layout.WHOLE or len(shares) == 1:
            return shares[0]
        if self is Layout.GATE_UP:
            halves = [share.chunk(2) for share in shares]
            return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
        return torch.cat(list(shares), dim=int(self is Layout.COLUMNS))


@dataclass(frozen=True, slots=True)
class Weight:
    """One of Megatron's parameters, and the checkpoint's tensors that hold its numbers."""

    name: str
    """Megatron's name."""
    layout: Layout
    """Its order, and each rank's share."""
    tensors: tuple[tuple[str, Shape], ...]
    """Names and shapes in the checkpoint: one, gate and up, or query, key and value."""
    layer: int | None
    """Its layer; null: before or after all of them."""

    @property
    def numel(self) -> int:
        """Numbers in it."""
        return sum(prod(shape) for _, shape in self.tensors)

    @property
    def shape(self) -> Shape:
        """Megatron's full shape: the parts' rows one below the other."""
        shapes = [shape for _, shape in self.tensors]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def merge(weight: Weight, parts: Sequence[Tensor], kv_heads: int) -> Tensor:
    """Megatron's full parameter from the checkpoint's tensors."""
    if weight.layout is not Layout.QKV:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))
    grouped = [part.unflatten(0, (kv_heads, -1)) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def take_apart(weight: Weight, full: Tensor, kv_heads: int) -> list[Tensor]:
    """The checkpoint's tensors from Megatron's full parameter, in the order of `weight.tensors`."""
    rows = [shape[0] for _, shape in weight.tensors]
    if weight.layout is not Layout.QKV:
        return list(full.split(rows))
    grouped = full.unflatten(0, (kv_heads, -1))
    return [part.flatten(0, 1) for part in grouped.split([n // kv_heads for n in rows], dim=1)]


def weights(config: ModelConfig) -> list[Weight]:
    """Every parameter of the model, in order; with tied embeddings there is no output layer."""
    width = config.hidden
    embedding = [
        _one("embedding.word_embeddings.weight", Layout.ROWS, "model.embed_tokens.weight",
             (config.vocab, width)),
    ]  # fmt: skip
    layers = [weight for layer in range(config.layers) for weight in _layer(config, layer)]
    last = [_one("decoder.final_layernorm.weight", Layout.WHOLE, "model.norm.weight", (width,))]
    if not config.tied:
        last.append(
            _one("output_layer.weight", Layout.ROWS, "lm_head.weight", (config.vocab, width))
        )
    return embedding + layers + last


def local_name(name: str) -> str:
    """A parameter's name as `weights` has it. Transformer Engine keeps norms inside the matrices
    that follow them."""
    return name.replace("self_attention.linear_qkv.layer_norm_", "input_layernorm.").replace(
        "mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."
    )


def _one(name: str, layout: Layout, tensor: str, shape: Shape, layer: int | None = None) -> Weight:
    return Weight(name, layout, ((tensor, shape),), layer)


def _layer(config: ModelConfig, layer: int) -> list[Weight]:
    ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
    width, dim = config.hidden, config.head_dim
    projections = (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
    found = [
        _one(ours + "input_layernorm.weight", Layout.WHOLE,
             theirs + "input_layernorm.weight", (width,), layer),
        Weight(
            ours + "self_attention.linear_qkv.weight",
            Layout.QKV,
            tuple(
                (f"{theirs}self_attn.{part}_proj.weight", (heads * dim, width))
                for part, heads in projections
            ),
            layer,
        ),
        _one(ours + "self_attention.linear_proj.weight", Layout.COLUMNS,
             theirs + "self_attn.o_proj.weight", (width, config.heads * dim), layer),
        _one(ours + "pre_mlp_layernorm.weight", Layout.WHOLE,
             theirs + "post_attention_layernorm.weight", (width,), layer),
    ]  # fmt: skip
    if config.qk_norm:
        found += [
            _one(f"{ours}self_attention.{part}_layernorm.weight", Layout.WHOLE,
                 f"{theirs}self_attn.{part}_norm.weight", (dim,), layer)
            for part in ("q", "k")
        ]  # fmt: skip
    if not config.experts:
        return found + _mlp(ours + "mlp.", theirs + "mlp.", width, config.mlp_hidden, layer)
    found.append(
        _one(ours + "mlp.router.weight", Layout.WHOLE, theirs + "mlp.gate.weight",
             (config.experts.count, width), layer)
    )  # fmt: skip
    for expert in range(config.experts.count):
        found += _mlp(
            f"{ours}mlp.experts.local_experts.{expert}.",
            f"{theirs}mlp.experts.{expert}.",
            width,
            config.experts.hidden,
            layer,
        )
    return found


def _mlp(ours: str, theirs: str, width: int, hidden: int, layer: int) -> list[Weight]:
    return [
        Weight(
            ours + "linear_fc1.weight",
            Layout.GATE_UP,
            (
                (theirs + "gate_proj.weight", (hidden, width)),
                (theirs + "up_proj.weight", (hidden, width)),
            ),
            layer,
        ),
        _one(ours + "linear_fc2.weight", Layout.COLUMNS, theirs + "down_proj.weight",
             (width, hidden), layer),
    ]  # fmt: skip
