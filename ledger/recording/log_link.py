"""A recorder's connection to its log: opened in the background, then there or away.

Two threads share it: the drainer opens the log, which may take long, and the deliver thread uses
it. Invariant: nothing secret in the URL or the options is in a message that leaves this module.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from ledger.log import EventLog, LogError
from ledger.open_log import SECRET_OPTION, open_log, redact

logger = logging.getLogger(__name__)

OPEN_WAIT_S = 5.0
"""The first facts wait this long for the log to open; then they go to the spool."""
BACKOFF_S = (0.2, 5.0)
"""A log that is away is tried again after this long, doubling from the first to the second."""


class LogLink:
    """One log, or its absence. Thread-safe."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._open: Callable[[], EventLog] = lambda: open_log(url, options)
        self._shown = redact(url)
        self._secrets = secrets_of(url, options)
        self._changed = threading.Condition()
        self._log: EventLog | None = None
        self._away = False
        self._backoff_s = BACKOFF_S[0]
        self._retry_at = 0.0
        self._wait_until: float | None = None
        self.last_error = ""
        """Why the log last refused; empty while it is there."""
        self.failures = 0
        """Attempts that failed so far."""

    @property
    def away(self) -> bool:
        """Whether it can't be reached, by the last attempt."""
        return self._away

    def usable(self) -> EventLog | None:
        """The log, unless it is away. Waits for a log that is being opened the first time."""
        with self._changed:
            if self._wait_until is None:
                self._wait_until = time.monotonic() + OPEN_WAIT_S
            while self._log is None and not self._away:
                left_s = self._wait_until - time.monotonic()
                if left_s <= 0:
                    self._note_away("it did not open in time")
                    break
                self._changed.wait(left_s)
            return self._log if time.monotonic() >= self._retry_at else None

    def hurry(self, wait_until: float) -> None:
        """Wait for the first opening no longer than until `wait_until`."""
        with self._changed:
            if self._wait_until is None or self._wait_until > wait_until:
                self._wait_until = wait_until
            self._changed.notify_all()

    def open(self) -> EventLog | None:
        """The log, opened if it is not; None while it is away. Can take as long as its client."""
        with self._changed:
            if time.monotonic() < self._retry_at:
                return None
            if self._log is not None:
                return self._log
        try:
            log = self._open()
        except Exception as error:  # a client may fail in any way; the facts go to the spool
            self.failed(error)
            return None
        with self._changed:
            self._log = log
            self._note_back()
            self._changed.notify_all()
        return log

    def retry_now(self) -> None:
        """Don't wait any longer before the next attempt."""
        self._retry_at = 0.0

    @property
    def retry_in_s(self) -> float:
        """Seconds until a log that is away is worth another attempt."""
        return max(0.05, self._retry_at - time.monotonic())

    def worked(self) -> None:
        """An append succeeded."""
        with self._changed:
            self._note_back()
            self._backoff_s = BACKOFF_S[0]

    def failed(self, error: Exception) -> None:
        """An attempt to open it, or to append, failed."""
        unsure = None
        with self._changed:
            self._note_away(f"{self._hide(str(error)) or type(error).__name__}")
            self.failures += 1
            self._retry_at = time.monotonic() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S[1])
            if not isinstance(error, LogError):  # its client is in an unknown state
                unsure, self._log = self._log, None
            self._changed.notify_all()
        if unsure is not None:
            logger.error("log %s raised %s, opening it again", self._shown, type(error).__name__)
            self._close(unsure)

    def close(self) -> None:
        """Let go of it."""
        with self._changed:
            log, self._log = self._log, None
        if log is not None:
            self._close(log)

    def _note_away(self, why: str) -> None:
        self.last_error = f"log {self._shown}: {why}"
        if not self._away:
            self._away = True
            logger.warning("%s; facts go to the spool until it is back", self.last_error)

    def _note_back(self) -> None:
        if self._away:
            logger.warning("log %s is back", self._shown)
        self._away = False
        self.last_error = ""

    def _close(self, log: EventLog) -> None:
        try:
            log.close()
        except Exception as error:  # everything in it is durable, or counted elsewhere
            said = self._hide(f"{type(error).__name__}: {error}")
            logger.warning("log %s could not be closed: %s", self._shown, said)

    def _hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def secrets_of(url: str, options: Mapping[str, str]) -> list[str]:
    """Texts that no message may quote, the longest first."""
    parts = urlsplit(url)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    given = [*parse_qsl(parts.query), *options.items()]
    values = [password, *(value for name, value in given if SECRET_OPTION.search(name))]
    return sorted({form for each in values for form in (each, unquote(each)) if form}, key=len)[
        ::-1
    ]
