"""Megatron on a machine without a GPU: the same calls, on CPU tensors and gloo.

Megatron names the device `cuda` in some forty places and offers no setting for it. torch has a hook
for that, the function mode: while `standing_in` is open, whatever asks for `cuda` gets `cpu`. What
doesn't go through the hook (streams, the random state, the current device) is replaced beside it.
The hook costs some 3 microseconds a call of torch, which is lost in the time of any real matrix.

Nothing here is imported, let alone active, where there is a GPU: see `trainer.ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _CudaIsCpu(TorchFunctionMode):
    """Every tensor that would be on `cuda` is on `cpu`, and says that its type is a CUDA type:
    Megatron's optimizers sort parameters by `Tensor.type()` and refuse the CPU's."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if kwargs and "device" in kwargs:
            kwargs = kwargs | {"device": _on_cpu(kwargs["device"])}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *(_on_cpu(value) for value in args[1:]))
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return result.replace("torch.", "torch.cuda.")
        return result


class _Stream:
    """A CUDA stream where everything happens at once, in order."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def nothing(self, *_: Any, **__: Any) -> None: ...

    wait_stream = wait_event = wait = synchronize = nothing

    def record_event(self, *_: Any) -> _Stream:
        return self


_OF_CUDA: dict[str, Any] = {
    "current_device": lambda: CPU,
    "synchronize": lambda *_: None,
    "empty_cache": lambda: None,
    "manual_seed": torch.manual_seed,  # without it weights would start from unseeded numbers
    "get_rng_state": lambda *_, **__: torch.get_rng_state(),
    "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    "Stream": _Stream,
    "current_stream": _Stream,
    "default_stream": _Stream,
    "stream": lambda *_: nullcontext(),
}
"""Functions of torch.cuda that the hook doesn't see."""

_OF_MEGATRON: dict[str, Any] = {
    "_get_cuda_rng_state": lambda *_, **__: torch.get_rng_state(),
    "_set_cuda_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
}
"""Functions of Megatron's random module that go to torch's CUDA generators directly."""


@contextmanager
def standing_in() -> Iterator[torch.device]:
    """While open, this thread's Megatron calls run on the CPU. Raises RuntimeError if there is a
    GPU."""
    if torch.cuda.is_available():
        raise RuntimeError("the CPU stands in for a GPU only where there is none")
    with (
        _replaced(torch.cuda, _OF_CUDA),
        _replaced(megatron_random, _OF_MEGATRON),
        torch.compiler.set_stance("force_eager"),  # compiling would need a C++ compiler
        _CudaIsCpu(),
    ):
        yield CPU


@contextmanager
def _replaced(module: ModuleType, functions: Mapping[str, Any]) -> Iterator[None]:
    originals = {name: getattr(module, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(module, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(module, name, function)


def _on_cpu(device: Any) -> Any:
    named = isinstance(device, str) and device.split(":")[0] == "cuda"
    return CPU if named or (isinstance(device, torch.device) and device.type == "cuda") else device
