"""Who owns a spool: a lock on a file beside it, which goes with the process that holds it.

Invariants:

1. A lock counts only while its path still names the locked file. Else somebody who removes the file
   and somebody who opened it before would both believe that they own the spool.
2. A child of fork holds no lock of its parent: a spool must look dead when its owner is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from pathlib import Path

RETRY_S = 0.005

_guard = threading.Lock()
"""Held between opening a descriptor and knowing of it, and over a fork."""
_held: set[int] = set()
"""Descriptors of this process's locks."""


class OwnerLock:
    """The lock on one file. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, timeout_s: float = 0.0) -> bool:
        """Lock it; False if another one holds it for `timeout_s`. Raises OSError."""
        deadline = time.monotonic() + timeout_s
        while not self._names_the_file():
            self._let_go()
            if not self._try() and time.monotonic() >= deadline:
                return False
            if self._descriptor is None:
                time.sleep(RETRY_S)
        return True

    def release(self, *, remove: bool) -> None:
        """Unlock it, and remove the file if nothing is left that it guards."""
        if remove and self._names_the_file():
            self._path.unlink(missing_ok=True)
        self._let_go()

    def _try(self) -> bool:
        with _guard:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            _held.add(descriptor)
            self._descriptor = descriptor
            return True

    def _names_the_file(self) -> bool:
        if self._descriptor is None or self._descriptor not in _held:
            return False
        ours = os.fstat(self._descriptor)
        with contextlib.suppress(OSError):
            there = os.stat(self._path)
            return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
        return False

    def _let_go(self) -> None:
        with _guard:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None and descriptor in _held:
                _held.discard(descriptor)
                os.close(descriptor)


def _forget_in_child() -> None:
    # Closing, unlike unlocking, leaves the parent's lock alone.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget_in_child
)
