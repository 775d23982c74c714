"""The model on one rank: what is refused, packing, steps, precision and recomputation."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributions import Categorical
from torch.testing import assert_close

from tests.models import VOCAB, a_model, samples, some_tokens
from trainer import cpu
from trainer.architecture import Experts, Family, ModelConfig
from trainer.attention import packed_samples
from trainer.logprobs import token_entropy, token_logprobs
from trainer.loss_settings import LossSettings, Objective, OldPolicy
from trainer.megatron_settings import MegatronSettings, OptimizerSettings, Precision, Recompute
from trainer.model import Learner, build_learner, build_model
from trainer.packing import MicroBatch, pack, plan
from trainer.ranks import started
from trainer.step import StepRefused, Update, Work, result_of, score, train_step

pytestmark = pytest.mark.trainer

LENGTHS = [10, 17, 31, 8]


@contextmanager
def a_learner(config: ModelConfig | None = None, **settings: Any) -> Iterator[Learner]:
    config, megatron = config or a_model(), MegatronSettings(**settings)
    with started(megatron, config) as device:
        yield build_learner(config, megatron, OptimizerSettings(learning_rate=5e-3), device)


def a_batch(*lengths: int) -> list[MicroBatch]:
    chosen = lengths or LENGTHS
    return [pack(samples(*chosen), members) for members in plan(chosen, tokens_max=40)[0]]


def weights_of(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_packed_samples_have_the_logits_that_they_have_alone(family: str) -> None:
    config = a_model(family)
    batch = pack(samples(*LENGTHS), [2, 0, 3, 1], pad_to=16)
    with started(MegatronSettings(), config) as device, torch.no_grad():
        model = build_model(config, MegatronSettings(), device)
        packed = packed_samples(batch.lengths, device)
        together = model(batch.tokens, batch.positions, None, packed_seq_params=packed)[0]
        parts = together.split(batch.lengths)
        assert batch.padding == 14
        for number, logits in zip(batch.members, parts[:-1], strict=True):
            tokens = torch.tensor([samples(*LENGTHS)[number].token_ids])
            alone = model(tokens, torch.arange(tokens.numel())[None], None)[0]
            assert_close(logits, alone, rtol=0, atol=1e-6)


def test_attention_takes_no_mask() -> None:
    config = a_model()
    tokens, positions = some_tokens()
    with started(MegatronSettings(), config) as device:
        model = build_model(config, MegatronSettings(), device)
        mask = torch.zeros(1, 1, 33, 33, dtype=torch.bool)
        with pytest.raises(ValueError, match="causal within samples"):
            model(tokens, positions, mask)


def test_a_mixture_of_experts_learns() -> None:
    """Qwen3-30B-A3B's shape, where everything but the number of experts is small."""
    config = a_model("qwen3_moe", experts=Experts(count=128, per_token=8, hidden=8))
    likelihood = LossSettings(objective=Objective.LIKELIHOOD)
    with a_learner(config) as learner:
        work = [Work(batch) for batch in a_batch()]
        losses = [train_step(learner, work, likelihood).loss for _ in range(5)]
    assert losses[0] == pytest.approx(math.log(VOCAB), abs=0.1)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.2


def test_a_policy_moves_towards_its_advantages() -> None:
    """The batch's first sample has a negative advantage, the others a positive one."""
    settings = LossSettings(old_policy=OldPolicy.RECOMPUTED)
    with a_learner() as learner:
        batches = a_batch()
        before = score(learner, batches, temperature=1.0)
        assert before is not None
        work = [Work(one, old=old) for one, old in zip(batches, before, strict=True)]
        first, *_ = [train_step(learner, work, settings) for _ in range(3)]
        after = score(learner, batches, temperature=1.0)
        assert after is not None
    gain = sum(
        (batch.advantages * (new - old))[batch.mask].sum().item()
        for batch, old, new in zip(batches, before, after, strict=True)
    )
    assert gain > 1
    assert first.tokens == sum(LENGTHS) - 2 * len(LENGTHS)
    assert first.figures["clip_fraction_low"] == first.figures["kl_old"] == 0
    assert first.figures["entropy"] == pytest.approx(math.log(VOCAB), abs=0.1)


