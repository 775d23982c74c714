"""Exports against transformers, back again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.builders import ANY_SPEED
from tests.models import (
    a_checkpoint,
    a_model,
    largest_difference,
    logits_of_transformers,
    shake_norms,
    some_tokens,
)
from trainer import hf_files, hf_weights
from trainer.architecture import Experts, UnsupportedModel, from_hf, read_config, to_hf
from trainer.hf_files import WrongCheckpoint
from trainer.layouts import Layout, Weight, merge, take_apart, weights
from trainer.megatron_settings import MegatronSettings, Precision
from trainer.model import bare, build_model
from trainer.ranks import started

pytestmark = pytest.mark.trainer

ROUNDING = 1e-6
"""Of logits below 1 in float32, where kernels add up in another order, which depends on the
processor: on an AMD EPYC the difference was 0, on an Intel Xeon 9e-8."""


@pytest.mark.parametrize(
    ("config", "dtype", "most"),
    [
        (a_model("qwen3"), "float32", ROUNDING),
        (a_model("llama"), "float32", ROUNDING),
        (a_model("qwen3", tied=True), "float32", ROUNDING),
        (a_model("llama", tied=True, rope_factor=32.0), "float32", ROUNDING),
        (a_model("qwen3_moe"), "float32", ROUNDING),
        (
            a_model("qwen3_moe", experts=Experts(8, 2, 24, normalise=False)),
            "float32",
            ROUNDING,
        ),
        (a_model("qwen3"), "bfloat16", 0.02),
    ],
    ids=["qwen3", "llama", "tied", "llama3-rope", "experts", "experts-not-normalised", "bfloat16"],
)
def test_an_export_has_transformers_logits(
    tmp_path: Path, config: Any, dtype: str, most: float
) -> None:
    settings = MegatronSettings(precision=Precision(dtype))
    tokens, positions = some_tokens()
    with started(settings, config) as device:
        model = build_model(config, settings, device)
        shake_norms(model)
        hf_weights.export(bare(model), config, tmp_path / "out")
        with torch.no_grad():
            ours = bare(model)(tokens, positions, None)
    theirs = logits_of_transformers(tmp_path / "out", tokens, getattr(torch, dtype))
    assert ours.dtype == theirs.dtype
    assert theirs.abs().max() > 0.2
    assert (ours - theirs).abs().max().item() <= most


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_loading_an_export_is_the_identity(tmp_path: Path, family: str) -> None:
    """Also through several files."""
    config = a_model(family)
    first = a_checkpoint(tmp_path / "first", config)
    with started(MegatronSettings(), config, seed=2) as device:
        model = build_model(config, MegatronSettings(), device, weights=first)
        hf_weights.export(bare(model), config, tmp_path / "second", shard_bytes=40_000)
        again = build_model(config, MegatronSettings(), device, weights=tmp_path / "second")
        for (name, one), (_, two) in zip(
            model.named_parameters(), again.named_parameters(), strict=True
        ):
            assert torch.equal(one, two), name
    assert largest_difference(first, tmp_path / "second") == 0
    files = sorted(path.name for path in (tmp_path / "second").glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "second" / hf_files.INDEX).read_text())
    assert set(index["weight_map"].values()) == set(files)


def test_transformers_reads_an_export_in_several_files(tmp_path: Path) -> None:
    config = a_model("qwen3")
    first = a_checkpoint(tmp_path / "first", config)
    names = hf_files.check(first, config)
    tensors = ((name, names[name]) for name in names.shapes)
    hf_files.write(tmp_path / "many", config, tensors, dtype="float32", shard_bytes=40_000)
    tokens, _ = some_tokens()
    one, many = (logits_of_transformers(tmp_path / name, tokens) for name in ("first", "many"))
    assert torch.equal(one, many)


def test_what_transformers_saved_can_be_loaded(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(4)
    theirs = Qwen3ForCausalLM(Qwen3Config(**to_hf(a_model("qwen3"), "float32")))
    theirs.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    tokens, positions = some_tokens()
    with started(MegatronSettings(), config) as device, torch.no_grad():
        model = build_model(config, MegatronSettings(), device, weights=tmp_path)
        ours = model(tokens, positions, None)
    with torch.no_grad():
        assert (ours - theirs(tokens).logits).abs().max().item() <= ROUNDING


def a_tampered_checkpoint(folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    a_checkpoint(folder, a_model())
    file = folder / "model.safetensors"
    changed = {**load_file(file), **change}
    save_file({name: value for name, value in changed.items() if value is not None}, file)
    return folder


def test_a_checkpoint_of_another_model_is_refused_and_the_weights_stay(tmp_path: Path) -> None:
    change = {
        "model.norm.weight": torch.ones(49),
        "model.layers.1.mlp.up_proj.weight": None,
        "model.layers.1.mlp.bias": torch.ones(3),
    }
    folder, config = a_tampered_checkpoint(tmp_path / "bad", change), a_model()
    with started(MegatronSettings(), config) as device:
        model = build_model(config, MegatronSettings(), device)
        before = [parameter.clone() for parameter in model.parameters()]
        with pytest.raises(WrongCheckpoint) as refused:
            hf_weights.load(folder, bare(model), config)
        assert all(map(torch.equal, before, model.parameters()))
    assert str(refused.value) == (
        f"{folder} isn't of this model: missing: model.layers.1.mlp.up_proj.weight;"
        " unknown: model.layers.1.mlp.bias;"
        " of another shape: model.norm.weight must be [48], is [49]"
    )


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path / "bad", a_model())
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WrongCheckpoint, match=r"model.safetensors can't be read"):
        hf_files.check(folder, a_model())
    file.unlink()
    with pytest.raises(WrongCheckpoint, match=r"model.safetensors can't be read: No such file"):
        hf_files.check(folder, a_model())
    (folder / hf_files.INDEX).write_text("{}")
    with pytest.raises(WrongCheckpoint, match=r"index.json must be JSON with a weight_map"):
        hf_files.check(folder, a_model())


def test_an_export_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    config = a_model()
    shapes = [pair for weight in weights(config) for pair in weight.tensors]
    tensors = [(name, torch.zeros(shape)) for name, shape in shapes]
    with pytest.raises(WrongCheckpoint, match=r"missing: lm_head.weight"):
        hf_files.write(tmp_path / "v1", config, tensors[:-1], dtype="float32")
    assert not (tmp_path / "v1").exists()
    size = hf_files.write(tmp_path / "v1", config, tensors, dtype="float32")  # over its remains
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]
    assert size == sum(path.stat().st_size for path in (tmp_path / "v1").iterdir())
    with pytest.raises(FileExistsError, match=r"v1 is there already"):
        hf_files.write(tmp_path / "v1", config, tensors, dtype="float32")


def test_tokenizer_files_come_along(tmp_path: Path) -> None:
    config = a_model()
    first = a_checkpoint(tmp_path / "first", config)
    (first / "tokenizer.json").write_text("{}")
    (first / "notes.txt").write_text("not ours to copy")
    tensors = hf_files.check(first, config)
    pairs = ((name, tensors[name]) for name in tensors.shapes)
    hf_files.write(tmp_path / "second", config, pairs, dtype="float32", companions=first)
    names = {path.name for path in (tmp_path / "second").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}


@given(
    layout=st.sampled_from(list(Layout)),
    kv_heads=st.sampled_from([2, 4]),
    queries=st.integers(1, 3),
    ranks=st.sampled_from([1, 2]),
)
@ANY_SPEED
def test_a_layout_takes_apart_what_it_puts_together(
    layout: Layout, kv_heads: int, queries: int, ranks: int
) -> None:
    rows = {
        Layout.QKV: [kv_heads * queries * 3, kv_heads * 3, kv_heads * 3],
        Layout.GATE_UP: [6, 6],
    }.get(layout, [8])
    tensors = [torch.randn(count, 10) for count in rows]
    named = tuple((f"part {n}", tuple(tensor.shape)) for n, tensor in enumerate(tensors))
    weight = Weight("both", layout, named, None)
    full = merge(weight, tensors, kv_heads)
    assert tuple(full.shape) == weight.shape
    shares = [layout.split(full, rank, ranks) for rank in range(ranks)]
    assert torch.equal(layout.join(shares), full)
    for part, tensor in zip(take_apart(weight, full, kv_heads), tensors, strict=True):
        assert torch.equal(part, tensor)


def test_a_rank_has_whole_groups_of_heads() -> None:
    """2 groups of 2 queries, heads of 1 row: Megatron has q0 q1 k0 v0 q2 q3 k1 v1."""
    named = (("q", (4, 1)), ("k", (2, 1)), ("v", (2, 1)))
    weight = Weight("qkv", Layout.QKV, named, None)
    parts = [torch.tensor([[0.0], [1], [2], [3]]), torch.tensor([[10.0], [11]]),
             torch.tensor([[20.0], [21]])]  # fmt: skip
    full = merge(weight, parts, kv_heads=2)
    assert full.flatten().tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert Layout.QKV.split(full, 1, 2).flatten().tolist() == [2, 3, 11, 21]


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_a_configuration_reads_as_it_was_written(family: str) -> None:
    config = a_model(family, eos_token_id=(1, 2))
    assert from_hf(to_hf(config, "float32"), "here") == config


def test_the_configuration_of_a_real_model_is_understood() -> None:
    """Qwen3-30B-A3B's, as it is published, with rope as older transformers write it."""
    config = from_hf(
        {
            "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
            "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 6144,
            "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
            "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
            "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
            "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.001, "sliding_window": None,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
            "use_sliding_window": False, "vocab_size": 151936,
        },
        "config.json",
    )  # fmt: skip
    assert config.experts == Experts(count=128, per_token=8, hidden=768, normalise=True)
    assert (config.rope_theta, config.rope_factor, config.kv_heads) == (1e6, None, 4)
    total = sum(weight.numel for weight in weights(config))
    assert total == 30_532_122_624  # as its model card says, 30.5B


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type must be one of .*, got 'gpt2' \(here\)"),
        ({"attention_bias": True}, r"attention_bias must be False, got True \(here\)"),
        ({"mlp_bias": True}, r"mlp_bias must be False, got True \(here\)"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            r"rope_type must be default or llama3, got 'yarn' \(here\)",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be None, got"),
        ({"num_key_value_heads": 3}, r"heads 8 must be a multiple of kv_heads 3 \(here\)"),
    ],
)
def test_a_model_that_cant_be_trained_exactly_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        from_hf(to_hf(a_model("llama"), "float32") | change, "here")


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    data = to_hf(a_model(), "float32")
    del data["rms_norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(UnsupportedModel, match=r"'rms_norm_eps' is missing \(.*config.json\)"):
        read_config(tmp_path)
