"""A command that dies with the process that started it, however that ends.

    python -I -S tied.py PARENT_PID COMMAND...

Invariant: the command runs under the pid that the starter knows, so its exit status is its own; and
the kernel kills it when the starter's thread is gone. The kernel is asked before the command is
run, for a starter that is killed in between would leave it behind.

Runs as a file, with the standard library alone, so it is up in no time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:  # else it died before we asked
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