def test_epochs_of_a_step_are_added_up_and_not_averaged() -> None:
    first = {"loss": -2.0, "count": 4.0, "tokens": 4.0, "clipped_low": 0.0, "kl_old": 0.0}
    first |= {"importance": 4.0, "importance_squared": 4.0, "max_logprob_difference": 0.5}
    second = first | {"loss": -4.0, "clipped_low": 2.0, "max_logprob_difference": 0.25}
    result = result_of([Update(first, 3.0), Update(second, 1.0)])
    assert (result.epochs, result.tokens, result.grad_norm) == (2, 4, 3.0)
    assert result.loss == result.figures["loss"] == -6.0 / 8.0
    assert result.figures["clip_fraction_low"] == 2 / 8
    assert result.figures["ess_share"] == 1.0
    assert result_of([Update(first, 3.0)]).figures["clip_fraction_low"] == 0


@pytest.mark.parametrize("what", ["loss", "gradient", "mask"])
def test_a_step_that_would_ruin_the_weights_changes_nothing(what: str) -> None:
    settings = LossSettings(old_policy=OldPolicy.RECOMPUTED)
    good = a_batch()[0]
    old = torch.full_like(good.rollout, -4.0)
    bad, message = {
        "loss": (Work(replace(good, advantages=good.advantages * math.nan), old),
                 "loss must be finite, got nan"),
        # The loss is far from overflowing; the square of the gradient, which its norm takes, does.
        "gradient": (Work(replace(good, advantages=torch.full_like(old, 1e36)), old),
                     "norm of the gradient must be finite"),
        "mask": (Work(replace(good, mask=torch.zeros_like(good.mask)), old),
                 "a batch must have a token that counts, got none"),
    }[what]  # fmt: skip
    with a_learner() as learner:
        train_step(learner, [Work(good, old)], settings)
        before = weights_of(learner)
        with pytest.raises(StepRefused, match=message):
            train_step(learner, [bad], settings)
        assert all(map(torch.equal, before, weights_of(learner)))
        assert math.isfinite(train_step(learner, [Work(good, old)], settings).grad_norm)
        assert not any(map(torch.equal, before, weights_of(learner)))


def test_a_reference_is_a_model_of_its_own() -> None:
    settings = LossSettings(kl_coef=0.5)
    with a_learner() as learner:
        batches = a_batch()
        reference = build_model(learner.config, learner.settings, learner.device)
        by_reference = score(learner, batches, temperature=1.0, model=reference)
        by_learner = score(learner, batches, temperature=1.0)
        assert by_reference is not None
        assert by_learner is not None
        kl, count = 0.0, 0
        for one, other, batch in zip(by_reference, by_learner, batches, strict=True):
            x = (one - other)[batch.mask].double()
            kl, count = kl + (x.exp() - 1 - x).sum().item(), count + x.numel()
        work = [Work(one, reference=ref) for one, ref in zip(batches, by_reference, strict=True)]
        figures = train_step(learner, work, settings).figures
    assert figures["kl_reference"] == pytest.approx(kl / count, rel=1e-4)
    assert figures["kl_reference"] > 1e-3


@pytest.mark.parametrize("recompute", [Recompute.ATTENTION, Recompute.FULL])
def test_recomputation_changes_no_number(recompute: Recompute) -> None:
    def steps(**settings: Any) -> list[torch.Tensor]:
        with a_learner(**settings) as learner:
            for _ in range(2):
                train_step(learner, [Work(batch) for batch in a_batch()], LossSettings())
            return weights_of(learner)

    assert all(map(torch.equal, steps(), steps(recompute=recompute)))


