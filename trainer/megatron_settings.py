"""How Megatron runs a model, checked against the model and the machine before anything is built.
Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from trainer.architecture import ModelConfig
from trainer.choices import settle


class Precision(StrEnum):
    """Numbers that the model computes in; with bfloat16 the optimizer keeps float32 copies."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Recompute(StrEnum):
    """What the backward pass computes again instead of keeping it."""

    NONE = "none"
    ATTENTION = "attention"
    """The core attention: its scores are most of the memory of long samples."""
    FULL = "full"
    """Every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """How the model is spread over ranks, and computed."""

    tensor: int = 1
    """Ranks that share every matrix."""
    pipeline: int = 1
    """Ranks that share the layers, in stages."""
    distributed_optimizer: bool = False
    """Whether data-parallel ranks share the optimizer's state."""
    sequence_parallel: bool = False
    """Whether tensor-parallel ranks share activations between matrices; GPU only."""
    recompute: Recompute = Recompute.NONE
    """What the backward pass computes again."""
    precision: Precision = Precision.FLOAT32
    """Numbers that the model computes in."""

    def __post_init__(self) -> None:
        settle(self, recompute=Recompute, precision=Precision)
        for name in ("tensor", "pipeline"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def pad_to(self) -> int:
        """A micro-batch must have a multiple of this many tokens: `trainer.packing.pack`."""
        return self.tensor if self.sequence_parallel else 1

    def data_parallel(self, world_size: int) -> int:
        """Ranks that see different samples. Raises ValueError when they don't come out even."""
        per_replica = self.tensor * self.pipeline
        if world_size % per_replica:
            raise ValueError(
                f"world size must be a multiple of tensor x pipeline = {self.tensor} x"
                f" {self.pipeline} = {per_replica}, got {world_size}"
            )
        return world_size // per_replica

    def check(self, model: ModelConfig, world_size: int, *, gpu: bool) -> None:
        """Raises ValueError, naming value and rule, for what can't be run."""
        self.data_parallel(world_size)
        shared = {"heads": model.heads, "kv_heads": model.kv_heads, "vocab": model.vocab}
        if model.experts:
            shared["experts.hidden"] = model.experts.hidden
        else:
            shared["mlp_hidden"] = model.mlp_hidden
        for name, value in shared.items():
            if value % self.tensor:
                raise ValueError(f"{name} {value} must be a multiple of tensor {self.tensor}")
        if model.layers % self.pipeline:
            raise ValueError(
                f"layers {model.layers} must be a multiple of pipeline {self.pipeline}"
            )
        if model.experts and self.tensor > 1 and not self.sequence_parallel:
            raise ValueError(
                f"a model with experts needs sequence_parallel with tensor {self.tensor}:"
                " Megatron trains the two together only with it"
            )
        if self.sequence_parallel and not gpu:
            raise ValueError("sequence_parallel needs a GPU; on CPU it must be false, got true")
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError("sequence_parallel needs tensor above 1, got tensor 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Adam with decoupled weight decay."""

    learning_rate: float = 1e-6
    """Step size."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.98
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the second moment's root."""
    weight_decay: float = 0.0
    """Decoupled from the gradient."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm; 0: never."""

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "clip_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {self.epsilon}")
