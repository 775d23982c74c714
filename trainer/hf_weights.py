"""Weights between a running Megatron model and Hugging Face checkpoints, in both directions.

Invariant: load(export(model)) is the identity, and what is exported has the names, the shapes and
the logits of the same model in transformers, whatever the tensor and pipeline parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from megatron.core.models.gpt import GPTModel
from torch import Tensor
from torch.nn import Parameter

from trainer import groups, hf_files
from trainer.architecture import ModelConfig
from trainer.hf_files import WrongCheckpoint
from trainer.layouts import Weight, local_name, merge, take_apart, weights

__all__ = ["WrongCheckpoint", "export", "load", "named_tensors"]

_OUTPUT, _EMBEDDING = "output_layer.weight", "embedding.word_embeddings.weight"


@torch.no_grad()
def load(folder: Path, module: GPTModel, config: ModelConfig) -> None:
    """Sets this rank's parameters from a checkpoint, which is checked whole first.

    Raises WrongCheckpoint; the parameters are then as they were. An optimizer that exists already
    has to be told: `optimizer.reload_model_params()`.
    """
    tensors = hf_files.check(folder, config)
    rank, ranks = groups.tensor().rank(), groups.tensor().size()
    by_name = {weight.name: weight for weight in weights(config)}
    for name, parameter in _parameters(module).items():
        # With tied embeddings the last stage of a pipeline has a copy, as its output layer.
        weight = by_name[_EMBEDDING if config.tied and name == _OUTPUT else name]
        full = merge(weight, [tensors[part] for part, _ in weight.tensors], config.kv_heads)
        parameter.copy_(weight.layout.split(full, rank, ranks))


@torch.no_grad()
def named_tensors(module: GPTModel, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint, in order, on the model's device.

    A collective over one replica: its tensor and pipeline ranks all have to run through it, and
    each gets every tensor.
    """
    mine = _parameters(module)
    for weight in weights(config):
        parameter = mine.get(weight.name)
        full = None if parameter is None else _joined(weight, parameter)
        full = _from_its_stage(weight, full, module, config)
        parts = take_apart(weight, full, config.kv_heads)
        for (name, shape), part in zip(weight.tensors, parts, strict=True):
            if tuple(part.shape) != shape:
                raise WrongCheckpoint(f"{name} must be {shape}, got {tuple(part.shape)}")
            yield name, part


def export(
    module: GPTModel,
    config: ModelConfig,
    folder: Path,
    *,
    companions: Path | None = None,
    shard_bytes: int = hf_files.SHARD_BYTES,
) -> int:
    """Writes the weights as a checkpoint; every rank calls it, and all return when it is there.

    Returns its bytes on rank 0, else 0. Raises as `hf_files.write`.
    """
    size = 0
    if dist.get_rank() == 0:
        size = hf_files.write(
            folder,
            config,
            named_tensors(module, config),
            dtype=str(module.config.params_dtype).removeprefix("torch."),
            companions=companions,
            shard_bytes=shard_bytes,
        )
    elif groups.data().rank() == 0:
        for _ in named_tensors(module, config):
            pass
    dist.barrier()
    return size


def _parameters(module: GPTModel) -> dict[str, Parameter]:
    """This rank's parameters by the names in `layouts`, where layers count over all stages."""
    layers = module.decoder.layers
    offset = cast(int, layers[0].layer_number) - 1 if len(layers) else 0

    def over_all_stages(match: re.Match[str]) -> str:
        return f"decoder.layers.{int(match[1]) + offset}."

    return {
        local_name(re.sub(r"^decoder\.layers\.(\d+)\.", over_all_stages, name)): parameter
        for name, parameter in module.named_parameters()
    }


def _joined(weight: Weight, parameter: Parameter) -> Tensor:
    """The full parameter from all tensor-parallel ranks."""
    group = groups.tensor()
    shares = [torch.empty_like(parameter) for _ in range(group.size())]
    if len(shares) == 1:
        return parameter.detach()
    dist.all_gather(shares, parameter.detach().contiguous(), group=group)
    return weight.layout.join(shares)


def _from_its_stage(
    weight: Weight, full: Tensor | None, module: GPTModel, config: ModelConfig
) -> Tensor:
    """The full parameter on every pipeline stage, from the one that has it."""
    group = groups.pipeline()
    if group.size() > 1:
        if weight.layer is not None:
            stage = weight.layer * group.size() // config.layers
        else:
            stage = 0 if weight.name == _EMBEDDING else group.size() - 1
        if full is None or stage != group.rank():
            device = next(module.parameters()).device
            full = torch.empty(weight.shape, dtype=module.config.params_dtype, device=device)
        dist.broadcast(full.contiguous(), dist.get_global_rank(group, stage), group=group)
    if full is None:
        raise WrongCheckpoint(f"the model has no parameter {weight.name}")
    return full