def test_bfloat16_learns_with_float32_copies_in_the_optimizer() -> None:
    """A learning rate of 1e-4 is below what bfloat16 can add to most weights."""
    with a_learner(precision=Precision.BFLOAT16, distributed_optimizer=True) as learner:
        learner.optimizer.param_groups[0]["lr"] = 1e-4
        assert {parameter.dtype for parameter in learner.model.parameters()} == {torch.bfloat16}
        work = [Work(batch) for batch in a_batch()]
        settings = LossSettings(objective=Objective.LIKELIHOOD)
        losses = [train_step(learner, work, settings).loss for _ in range(12)]
    assert losses[-1] < losses[0] - 0.01


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_and_entropy_are_of_the_distribution_that_was_sampled(temperature: float) -> None:
    logits = torch.randn(2, 700, VOCAB, generator=torch.Generator().manual_seed(5))
    labels = torch.randint(0, VOCAB, (2, 700), generator=torch.Generator().manual_seed(6))
    expected = Categorical(logits=logits.double() / temperature)
    with started(MegatronSettings(), a_model()):
        entropy = token_entropy(logits, temperature)
        logprobs = token_logprobs(logits, labels, temperature)
    assert_close(entropy.double(), expected.entropy(), rtol=0, atol=2e-6)
    assert_close(logprobs.double(), expected.log_prob(labels), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("model", "settings", "world_size", "message"),
    [
        ({}, {"tensor": 8}, 8, "kv_heads 4 must be a multiple of tensor 8"),
        ({"heads": 9, "kv_heads": 9}, {"tensor": 2}, 2, "heads 9 must be a multiple of tensor 2"),
        ({"vocab": 63}, {"tensor": 2}, 2, "vocab 63 must be a multiple of tensor 2"),
        ({"mlp_hidden": 81}, {"tensor": 2}, 2, "mlp_hidden 81 must be a multiple of tensor 2"),
        ({}, {"pipeline": 3}, 3, "layers 2 must be a multiple of pipeline 3"),
        (
            {},
            {"tensor": 2, "pipeline": 2},
            6,
            "world size must be a multiple of tensor x pipeline = 2 x 2 = 4, got 6",
        ),
        (
            {},
            {"tensor": 2, "sequence_parallel": True},
            2,
            "sequence_parallel needs a GPU; on CPU it must be false, got true",
        ),
        (
            {"family": Family.QWEN3_MOE, "experts": Experts(8, 2, 24)},
            {"tensor": 2},
            2,
            "a model with experts needs sequence_parallel with tensor 2",
        ),
    ],
)
def test_a_spread_that_doesnt_fit_is_refused(
    model: dict[str, Any], settings: dict[str, Any], world_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MegatronSettings(**settings).check(a_model(**model), world_size, gpu=False)


def test_sequence_parallelism_shares_tokens_evenly() -> None:
    assert MegatronSettings(tensor=4, sequence_parallel=True).pad_to == 4
    assert MegatronSettings(tensor=4).pad_to == 1


def test_a_spread_over_ranks_that_arent_there_is_refused_before_anything_starts() -> None:
    with (
        pytest.raises(ValueError, match=r"tensor x pipeline = 2 x 1 = 2, got 1"),
        started(MegatronSettings(tensor=2), a_model()),
    ):
        pass
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0.0"),
        ({"beta2": 1.0}, r"beta2 must be in \[0, 1\), got 1.0"),
        ({"clip_norm": -1.0}, "clip_norm must be at least 0, got -1.0"),
        ({"epsilon": 0.0}, "epsilon must be above 0, got 0.0"),
    ],
)
def test_an_optimizer_that_cant_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerSettings(**options)


def test_the_cpu_stands_in_only_while_it_is_asked_to() -> None:
    functions = [torch.cuda.current_device, torch.cuda.Stream, torch.cuda.manual_seed]
    with cpu.standing_in():
        tensor = torch.ones(2, device="cuda").cuda().to("cuda:0").to(torch.device("cuda"))
        assert tensor.device.type == "cpu"
        assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.type() == "torch.FloatTensor"
    assert functions == [torch.cuda.current_device, torch.cuda.Stream, torch.cuda.manual_seed]
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")


def test_the_package_is_light_and_the_loss_needs_torch_only() -> None:
    script = (
        "import sys; import trainer, trainer.loss_settings, trainer.megatron_settings,"
        " trainer.architecture; print('torch' in sys.modules);"
        " import trainer.loss, trainer.metrics, trainer.packing; print('megatron' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
