"""Delivery: encoded facts to the log, or to the spool while the log is away.

Invariant: what `deliver` returned for is durable, and facts reach the log in the order in which
they were delivered. So while anything waits in the spool, new facts go behind it; and the spool is
empty only once the log has all that was in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from ledger.log import EventLog
from ledger.recording.drainer import Drainer
from ledger.recording.log_link import LogLink
from ledger.recording.losses import Losses
from ledger.recording.spool import folder_of, spool_name
from ledger.recording.spool_file import Spool
from ledger.wire.encoder import Encoded

logger = logging.getLogger(__name__)

DIRECT_TIMEOUT_S = 2.0
"""A log that does not take a chunk in this time gets it by way of the spool, which bounds how long
a fact is neither here nor there."""


class NotDelivered(Exception):
    """Neither the log nor the spool took the facts; nothing of them is lost yet."""


class Delivery:
    """The way of one incarnation's facts to the log. `deliver` is for one thread."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str],
        spool_root: Path,
        names: tuple[str, str],
        losses: Losses,
    ) -> None:
        """`names` are the producer's and the incarnation's."""
        folder = folder_of(spool_root, url)
        self._link = LogLink(url, options)
        self._spool = Spool(folder / spool_name(*names), losses.add_damaged)
        self._drainer = Drainer(self._link, self._spool, folder, f"rollbook-{names[0]}-drain")
        self._spool_error = ""

    @property
    def last_error(self) -> str:
        """Why the log or the spool last refused; for the facts that say what was lost."""
        return "; ".join(filter(None, (self._link.last_error, self._spool_error)))

    def start(self) -> None:
        """Begin to open the log; raises RuntimeError where no thread can be started."""
        self._drainer.start()

    @property
    def waiting(self) -> Path | None:
        """The file with what the log has not taken yet; None when it has all."""
        return self._spool.path if self._spool.path.exists() else None

    def hurry(self, deadline: float) -> None:
        """All has to be delivered by `deadline`: don't wait for a log that isn't open yet for
        longer than half of the time."""
        now = time.monotonic()
        self._link.hurry(now + (deadline - now) / 2)

    def deliver(self, encoded: Encoded) -> None:
        """Make facts durable. Raises NotDelivered."""
        log = self._link.usable() if self._spool.empty else None
        if log is not None:
            try:
                self._append(log, encoded)
            except Exception as error:  # of a client in any state; the spool is tried next
                self._link.failed(error)
            else:
                return
        try:
            self._spool.append(encoded.tokens, encoded.events)
        except Exception as error:
            self._note_refusal(error)
            raise NotDelivered(self.last_error) from error
        finally:
            self._drainer.wake()
        self._spool_error = ""

    def finish(self, deadline: float) -> None:
        """Bring what is spooled to the log if it is there, until the monotonic clock passes
        `deadline`, and let go of both. What is still spooled waits for the next start."""
        self._drainer.finish(deadline)

    def _append(self, log: EventLog, encoded: Encoded) -> None:
        # Payloads first: a fact must never name a payload that isn't there.
        log.append_each({"tokens": encoded.tokens, "events": encoded.events}, DIRECT_TIMEOUT_S)
        self._link.worked()

    def _note_refusal(self, error: Exception) -> None:
        if not self._spool_error:
            logger.error("spool %s refused facts: %s", self._spool.path, error)
        self._spool_error = f"spool {self._spool.path}: {error}"
