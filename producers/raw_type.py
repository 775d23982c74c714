"""The class name that a fact gives an error: the SDK's or the client's, not that of our wrapper."""

from __future__ import annotations

from producers.engine import EngineError
from producers.sandbox import SandboxError


def raw_type(error: BaseException) -> str:
    """Name of the class that was raised first."""
    ours = isinstance(error, EngineError | SandboxError)
    return error.error_type if ours else type(error).__name__
