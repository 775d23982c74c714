"""What is kept about what runs on this machine: a file in its folder, `state.json` for servers.

Invariant: the file is replaced as a whole, so a reader sees the old state or the new one.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

NAME = "state.json"


def read(folder: Path) -> dict[str, Any]:
    """The state; empty when there is none, or none that can be read."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        return dict(json.loads((folder / NAME).read_text()))
    return {}


def write(folder: Path, state: dict[str, Any], name: str = NAME) -> None:
    """Replace the state."""
    new = folder / f"{name}.new"
    new.write_text(json.dumps(state, indent=2) + "\n")
    new.rename(folder / name)
