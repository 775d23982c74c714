"""A tiny random Qwen3 as a Hugging Face checkpoint, written without torch.

    write_tiny_qwen3(Path("tiny"), seed=0)      # 2 layers of width 64, 0.3 MB

The same arguments give the same bytes, so what is learned from it can be learned again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

ROPE_THETA = 10_000.0


def write_tiny_qwen3(
    folder: Path,
    *,
    vocab: int = 32,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 512,
    init_std: float = 0.05,
    seed: int = 0,
) -> Path:
    """Write `config.json` and `model.safetensors` (float32) into `folder`; returns it.

    Matrices are normal with deviation `init_std`, norms are 1, embeddings are not tied, the MLP is
    twice as wide as `hidden`. There is no tokenizer, no BOS and no EOS: token ids mean what the
    caller says, and a generation ends by stop token or length. Raises ValueError for a shape that
    is no Qwen3."""
    if heads < 1 or hidden % heads or hidden // heads % 2:
        raise ValueError(f"hidden must be an even multiple of heads, got {hidden} and {heads}")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    config = _config(vocab, hidden, layers, heads, kv_heads, context, init_std)
    random = np.random.default_rng(seed)
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else random.normal(0.0, init_std, shape).astype(np.float32)
        for name, shape in _shapes(config)
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def _config(
    vocab: int, hidden: int, layers: int, heads: int, kv_heads: int, context: int, init_std: float
) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "initializer_range": init_std,
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,  # engines read this one, transformers 5 the next
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of Qwen3ForCausalLM and their shapes, (out, in) for matrices."""
    vocab, hidden, mlp = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (mlp, hidden)
        yield f"{layer}.mlp.up_proj.weight", (mlp, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, mlp)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)
