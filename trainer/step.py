"""One training step on packed micro-batches, and scoring without training.

Both run Megatron's own schedule, so one rank, tensor, pipeline and data parallelism are one code.

Invariant: a step whose loss or gradient isn't finite changes nothing. That is looked at on sums
over all ranks, so either every rank steps or none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from trainer import groups, metrics
from trainer.attention import packed_samples
from trainer.logprobs import token_entropy, token_logprobs
from trainer.loss import Scores, batch_loss
from trainer.loss_settings import LossSettings
from trainer.model import Learner
from trainer.packing import MicroBatch


@dataclass(frozen=True, slots=True)
class Work:
    """A micro-batch, and the logprobs that the loss needs beside the current ones."""

    batch: MicroBatch
    """On the model's device."""
    old: Tensor | None = None
    """(t,) by the weights at the step's start; null unless they are recomputed."""
    reference: Tensor | None = None
    """(t,) by the reference model; null without a KL term."""


@dataclass(frozen=True, slots=True)
class Update:
    """One epoch of a step, the same on every rank."""

    sums: Mapping[str, float]
    """Of `trainer.metrics`, over the whole batch."""
    grad_norm: float
    """Before clipping."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did, the same on every rank."""

    epochs: int
    """Updates that it made of its batch."""
    loss: float
    """Of the whole batch, over its epochs."""
    grad_norm: float
    """Before clipping; of several epochs the largest."""
    figures: Mapping[str, float]
    """`metrics.summarise` of the whole batch, over its epochs."""
    tokens: int
    """That had a gradient, in the whole batch; once, however many epochs."""


class StepRefused(RuntimeError):
    """A step that would have ruined the weights: they are as they were."""


def train_step(learner: Learner, work: Sequence[Work], settings: LossSettings) -> StepResult:
    """One update from the whole batch, of which `work` is this data-parallel rank's part.

    Raises StepRefused, on every rank, when the loss or the gradient isn't finite or no token
    counts.
    """
    return result_of([update(learner, gradients(learner, work, settings))])


def gradients(
    learner: Learner, work: Sequence[Work], settings: LossSettings
) -> Mapping[str, float]:
    """The first half of a step: gradients of the whole batch, in the model's buffers. Returns the
    sums of `trainer.metrics`. Raises StepRefused for the loss."""
    learner.model.zero_grad_buffer()
    learner.optimizer.zero_grad()
    parts = _run(learner.model, work, partial(_loss, settings=settings), learner, train=True)
    sums = _over_all_ranks(metrics.add(parts))
    _check(sums)
    return sums


def update(learner: Learner, sums: Mapping[str, float]) -> Update:
    """The second half: weights by the gradients that `gradients` left. Raises StepRefused for
    their norm."""
    learner.optimizer.prepare_grads()
    norm = float(learner.optimizer.get_grad_norm())
    if not math.isfinite(norm):
        raise StepRefused(f"norm of the gradient must be finite, got {norm}")
    learner.optimizer.step()
    return Update(sums, norm)


def result_of(epochs: Sequence[Update]) -> StepResult:
    """What a step did in its epochs, of which there is one at least."""
    figures = metrics.summarise(metrics.over_epochs([each.sums for each in epochs]))
    return StepResult(
        epochs=len(epochs),
        loss=figures["loss"],
        grad_norm=max(each.grad_norm for each in epochs),
        figures=figures,
        tokens=int(epochs[0].sums["tokens"]),
    )


@torch.no_grad()
def score(
    learner: Learner,
    batches: Sequence[MicroBatch],
    *,
    temperature: float,
    model: torch.nn.Module | None = None,
) -> list[Tensor] | None:
    """(t,) logprobs of the labels for each micro-batch, by the learner's weights or by `model`.

    On the last pipeline stage, which is where the loss is; null on the others.
    """
    module = model or learner.model
    work = [Work(batch) for batch in batches]
    parts = _run(module, work, partial(_logprobs, temperature=temperature), learner, train=False)
    return [part["logprobs"] for part in parts] or None


def _run(
    model: torch.nn.Module,
    work: Sequence[Work],
    finish: Callable[[Work, Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]],
    learner: Learner,
    *,
    train: bool,
) -> list[dict[str, Tensor]]:
    """Runs Megatron's schedule; `finish` makes of the last stage's logits a loss, its count and
    what is to be returned of the micro-batch."""
    if not work:
        raise ValueError("every rank needs a micro-batch, got none: see trainer.packing.plan")

    def forward(iterator: Iterator[Work], stage: torch.nn.Module) -> tuple[Tensor, Any]:
        item = next(iterator)
        batch = item.batch
        packed = packed_samples(batch.lengths, batch.tokens.device)
        output = stage(batch.tokens, batch.positions, None, packed_seq_params=packed)
        return output, partial(finish, item)

    schedule = get_forward_backward_func()
    return schedule(
        forward_step_func=forward,
        data_iterator=iter(work),
        model=[model],
        num_microbatches=len(work),
        seq_length=learner.config.context,  # a bound only: lengths are told from stage to stage
        micro_batch_size=1,
        forward_only=not train,
    )


def _loss(
    work: Work, logits: Tensor, *, settings: LossSettings
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    batch = work.batch
    entropy = token_entropy(logits, settings.temperature)[0]
    scores = Scores(
        current=token_logprobs(logits, batch.labels, settings.temperature)[0],
        rollout=batch.rollout,
        advantages=batch.advantages,
        mask=batch.mask,
        samples=batch.samples,
        sample_count=max(len(batch.members), 1),
        old=work.old,
        reference=work.reference,
    )
    result = batch_loss(scores, settings)
    sums = metrics.measure(scores, result, settings, entropy=entropy, lag=batch.lags)
    return result.loss_sum, result.count.int(), sums


def _logprobs(
    work: Work, logits: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    logprobs = token_logprobs(logits, work.batch.labels, temperature)[0]
    return logprobs.sum(), work.batch.mask.sum().int(), {"logprobs": logprobs}


def _over_all_ranks(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Sums over data-parallel ranks, then told to the pipeline stages that have none."""
    found: list[dict[str, float] | None] = [None]
    if parallel_state.is_pipeline_last_stage():
        group = groups.data()
        names = sorted(sums)
        totals = torch.stack([sums[name] for name in names])
        maxima = totals.clone()
        dist.all_reduce(totals, group=group)
        dist.all_reduce(maxima, dist.ReduceOp.MAX, group=group)
        pairs = zip(names, totals.tolist(), maxima.tolist(), strict=True)
        found = [{name: most if name[:4] == "max_" else total for name, total, most in pairs}]
    stages = groups.pipeline()
    if stages.size() > 1:
        last = dist.get_global_rank(stages, stages.size() - 1)
        dist.broadcast_object_list(found, last, group=stages)
    return found[0] or {}


def _check(sums: Mapping[str, float]) -> None:
    if not sums["tokens"]:
        raise StepRefused("a batch must have a token that counts, got none")
    if not math.isfinite(sums["loss"]):
        raise StepRefused(f"loss must be finite, got {sums['loss']}")
