"""The architecture of a model, read from and written as a Hugging Face config.json. Needs no torch.

What we can't train exactly is refused here by name, before anything is built: a rope variant or a
bias that was silently left out would give other logprobs than the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The parameters of Llama 3's rope that Megatron has built in; only its factor can be set."""


class Family(StrEnum):
    """Which of Hugging Face's models it is; the values are their `model_type`."""

    LLAMA = "llama"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3_moe"


CLASS_NAMES = {
    Family.LLAMA: "LlamaForCausalLM",
    Family.QWEN3: "Qwen3ForCausalLM",
    Family.QWEN3_MOE: "Qwen3MoeForCausalLM",
}


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in every layer of a Qwen3-MoE."""

    count: int
    """Experts in a layer."""
    per_token: int
    """Experts that a token goes through."""
    hidden: int
    """Width of one expert."""
    normalise: bool = True
    """Whether the weights of a token's experts add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama or Qwen3 family."""

    family: Family
    """Which of them."""
    layers: int
    """Transformer layers."""
    hidden: int
    """Width of the residual stream."""
    mlp_hidden: int
    """Width of the dense MLP; unused with experts."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; heads is a multiple of it."""
    head_dim: int
    """Width of one head."""
    vocab: int
    """Rows of the embedding."""
    context: int
    """Most tokens of a sample."""
    rope_theta: float = 10_000.0
    """Base of the rotary embedding."""
    rope_factor: float | None = None
    """Factor of Llama 3's rope scaling; null: none."""
    norm_eps: float = 1e-6
    """Epsilon of the RMS norms."""
    tied: bool = False
    """Whether the output layer is the embedding."""
    experts: Experts | None = None
    """Null: dense."""
    bos_token_id: int | None = None
    """Passed on to the export."""
    eos_token_id: int | tuple[int, ...] | None = None
    """Passed on to the export."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "mlp_hidden", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if (self.family is Family.QWEN3_MOE) != (self.experts is not None):
            raise ValueError(f"family {self.family} doesn't go with experts {self.experts}")
        if self.experts and not 1 <= self.experts.per_token <= self.experts.count:
            raise ValueError(
                f"experts.per_token must be in [1, {self.experts.count}],"
                f" got {self.experts.per_token}"
            )

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised head by head."""
        return self.family is not Family.LLAMA


class UnsupportedModel(ValueError):
    """A checkpoint of a model that we can't train exactly."""


def read_config(folder: Path) -> ModelConfig:
    """The architecture of a Hugging Face checkpoint. Raises UnsupportedModel, OSError."""
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UnsupportedModel(f"{path} must be JSON: {error}") from error
    return from_hf(data, str(path))


def from_hf(data: Mapping[str, Any], place: str) -> ModelConfig:
    """A Hugging Face configuration as ours. Raises UnsupportedModel, which names `place`."""
    kinds = [family.value for family in Family]
    kind = data.get("model_type")
    if kind not in kinds:
        raise UnsupportedModel(f"model_type must be one of {kinds}, got {kind!r} ({place})")
    _check_supported(data, place)
    try:
        family = Family(data["model_type"])
        theta, factor = _rope(data, place)
        return ModelConfig(
            family=family,
            layers=data["num_hidden_layers"],
            hidden=data["hidden_size"],
            mlp_hidden=data["intermediate_size"],
            heads=data["num_attention_heads"],
            kv_heads=data.get("num_key_value_heads") or data["num_attention_heads"],
            head_dim=data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"],
            vocab=data["vocab_size"],
            context=data["max_position_embeddings"],
            rope_theta=theta,
            rope_factor=factor,
            norm_eps=data["rms_norm_eps"],
            tied=data.get("tie_word_embeddings", False),
            experts=_experts(data) if family is Family.QWEN3_MOE else None,
            bos_token_id=data.get("bos_token_id"),
            eos_token_id=_token_ids(data.get("eos_token_id")),
        )
    except KeyError as error:
        raise UnsupportedModel(f"{error} is missing ({place})") from error
    except ValueError as error:
        raise UnsupportedModel(f"{error} ({place})") from error


def to_hf(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """Ours as a Hugging Face configuration; `dtype` as torch names it, without `torch.`.

    rope_theta and dtype are there twice: transformers 5 reads rope_parameters and dtype, older
    ones and other readers the old names."""
    eos = config.eos_token_id
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_factor is not None:
        rope |= {"rope_type": "llama3", "factor": config.rope_factor, **LLAMA3_ROPE}
    data: dict[str, Any] = {
        "architectures": [CLASS_NAMES[config.family]],
        "model_type": config.family.value,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp_hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if config.rope_factor is not None:
        data["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    if config.family is Family.LLAMA:
        data["mlp_bias"] = False
    if config.experts:
        data |= {
            "num_experts": config.experts.count,
            "num_experts_per_tok": config.experts.per_token,
            "moe_intermediate_size": config.experts.hidden,
            "norm_topk_prob": config.experts.normalise,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.0,
            "output_router_logits": False,
        }
    return data


def _check_supported(data: Mapping[str, Any], place: str) -> None:
    wanted = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "quantization_config": None,
    }
    for key, value in wanted.items():
        if (data.get(key) or value) != value:
            raise UnsupportedModel(f"{key} must be {value!r}, got {data[key]!r} ({place})")


def _rope(data: Mapping[str, Any], place: str) -> tuple[float, float | None]:
    """Base and Llama 3 factor. transformers 5 has rope_parameters, before it were rope_theta and
    rope_scaling."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or data.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModel(f"rope_type must be default or llama3, got {kind!r} ({place})")
    for key, value in LLAMA3_ROPE.items():
        if rope.get(key) != value:
            raise UnsupportedModel(
                f"{key} of rope_type llama3 must be {value}, got {rope.get(key)!r} ({place})"
            )
    return theta, float(rope["factor"])


def _experts(data: Mapping[str, Any]) -> Experts:
    return Experts(
        count=data["num_experts"],
        per_token=data["num_experts_per_tok"],
        hidden=data["moe_intermediate_size"],
        normalise=data.get("norm_topk_prob", False),
    )


def _token_ids(value: int | list[int] | None) -> int | tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) else value
