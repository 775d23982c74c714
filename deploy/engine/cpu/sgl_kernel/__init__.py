"""Stands in for SGLang's kernel library where there is no build for the machine: imports succeed.

A server on a CPU takes torch's own operators; it imports these names and never calls them. One that
is called all the same says so, in place of answering something wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.0.0+standin"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):  # what the import system asks of a module must stay absent
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def operator(*_args: Any, **_options: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} was called, but this machine has no kernels for SGLang:"
            " the server runs with --device cpu on torch's own operators"
        )

    operator.__name__ = name
    return operator
