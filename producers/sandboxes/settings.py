"""Settings of the sandboxes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

from e2b.api import max_connections
from e2b.connection_config import ApiParams

KILL_RESERVE = 10
"""Connections that only kills and questions use: a command that must end can't wait for one that
doesn't."""


def default_connections() -> int:
    """Commands and transfers at once. Beyond its own limit (`E2B_MAX_CONNECTIONS`, 200) the SDK
    waits without a word, so we stay below it and count who waits."""
    return max(1, max_connections - KILL_RESERVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How sandboxes are had. Raises ValueError for what can't work."""

    backend: str = "e2b"
    """Name that the facts give it."""
    api_url: str | None = None
    """Control plane; None: the SDK's default (`E2B_API_URL`)."""
    sandbox_url: str | None = None
    """One URL for the inside of all sandboxes; None: the SDK's default (`E2B_SANDBOX_URL`)."""
    api_key: str | None = field(default=None, repr=False)
    """None: `E2B_API_KEY`."""
    template: str = "base"
    """Template where a task names none."""
    slots: int = 16
    """Sandboxes at once."""
    start_timeout_s: float = 60.0
    """A start that takes longer has failed."""
    request_timeout_s: float = 30.0
    """Any other request, and opening a command's stream."""
    lifetime_s: float = 3600.0
    """The backend kills a sandbox of this age, if nobody did before."""
    start_tries: int = 3
    """Starts that one trajectory tries."""
    backoff_s: float = 0.5
    """Before the second try; doubles from try to try up to 10 s, with jitter."""
    http_connections: int = field(default_factory=default_connections)
    """Commands and transfers at once, over all sandboxes."""
    output_limit: int = 1 << 20
    """Characters kept of each of a command's two outputs: both ends."""
    metrics_every_s: float | None = None
    """How often each sandbox's memory and disk are asked for; None: only when one fails."""

    def __post_init__(self) -> None:
        for name in ("slots", "start_tries", "http_connections"):
            _check(name, getattr(self, name), 1, math.inf)
        _check("output_limit", self.output_limit, 4096, math.inf)
        for name in ("start_timeout_s", "request_timeout_s"):
            _check(name, getattr(self, name), 0.001, 86_400)
        _check("lifetime_s", self.lifetime_s, 1, 86_400)
        _check("backoff_s", self.backoff_s, 0, 60)
        if self.metrics_every_s is not None:
            _check("metrics_every_s", self.metrics_every_s, 0.01, 86_400)
        if not self.template:
            raise ValueError("template must name one, got '' (SandboxSettings)")

    def api(self, retries: int = 3) -> ApiParams:
        """What every call of the SDK is given. Its own timeouts are off, since ours hold on every
        version of Python; and `E2B_DEBUG`, with which kills do nothing, is overruled. `retries` are
        the SDK's own, after 429 and 5xx of the control plane."""
        return {
            "api_key": self.api_key,
            "api_url": self.api_url,
            "sandbox_url": self.sandbox_url,
            "debug": False,
            "request_timeout": 0,
            "retries": retries,
        }

    def without_key(self, text: str) -> str:
        """`text` with the key blotted out, should a server have repeated it."""
        key = self.api_key or os.environ.get("E2B_API_KEY")
        return text.replace(key, "[api key]") if key else text


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        rule = f"at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise ValueError(f"{name} must be {rule}, got {value} (SandboxSettings)")
