"""One trainer in a process of its own, which does a step for every line that it is sent.

    python -m benchmarks.trainer_worker ours compute 16

answers every line on its standard input by a line of JSON, a `Measured` of one step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.measured import Clock
from benchmarks.trainer_batch import LEARNING_RATE, SIZES, samples
from trainer.architecture import ModelConfig
from trainer.packing import Sample

THREADS = 2


@contextmanager
def ours(config: ModelConfig, batch: Sequence[Sample]) -> Iterator[Callable[[], float]]:
    """A step as the loop does it: packed, Megatron's schedule, all metrics."""
    from trainer.loss_settings import LossSettings
    from trainer.megatron_settings import MegatronSettings, OptimizerSettings
    from trainer.model import build_learner
    from trainer.packing import pack, plan
    from trainer.ranks import started
    from trainer.step import Work, train_step

    settings = MegatronSettings()
    optimizer = OptimizerSettings(learning_rate=LEARNING_RATE, clip_norm=1.0)
    lengths = [len(sample.token_ids) for sample in batch]
    with started(settings, config) as device:
        learner = build_learner(config, settings, optimizer, device)

        def step() -> float:
            (bins,) = plan(lengths, max(sum(lengths) // 4, *lengths))
            work = [Work(pack(batch, members).to(device)) for members in bins]
            return train_step(learner, work, LossSettings()).loss

        yield step


@contextmanager
def peer(name: str, config: ModelConfig, batch: Sequence[Sample]) -> Iterator[Callable[[], float]]:
    """One of `benchmarks.trainer_peers`."""
    from benchmarks import trainer_peers

    yield getattr(trainer_peers, name)(config, batch)


def main(name: str, size: str, count: str) -> None:
    """Serve steps until the input ends."""
    torch.set_num_threads(THREADS)
    config = SIZES[size]
    batch = samples(config, int(count), seed=1)
    tokens = sum(len(sample.token_ids) for sample in batch)
    with ours(config, batch) if name == "ours" else peer(name, config, batch) as step:
        for _ in sys.stdin:
            with Clock() as clock:
                loss = step()
            print(clock.measured(tokens, loss=loss).line(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
