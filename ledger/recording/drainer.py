"""The drain thread: opens the log, and brings to it what waits in spools.

A thread of its own, since a log that is away lets its callers wait for seconds, and facts must
become durable in the spool meanwhile. It serves the recorder's own spool before those that dead
recorders left, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ledger.recording.log_link import LogLink
from ledger.recording.spool import orphans
from ledger.recording.spool_file import Spool

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 10.0
"""One append of spooled records."""


class Drainer:
    """The drain thread of one recorder. When it ends, it closes log and spools."""

    def __init__(self, link: LogLink, spool: Spool, folder: Path, name: str) -> None:
        self._link = link
        self._spool = spool
        self._folder = folder
        self._orphans: Iterator[Spool] | None = None
        self._orphan: Spool | None = None
        self._sought = False
        self._finish_by: float | None = None
        self._failures = 0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; raises RuntimeError where no thread can be started."""
        self._thread.start()

    def wake(self) -> None:
        """There is something in the spool, or the log was lost."""
        self._wake.set()

    def finish(self, deadline: float) -> None:
        """Drain until nothing is left, an attempt shows that the log is away, or the monotonic
        clock passes `deadline`; then end."""
        self._failures = self._link.failures
        self._link.retry_now()
        self._finish_by = deadline
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._done():
            try:
                moved = self._step()
            except Exception:  # a bug here must not end the draining
                logger.exception("a spool could not be drained, trying again")
                moved = False
            if not moved and not self._done():
                idle = self._nothing_left and not self._link.away
                self._wake.wait(None if idle else self._link.retry_in_s)
                self._wake.clear()
        if self._orphan is not None:
            self._orphan.close()
        self._spool.close()
        self._link.close()

    def _step(self) -> bool:
        """Move a part of what waits; False when there was nothing to do, or no log."""
        log = self._link.open()
        spool = self._next() if log is not None else None
        if log is None or spool is None:
            return False
        try:
            if spool.drain(log, DRAIN_TIMEOUT_S):
                self._link.worked()
        except Exception as error:  # of a client in any state; nothing left the spool
            self._link.failed(error)
            return False
        return True

    def _next(self) -> Spool | None:
        """The spool whose turn it is."""
        if not self._spool.empty:
            return self._spool
        if self._orphan is not None and self._orphan.empty:
            self._orphan.close()
            self._orphan = None
        if self._orphan is None and not self._sought:
            self._orphans = self._orphans or orphans(self._folder)
            self._orphan = next(self._orphans, None)
            self._sought = self._orphan is None
        return self._orphan

    @property
    def _nothing_left(self) -> bool:
        return self._spool.empty and self._orphan is None and self._sought

    def _done(self) -> bool:
        if self._finish_by is None:
            return False
        in_vain = self._link.away and self._link.failures > self._failures
        return self._nothing_left or in_vain or time.monotonic() >= self._finish_by
