"""The model and the batch that all trainers of the benchmark get: random, the same by the seed."""

from __future__ import annotations

import random

from trainer.architecture import Family, ModelConfig
from trainer.packing import Sample

PROMPT = 32
"""Tokens of every prompt."""
LEARNING_RATE = 1e-5

SIZES = {
    "compute": ModelConfig(
        family=Family.QWEN3,
        layers=6,
        hidden=384,
        mlp_hidden=1536,
        heads=6,
        kv_heads=3,
        head_dim=64,
        vocab=8192,
        context=1024,
    ),
    "tiny": ModelConfig(
        family=Family.QWEN3,
        layers=2,
        hidden=64,
        mlp_hidden=128,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=32,
        context=1024,
    ),
}
"""About 20 million parameters, where computing dominates, and the demo's size."""


def samples(config: ModelConfig, count: int, seed: int) -> list[Sample]:
    """Samples whose lengths have a heavy tail, as those of agents have: a median of about 100
    tokens behind the prompt, at most 480."""
    chance = random.Random(seed)
    found: list[Sample] = []
    for number in range(count):
        completion = min(480, max(8, round(chance.lognormvariate(4.6, 0.7))))
        length = PROMPT + completion
        found.append(
            Sample(
                token_ids=[chance.randrange(config.vocab) for _ in range(length)],
                loss_mask=[0] * PROMPT + [1] * completion,
                logprobs=[-chance.uniform(8.0, 10.0) for _ in range(length)],
                advantage=1.0 if number % 2 else -1.0,
                lags=[0] * length,
            )
        )
    return found
