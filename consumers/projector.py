"""The projector: log -> book.

    log ─▶ read and decode (this thread) ─▶ queue of 2 ─▶ insert (another thread) ─▶ book

Invariant: the book's positions and rows move together, so it may be killed at any moment; what it
reads again is dropped as a duplicate or was never there. It never stops for a bad record: that
goes to `quarantine`, with its place and the reason.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from consumers.decode import Decoded, decode_batches
from consumers.dedupe import HighestIds
from consumers.insert import Inserted, insert
from consumers.keeper import Keeper
from ledger.book import Book
from ledger.log import EventLog, LogUnavailable, Positions, Reader, RecordBatch, reached

logger = logging.getLogger(__name__)

CHUNK_RECORDS = 50_000
CHUNK_BYTES = 32 * 1024 * 1024
"""One insert takes at most about this much: larger ones cost less per fact, and more memory."""
LAST_CHUNK_RECORDS = 10_000
"""While the last chunk is inserted, nothing is left to read: so a known end is neared in ever
smaller chunks, down to this."""
POLL_RECORDS = 2_000
"""Records of one poll: with more, Python's collector walks through most of them before they go."""
POLL_S = 0.1
"""How long a chunk that isn't full waits for more."""
CHUNK_S = 0.25
"""How long a chunk is filled at most while the log is followed, and more keeps coming."""
RETRY_S = 1.0

Progress = Callable[[int, int], None]
"""(records read, records to read) -> None"""


@dataclass(frozen=True, slots=True)
class _Chunk:
    decoded: Decoded
    positions: Positions


class Projector:
    """Projects one log into one book."""

    def __init__(self, log: EventLog, book: Book) -> None:
        self._log = log
        self._book = book
        self._highest = HighestIds(book.connection)
        self._chunks: queue.Queue[_Chunk | None] = queue.Queue(maxsize=2)
        self._failure: BaseException | None = None
        self.inserted = Inserted()
        """What became of the records read so far."""

    def catch_up(self, until: Positions | None = None, progress: Progress | None = None) -> None:
        """Project up to `until`, or to where the log ends now.

        Raises PositionOutOfRange when the book's positions are not in this log,
        LogUnavailable."""
        target = until or self._log.end_positions("events")
        self._run(target, threading.Event(), progress)

    def follow(self, stop: threading.Event, pause_s: float = 0.0) -> None:
        """Project for as long as `stop` isn't set; waits for a log that is away. `pause_s`: seconds
        between two chunks, for fewer and larger ones cost less."""
        keeper = Keeper(self._book)
        keeper.start()
        try:
            self._run(None, stop, None, pause_s)
        finally:
            keeper.stop()

    def _run(
        self,
        target: Positions | None,
        stop: threading.Event,
        progress: Progress | None,
        pause_s: float = 0.0,
    ) -> None:
        start = self._log.start_positions("events") | self._book.positions()
        inserter = threading.Thread(target=self._insert_loop, name="rollbook-insert")
        inserter.start()
        try:
            with self._log.reader(start) as reader:
                for chunk in self._read(reader, start, target, stop, progress):
                    self._chunks.put(chunk)
                    if self._failure is not None:
                        break
                    stop.wait(pause_s)
        finally:
            self._chunks.put(None)
            inserter.join()
        if self._failure is not None:
            raise self._failure

    def _read(
        self,
        reader: Reader,
        start: Positions,
        target: Positions | None,
        stop: threading.Event,
        progress: Progress | None,
    ) -> Iterable[_Chunk]:
        total = sum(target.values()) - sum(start.values()) if target else 0
        while not stop.is_set():
            positions = reader.positions
            if target is not None and reached(positions, target):
                break
            batches = self._fill(reader, positions, target)
            if not batches and reader.positions == positions:
                continue
            read = _capped(reader.positions, target)
            yield _Chunk(decode_batches(batches), read)
            if progress is not None:
                progress(sum(read.values()) - sum(start.values()), total)

    def _fill(
        self, reader: Reader, positions: Positions, target: Positions | None
    ) -> list[RecordBatch]:
        """Batches of up to a chunk from `positions` on; fewer when no more come for a while."""
        filled: list[RecordBatch] = []
        records = size = 0
        patient = target is None
        room = CHUNK_RECORDS if target is None else chunk_records(positions, target)
        deadline = time.monotonic() + CHUNK_S
        while records < room and size < CHUNK_BYTES:
            try:
                batches = reader.poll(POLL_S, min(POLL_RECORDS, room - records))
            except LogUnavailable as error:
                if not patient:
                    raise
                logger.warning("waiting for the log: %s", error)
                time.sleep(RETRY_S)
                batches = []
            batches = [_until(batch, target) for batch in batches]
            filled += [batch for batch in batches if len(batch)]
            records += sum(map(len, batches))
            size += sum(sum(map(len, batch.values)) for batch in batches)
            if not batches or (patient and time.monotonic() >= deadline):
                break
            if target is not None and reached(reader.positions, target):
                break  # what lies behind it would be read for nothing
        return filled

    def _insert_loop(self) -> None:
        try:
            self._book.add_views()  # while the first chunk is read
        except BaseException as error:
            self._failure = error
        while (chunk := self._chunks.get()) is not None:
            if self._failure is not None:
                continue  # the reader may be waiting for room; it looks at the failure next
            try:
                done = insert(self._book, self._highest, chunk.decoded, chunk.positions)
            except BaseException as error:
                self._failure = error
            else:
                self.inserted = self.inserted + done


def chunk_records(positions: Positions, target: Positions) -> int:
    """Half of what is left, within the limits of a chunk."""
    left = sum(max(0, end - positions[place]) for place, end in target.items())
    return min(CHUNK_RECORDS, max(LAST_CHUNK_RECORDS, left // 2))


def _until(batch: RecordBatch, target: Positions | None) -> RecordBatch:
    """The part of a batch that lies before the target."""
    if target is None:
        return batch
    end = next(at for place, at in target.items() if place.partition == batch.partition)
    return batch.split(end)[0]


def _capped(positions: Positions, target: Positions | None) -> Positions:
    if target is None:
        return positions
    return {place: min(offset, target[place]) for place, offset in positions.items()}
