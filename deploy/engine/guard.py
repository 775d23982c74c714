"""The process above a server: whichever of the two ends, the rest of the group ends with it.

    python guard.py {attached|detached} COMMAND...

Invariant: no process of the server outlives the server, this process or, when attached, the one
that started it. SGLang is several processes; a server that is killed, or whose test run is, would
else leave some that hold memory and a port.

- The server ended by itself: what is left of the group is killed.
- Standard input was closed while attached: the process that held its other end is gone, so the
  whole group is killed.
- This process was killed: the kernel kills the server, whose children ask the same of the kernel.
- SIGTERM or SIGINT: the server is asked to end; it finishes what it has.

Runs as a file, with the standard library alone, so it is up in no time.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1


def main(mode: str, command: list[str]) -> None:
    libc = ctypes.CDLL(None)
    guard = os.getpid()

    def die_with_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)  # it was killed before we asked

    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_guard,  # safe: this process has one thread
    )

    def ask_to_end(_number: int, _frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, ask_to_end)
    signal.signal(signal.SIGINT, ask_to_end)
    waiter = select.poll()
    waiter.register(os.pidfd_open(server.pid), select.POLLIN)
    if mode == "attached":
        waiter.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    waiter.poll()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
