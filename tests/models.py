"""Toy models of every family, samples to train on, and what transformers says of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.architecture import Experts, Family, ModelConfig
from trainer.packing import Sample

VOCAB = 64


def a_model(family: str = "qwen3", **given: Any) -> ModelConfig:
    """A model of 8 query heads in 4 groups, whose widths are all different."""
    usual: dict[str, Any] = {
        "family": Family(family),
        "layers": 2,
        "hidden": 48,
        "mlp_hidden": 80,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 16,
        "vocab": VOCAB,
        "context": 1024,
        "rope_theta": 50_000.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if family == "qwen3_moe":
        usual["experts"] = Experts(count=8, per_token=2, hidden=24)
    return ModelConfig(**(usual | given))


def samples(*lengths: int, seed: int = 0) -> list[Sample]:
    """Samples of these lengths, the first 2 tokens a prompt."""
    chance = random.Random(seed)
    return [
        Sample(
            token_ids=[chance.randrange(VOCAB) for _ in range(length)],
            loss_mask=[0] * min(2, length) + [1] * (length - 2),
            logprobs=[-chance.uniform(3.5, 4.5) for _ in range(length)],
            advantage=chance.uniform(-2, 2),
            lags=[chance.randrange(3) for _ in range(length)],
        )
        for length in lengths
    ]


def shake_norms(model: torch.nn.Module) -> None:
    """Norms start as ones, which hides one that is left out or taken for another."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)


def logits_of_transformers(
    folder: Path, tokens: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(b, s, vocabulary) logits by transformers of an exported checkpoint."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    model, told = loaded
    assert not any(told.values()), told
    with torch.no_grad():
        return model(tokens).logits


def largest_difference(one: Path, other: Path) -> float:
    """The largest difference between two checkpoints' weights."""
    from trainer.hf_files import Tensors

    left, right = Tensors(one), Tensors(other)
    assert left.shapes == right.shapes
    return max((left[name] - right[name]).abs().max().item() for name in left.shapes)


def some_tokens() -> tuple[Tensor, Tensor]:
    """(3, 33) tokens and their positions."""
    tokens = torch.randint(0, VOCAB, (3, 33), generator=torch.Generator().manual_seed(3))
    return tokens, torch.arange(33).expand(3, 33)


def a_checkpoint(folder: Path, config: ModelConfig) -> Path:
    """A checkpoint with random weights, in `folder`."""
    from trainer import hf_weights
    from trainer.megatron_settings import MegatronSettings
    from trainer.model import bare, build_model
    from trainer.ranks import started

    with started(MegatronSettings(), config) as device:
        model = build_model(config, MegatronSettings(), device)
        shake_norms(model)
        hf_weights.export(bare(model), config, folder)
    return folder
