"""Whose a sandbox is, as its metadata says, and whether its owner has died.

Invariant: only a process of this very machine is called dead, and only when it certainly is, so
`Sandboxes.sweep` kills nothing that is in use. Of an owner elsewhere nothing is known; its
sandboxes end with their lifetime.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

OURS = {"rollbook": "sandbox"}
"""Metadata of every sandbox that we made."""
POOL = "rollbook_pool"
"""Metadata: UUID of the `Sandboxes` object that made it."""
START = "rollbook_start"
"""Metadata: UUID of the start, by which it is found when its answer got lost."""
OWNER = "rollbook_owner"
"""Metadata: the process, as `Owner.text`."""

_NAMES = ("run_id", "group_id", "slot", "trajectory_id", "try_no")
"""What a fact about it needs; each is metadata with `rollbook_` before it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told from all others."""

    machine: str
    """Host name, boot and pid namespace: what makes pids comparable."""
    pid: int
    """Its pid there."""
    started: int
    """Clock ticks from the boot to its start: pids are used again."""

    @classmethod
    def this_process(cls) -> Self:
        return cls(_machine(), os.getpid(), _started(os.getpid()) or 0)

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """None: no owner that we would have written."""
        match metadata.get(OWNER, "").split("|"):
            case [machine, pid, started] if pid.isdecimal() and started.isdecimal():
                return cls(machine, int(pid), int(started))
        return None

    @property
    def text(self) -> str:
        return f"{self.machine}|{self.pid}|{self.started}"

    @property
    def is_dead(self) -> bool:
        """Whether it has certainly ended."""
        if not self.started or self.machine != _machine():
            return False
        return _started(self.pid) != self.started


def metadata(ids: Mapping[str, Any], pool: str, start: str) -> dict[str, str]:
    """What a new sandbox is labelled with. `ids` are those of its try's BoundRecorder."""
    names = {f"rollbook_{name}": str(ids[name]) for name in _NAMES if name in ids}
    return {**OURS, **names, POOL: pool, START: start, OWNER: Owner.this_process().text}


def ids_of(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """What a fact about the sandbox needs; None when the metadata lacks it."""
    try:
        ids: dict[str, Any] = {name: metadata[f"rollbook_{name}"] for name in _NAMES}
        return {**ids, "slot": int(ids["slot"]), "try_no": int(ids["try_no"])}
    except (KeyError, ValueError):
        return None


def _machine() -> str:
    return "/".join(
        (
            platform.node().replace("|", "_"),
            _read("/proc/sys/kernel/random/boot_id").strip(),
            os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else "",
        )
    )


def _started(pid: int) -> int | None:
    """None: there is no such process, or it has ended and waits for its parent. 0 where no /proc
    tells."""
    if not os.path.isdir("/proc/self"):
        return 0
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # From field 3 on: the state, and as field 22 the start.
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
