"""The command line and environment of a server. Pure functions.

A server without a GPU runs on torch's own operators (`torch_native` attention, no grammar backend).
Two settings keep it from starving whatever else runs on few cores: it sleeps when it is idle, where
it would otherwise spin, and computes with one thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.ports import HOST

CPU_SUPPORT = Path(__file__).parent / "cpu"
ALWAYS = (
    "--skip-tokenizer-init",  # token in, token out
    "--enable-metrics",  # without it no request's queue time is told
    "--load-snapshot-publish-interval=1",  # else the load of a busy engine is many steps old
    "--log-level-http=warning",  # a line of log for each request costs more than a short request
)
ON_CPU = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--mem-fraction-static=0.3",
    "--disable-overlap-schedule",
    "--sleep-on-idle",
)
CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How a server is run. None leaves a setting to SGLang, and to the model's config."""

    context_length: int | None = None
    """Most tokens of prompt and completion together."""
    kv_tokens: int | None = None
    """Capacity of the KV cache in tokens; None without a GPU: 16384."""
    max_running: int | None = None
    """Most requests that it runs at once; None without a GPU: 64."""
    dtype: str | None = None
    """Of weights and activations; None without a GPU: float32, the exact one."""
    model_name: str | None = None
    """The name that the engine gives its model; None: the path."""
    policy_version: int | None = 0
    """The version of the weights under the model's path; None: not said, so spans are unknown."""
    extra: tuple[str, ...] = ()
    """Further arguments; they win over ours."""

    def __post_init__(self) -> None:
        for name in ("context_length", "kv_tokens", "max_running"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.policy_version is not None and self.policy_version < 0:
            raise ValueError(f"policy_version must be at least 0, got {self.policy_version}")


def command(model_path: Path, port: int, settings: EngineSettings, gpu: bool) -> list[str]:
    """The command line of a server on loopback."""
    usual = (None, None, None) if gpu else (16_384, 64, "float32")
    kv_tokens, running, dtype = usual
    named = {
        "model-path": model_path,
        "host": HOST,
        "port": port,
        "served-model-name": settings.model_name,
        "context-length": settings.context_length,
        "max-total-tokens": settings.kv_tokens or kv_tokens,
        "max-running-requests": settings.max_running or running,
        "dtype": settings.dtype or dtype,
        "weight-version": settings.policy_version,
    }
    told = [f"--{name}={value}" for name, value in named.items() if value is not None]
    machine = () if gpu else ON_CPU
    launch = [sys.executable, "-m", "sglang.launch_server"]
    return [*launch, *told, *ALWAYS, *machine, *settings.extra]


def environment(base: Mapping[str, str], gpu: bool, has_kernels: bool) -> dict[str, str]:
    """The environment of a server, from that of this process. `has_kernels`: whether SGLang's real
    kernel library is installed; where it is, the stand-in for it stays out of the way."""
    env = dict(base) | {"HF_HUB_OFFLINE": "1"}  # the model is a folder; never look elsewhere
    if not gpu:
        env |= CPU_ENVIRONMENT
        if not has_kernels:
            paths = [str(CPU_SUPPORT), base.get("PYTHONPATH", "")]
            env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return env
