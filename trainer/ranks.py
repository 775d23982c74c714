"""The ranks of one trainer: process group, parallel groups and random state, set up and torn down.

Under torchrun the ranks find one another by its environment; without, there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from trainer.architecture import ModelConfig
from trainer.megatron_settings import MegatronSettings

COLLECTIVE_LIMIT = timedelta(minutes=10)
"""A rank gives up waiting for another after this: one that died must not hold up a machine."""


@contextmanager
def started(
    settings: MegatronSettings, model: ModelConfig, *, seed: int = 1
) -> Iterator[torch.device]:
    """Inside, Megatron can be called on the device that is given. Raises ValueError for settings
    that don't fit the model, the number of ranks or the machine."""
    gpu = torch.cuda.is_available()
    settings.check(model, world_size(), gpu=gpu)
    with _device(gpu) as device, _joined(gpu):
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=settings.tensor,
            pipeline_model_parallel_size=settings.pipeline,
        )
        try:
            torch.manual_seed(seed)
            tensor_parallel.model_parallel_cuda_manual_seed(seed)
            yield device
        finally:
            parallel_state.destroy_model_parallel()


@contextmanager
def _device(gpu: bool) -> Iterator[torch.device]:
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        yield torch.device("cuda", torch.cuda.current_device())
    else:
        from trainer import cpu

        with cpu.standing_in() as device:
            yield device


@contextmanager
def _joined(gpu: bool) -> Iterator[None]:
    """A process group, unless whoever called has made one."""
    if dist.is_initialized():
        yield
        return
    backend = "nccl" if gpu else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=COLLECTIVE_LIMIT)
    else:
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def world_size() -> int:
    """Ranks of this trainer, also before they are joined."""
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))
