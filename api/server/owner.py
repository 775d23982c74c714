"""The owner of the book: keeps it up with the log, and knows where it stands.

Invariant: a projector that fails is started again for as long as the owner lives; meanwhile the
book answers from where it is, and says that it isn't ready.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

import duckdb

from api.server.reading import Readings
from api.server.settings import ServeSettings
from consumers.insert import Inserted
from consumers.projector import Projector
from ledger.book import Book, positions_in
from ledger.log import EventLog, LogError, Positions, reached

logger = logging.getLogger(__name__)

RETRY_S = 2.0
WATCH_S = 0.1
"""How often the book's positions are looked at."""
ENDS_S = 1.0
"""How often the log is asked for its end."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the book stands."""

    positions: Positions
    """What it has read, or has nothing to read before."""
    ends: Positions
    """Where the log ended when it was last asked."""
    caught_up_at: float
    """When it was last at the log's end, by the monotonic clock."""
    failure: str | None
    """Why nothing is projected; null: it is."""

    @property
    def behind(self) -> int:
        """Records between the book and the log's end."""
        return sum(max(0, end - self.positions[place]) for place, end in self.ends.items())

    @property
    def lag_s(self) -> float:
        """Seconds since the book was at the log's end; 0: it is there."""
        return time.monotonic() - self.caught_up_at if self.behind or self.failure else 0.0


class Owner:
    """Projects into the book, in threads of its own, until it is stopped."""

    def __init__(self, log: EventLog, book: Book, settings: ServeSettings) -> None:
        self.log = log
        self.book = book
        self.settings = settings
        self.readings = Readings(book.connection, settings.answer_s)
        self._counting = threading.Lock()
        self._ended = Inserted()
        """By the projectors that have ended."""
        self._projector: Projector | None = None
        self._failure: str | None = None
        self._stop = threading.Event()
        self._cursor = book.connection.cursor()
        positions = book.positions()
        self.standing = Standing(positions, positions, time.monotonic(), "starting")
        self._threads = [
            threading.Thread(target=self._project, name="rollbook-project"),
            threading.Thread(target=self._watch, name="rollbook-watch"),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the projection with the chunk in hand."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def projected(self) -> Inserted:
        """What became of the records read since the start."""
        with self._counting:
            return self._sum()

    def _sum(self) -> Inserted:
        projector = self._projector
        return self._ended if projector is None else self._ended + projector.inserted

    def _project(self) -> None:
        while not self._stop.is_set():
            self._projector = Projector(self.log, self.book)
            self._failure = None
            try:
                self._projector.follow(self._stop)
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"
                logger.error("the projector failed and starts again: %s", self._failure)
                self._stop.wait(RETRY_S)
            with self._counting:
                self._ended, self._projector = self._sum(), None

    def _watch(self) -> None:
        starts: Positions = {}
        ends, asked_at, caught_up_at = self.standing.ends, 0.0, time.monotonic()
        while not self._stop.wait(WATCH_S):
            failure, now = self._failure, time.monotonic()
            try:
                if now - asked_at >= ENDS_S:
                    starts = starts or self.log.start_positions("events")  # facts never go
                    ends, asked_at = self.log.end_positions("events"), now
                positions = starts | positions_in(self._cursor)
            except (LogError, duckdb.Error) as error:
                positions, failure = starts | self.standing.positions, failure or str(error)
            if not failure and reached(positions, ends):
                caught_up_at = now
            self.standing = Standing(positions, ends, caught_up_at, failure)
