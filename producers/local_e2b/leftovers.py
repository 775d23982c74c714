"""What a killed server left behind, ended at the next start in the same folder.

With bubblewrap nothing is left: the kernel ends every sandbox with its server. Without, its first
process ends all others when the server's socket closes; what escapes that (a command killed it)
still carries the sandbox's mark in its environment, unless it took pains to remove it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

MARK = "ROLLBOOK_SANDBOX"
"""In the environment of every process of a sandbox, with the sandbox's id."""


def kill_marked(box_id: str) -> int:
    """SIGKILL every process that carries the sandbox's mark; how many."""
    mark = f"{MARK}={box_id}".encode()
    killed = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                os.kill(int(name), signal.SIGKILL)
                killed += 1
    return killed


def clean_up(boxes: Path) -> int:
    """End and remove all sandboxes of an earlier server; how many there were."""
    found = sorted(boxes.iterdir()) if boxes.is_dir() else []
    for folder in found:
        kill_marked(folder.name)
        shutil.rmtree(folder, ignore_errors=True)
    return len(found)
