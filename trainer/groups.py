"""Megatron's process groups, as they are inside `trainer.ranks.started`."""

from __future__ import annotations

from typing import TypeVar, cast

import torch.distributed as dist
from megatron.core import parallel_state
from torch.distributed import ProcessGroup

T = TypeVar("T")


def tensor() -> ProcessGroup:
    """Ranks that share this rank's matrices."""
    return cast(ProcessGroup, parallel_state.get_tensor_model_parallel_group())


def pipeline() -> ProcessGroup:
    """Ranks that have the other layers, in order of stages."""
    return cast(ProcessGroup, parallel_state.get_pipeline_model_parallel_group())


def data() -> ProcessGroup:
    """Ranks that have the same weights, and other samples."""
    return cast(ProcessGroup, parallel_state.get_data_parallel_group())


def agreed(value: T) -> T:
    """Rank 0's value on every rank; a collective over all. The others' is not looked at."""
    found = [value]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(found, 0)
    return found[0]
