"""What the trainer is compared with: the same step by transformers and plain torch, and by TRL.

Both pad, as their users do: prompts on the left, completions on the right.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.trainer_batch import LEARNING_RATE, PROMPT
from trainer.architecture import ModelConfig, to_hf
from trainer.packing import Sample

CLIP = 0.2


def plain(config: ModelConfig, batch: Sequence[Sample]) -> Callable[[], float]:
    """GRPO with the clipped ratio and the mean over tokens, written out."""
    model, columns = _model(config), _columns(batch)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    ids = torch.cat([columns["prompt_ids"], columns["completion_ids"]], 1)
    seen = torch.cat([columns["prompt_mask"], columns["completion_mask"]], 1)
    labels, mask = columns["completion_ids"], columns["completion_mask"]
    advantages = columns["advantages"][:, None]

    def step() -> float:
        optimizer.zero_grad()
        logits = model(ids, attention_mask=seen, logits_to_keep=labels.shape[1] + 1).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        ratio = (logprobs - logprobs.detach()).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        losses = -torch.min(ratio * advantages, clipped * advantages)
        loss = (losses * mask).sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return step


def trl(config: ModelConfig, batch: Sequence[Sample]) -> Callable[[], float]:
    """The loss of TRL's own GRPOTrainer, with torch's AdamW."""
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    model, columns = _model(config), _columns(batch)
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=lambda prompts, **_: [0.0] * len(prompts),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                loss_type="bnpo",  # the mean over the tokens of the batch
                epsilon=CLIP,
                beta=0.0,
                per_device_train_batch_size=len(batch),
                num_generations=len(batch),
                report_to="none",
            ),
            train_dataset=Dataset.from_dict({"prompt": ["1"] * len(batch)}),
            processing_class=_tokenizer(config),
        )
    model.train()
    trainer.current_gradient_accumulation_steps = 1
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)

    def step() -> float:
        optimizer.zero_grad()
        loss = trainer._compute_loss(model, columns)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def _model(config: ModelConfig) -> Any:
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(to_hf(config, "float32")))
        described = AutoConfig.from_pretrained(folder)
    return AutoModelForCausalLM.from_config(described, attn_implementation="sdpa").train()


def _columns(batch: Sequence[Sample]) -> dict[str, Tensor]:
    """Padded columns, as TRL names them: (samples, tokens)."""
    longest = max(len(sample.token_ids) for sample in batch) - PROMPT
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    mask = torch.zeros(len(batch), longest, dtype=torch.int64)
    for row, sample in enumerate(batch):
        length = len(sample.token_ids) - PROMPT
        ids[row, :length] = torch.tensor(sample.token_ids[PROMPT:])
        mask[row, :length] = 1
    prompts = torch.tensor([list(sample.token_ids[:PROMPT]) for sample in batch])
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor([sample.advantage for sample in batch]),
    }


def _tokenizer(config: ModelConfig) -> Any:
    """TRL wants one, and never uses it here."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {str(number): number for number in range(config.vocab)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="0", eos_token="1"
    )
