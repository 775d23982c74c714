"""What outlives a sandbox's first process, or a killed server: found and ended.

With bubblewrap nothing does: the kernel ends a pid namespace with its first process. Without, the
first process ends all others when the server's socket closes; what escapes that (a command may
have killed it) is known by its user id where the server is root, else by the sandbox's mark in its
environment, unless it took pains to remove it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from producers.local_e2b.isolation import UIDS, Host

MARK = "ROLLBOOK_SANDBOX"
"""In the environment of every process of a sandbox, with the sandbox's id."""


def kill_left(box_id: str, uid: int | None) -> int:
    """End what is left of a sandbox without a pid namespace; how many processes."""
    if uid is not None:
        return _kill(lambda process: process.stat().st_uid == uid)
    mark = f"{MARK}={box_id}".encode()
    return _kill(lambda process: mark in (process / "environ").read_bytes().split(b"\0"))


def clean_up(boxes: Path, host: Host) -> int:
    """End and remove all sandboxes of an earlier server; how many there were."""
    found = sorted(boxes.iterdir()) if boxes.is_dir() else []
    if host.first_uid is not None:
        ours = range(host.first_uid, host.first_uid + UIDS)
        _kill(lambda process: process.stat().st_uid in ours)
    for folder in found:
        if host.first_uid is None:
            kill_left(folder.name, None)
        shutil.rmtree(folder, ignore_errors=True)
    return len(found)


def _kill(ours: Callable[[Path], bool]) -> int:
    """SIGKILL until none is left: one may fork while we look."""
    killed = 0
    for _ in range(100):
        pids: list[int] = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if name.isdigit() and int(name) != os.getpid() and ours(Path("/proc", name)):
                    pids.append(int(name))
        alive = [pid for pid in pids if not _is_zombie(pid)]
        if not alive:
            return killed
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.002)
    return killed


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
