"""A model, and the learner around it, built from Megatron-core's own parts.

The order matters: weights are loaded into the bare model before the optimizer takes its float32
copies of them; loaded later, the first step would bring the old ones back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import silu

from trainer import hf_weights
from trainer.architecture import ModelConfig
from trainer.attention import TorchAttention
from trainer.megatron_settings import MegatronSettings, OptimizerSettings, Precision, Recompute

if not hasattr(moe_utils, "te_general_gemm"):
    # Megatron 0.16.1 asks whether this is None, and defines it only with Transformer Engine.
    moe_utils.te_general_gemm = None


@dataclass(frozen=True, slots=True)
class Learner:
    """This rank's part of a model that is being trained."""

    config: ModelConfig
    """The architecture."""
    settings: MegatronSettings
    """How it is spread over ranks."""
    model: DistributedDataParallel
    """Megatron's, with gradient buffers; `bare` takes the wrappers off."""
    optimizer: MegatronOptimizer
    """Over `model`."""
    device: torch.device
    """Where both are."""


def build_learner(
    config: ModelConfig,
    settings: MegatronSettings,
    optimizer: OptimizerSettings,
    device: torch.device,
    *,
    weights: Path | None = None,
) -> Learner:
    """A learner, with random weights or those of a Hugging Face checkpoint.

    Inside `trainer.ranks.started`, on every rank. Raises `hf_weights.WrongCheckpoint`.
    """
    module = build_model(config, settings, device, weights=weights)
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=settings.distributed_optimizer, grad_reduce_in_fp32=True
    )
    transformer = bare(module).config
    transformer.finalize_model_grads_func = finalize_model_grads
    model = DistributedDataParallel(transformer, ddp, module)
    adam = OptimizerConfig(
        optimizer="adam",
        lr=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_eps=optimizer.epsilon,
        clip_grad=optimizer.clip_norm,
        bf16=settings.precision is Precision.BFLOAT16,
        params_dtype=_dtype(settings.precision),
        use_distributed_optimizer=settings.distributed_optimizer,
    )
    return Learner(config, settings, model, get_megatron_optimizer(adam, [model]), device)


def build_model(
    config: ModelConfig,
    settings: MegatronSettings,
    device: torch.device,
    *,
    weights: Path | None = None,
) -> torch.nn.Module:
    """This rank's part of a model without an optimizer, as a reference policy needs it."""
    transformer = transformer_config(config, settings, gpu=device.type == "cuda")
    module = GPTModel(
        config=transformer,
        transformer_layer_spec=_layer_spec(transformer, gpu=device.type == "cuda"),
        vocab_size=config.vocab,
        max_sequence_length=config.context,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=config.tied,
        position_embedding_type="rope",
        rotary_base=cast(int, config.rope_theta),  # only ever a base of a power
        rope_scaling=config.rope_factor is not None,
        rope_scaling_factor=config.rope_factor or 1.0,
    ).to(device)
    if weights is not None:
        hf_weights.load(weights, module, config)
    if settings.precision is Precision.BFLOAT16:
        return Float16Module(transformer, module)
    return module


def bare(model: torch.nn.Module) -> GPTModel:
    """The GPTModel inside its wrappers."""
    while not isinstance(model, GPTModel):
        model = cast(torch.nn.Module, model.module)
    return model


def transformer_config(
    config: ModelConfig, settings: MegatronSettings, *, gpu: bool
) -> TransformerConfig:
    """The architecture and its spread in Megatron's terms."""
    dtype = _dtype(settings.precision)
    options: dict[str, Any] = {
        "num_layers": config.layers,
        "hidden_size": config.hidden,
        "ffn_hidden_size": config.mlp_hidden,
        "num_attention_heads": config.heads,
        "num_query_groups": config.kv_heads,
        "kv_channels": config.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.norm_eps,
        "qk_layernorm": config.qk_norm,
        "gated_linear_unit": True,
        "activation_func": silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": settings.precision is Precision.BFLOAT16,
        "tensor_model_parallel_size": settings.tensor,
        "pipeline_model_parallel_size": settings.pipeline,
        "sequence_parallel": settings.sequence_parallel,
        # Micro-batches differ in length: stages tell each other shapes before they send.
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # the default takes samples of one length only
        # The gradient is divided once, by the batch's count: see trainer.loss.
        "calculate_per_token_loss": True,
        # On CPU the same seed then gives the same weights for any number of ranks.
        "use_cpu_initialization": not gpu,
        # Fusions are compiled: for a GPU in passing, for a CPU by a C++ compiler that may be away.
        "bias_activation_fusion": gpu,
        "bias_dropout_fusion": gpu,
        "gradient_accumulation_fusion": False,
    }
    return TransformerConfig(**options, **_experts(config), **_recompute(settings.recompute))


def _experts(config: ModelConfig) -> Mapping[str, Any]:
    if config.experts is None:
        return {}
    return {
        "num_moe_experts": config.experts.count,
        "moe_router_topk": config.experts.per_token,
        "moe_ffn_hidden_size": config.experts.hidden,
        # softmax over the chosen experts' logits is softmax over all, normalised over the chosen
        "moe_router_pre_softmax": not config.experts.normalise,
        "moe_router_load_balancing_type": "none",
    }


def _recompute(recompute: Recompute) -> Mapping[str, Any]:
    if recompute is Recompute.NONE:
        return {}
    if recompute is Recompute.ATTENTION:
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }


def _layer_spec(transformer: TransformerConfig, *, gpu: bool) -> ModuleSpec:
    """Transformer Engine's layers where it is installed, which sequence parallelism needs; else
    Megatron's own with torch's attention."""
    experts, qk_norm = transformer.num_moe_experts, transformer.qk_layernorm
    if gpu and find_spec("transformer_engine"):
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=experts, moe_grouped_gemm=False, qk_layernorm=qk_norm
        )
    spec = get_gpt_layer_local_spec(
        num_experts=experts, moe_grouped_gemm=False, qk_layernorm=qk_norm, normalization="RMSNorm"
    )
    cast(Any, spec).submodules.self_attention.submodules.core_attention = TorchAttention
    return spec


def _dtype(precision: Precision) -> torch.dtype:
    return torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float32
