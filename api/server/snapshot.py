"""Copies of the book's file, for processes that answer SQL.

A DuckDB file can't be read by another process while its owner writes it; a copy can. The projector
waits while one is made: a checkpoint, and a copy that costs nothing where the file system shares
blocks (reflink).

Invariants: a copy is whole and of one position; copying takes at most a twentieth of the time; and
the file is copied by another program, since this process would lose DuckDB's lock on it by merely
closing a second handle.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from api.server.places import show
from ledger.book import Book, positions_in
from ledger.log import Positions

REST = 20
"""After a copy, nothing is copied for this many times as long as it took."""
KEPT = 3
"""Copies that are not removed yet: a process may just be about to open the last but one."""
RETRY_S = 0.2
TRIES = 25


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy."""

    path: Path
    positions: Positions
    """What the book had read."""
    taken_at: datetime
    """UTC."""
    began: float
    """By the monotonic clock."""
    cost_s: float
    """Seconds that the projector waited for it."""

    @property
    def told(self) -> dict[str, str]:
        """For a process that is to show it."""
        return {
            "copy": str(self.path),
            "position": show(self.positions),
            "taken_at": self.taken_at.isoformat(),
        }


class Snapshots:
    """Makes copies of one book in a folder beside it."""

    def __init__(self, book: Book, snapshot_s: float) -> None:
        self.folder = book.path.absolute().with_name(book.path.name + ".copies")
        self._book = book
        self._cursor = book.connection.cursor()
        self._snapshot_s = snapshot_s
        self._newest: Snapshot | None = None
        self._taken = 0
        self._taking = asyncio.Lock()
        shutil.rmtree(self.folder, ignore_errors=True)  # of an owner that was killed
        self.folder.mkdir(mode=0o700)

    async def newest(self, now: Positions) -> Snapshot:
        """A copy of the book, which is at `now`: the last one, if that is young enough."""
        async with self._taking:
            last = self._newest
            if last is None or (_behind(last, now) and self._old(last)):
                last = self._newest = await asyncio.to_thread(self._take)
            return last

    def close(self) -> None:
        """Remove the copies."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _old(self, last: Snapshot) -> bool:
        return time.monotonic() - last.began > max(self._snapshot_s, REST * last.cost_s)

    def _take(self) -> Snapshot:
        path = self.folder / f"{self._taken + 1}.duckdb"
        with self._book.writing:
            began, taken_at = time.monotonic(), datetime.now(UTC)
            self._checkpoint()
            positions = positions_in(self._cursor)
            subprocess.run(
                ["cp", "--reflink=auto", str(self._book.path), str(path)],
                check=True,
                capture_output=True,
            )
            cost_s = time.monotonic() - began
        self._taken += 1
        old = self.folder / f"{self._taken - KEPT}.duckdb"
        old.unlink(missing_ok=True)
        return Snapshot(path, positions, taken_at, began, cost_s)

    def _checkpoint(self) -> None:
        for last in [False] * (TRIES - 1) + [True]:
            try:
                self._cursor.execute("CHECKPOINT")
            except duckdb.TransactionException:  # some reader is just beginning
                if last:
                    raise
                time.sleep(RETRY_S)
            else:
                return


def _behind(last: Snapshot, now: Positions) -> bool:
    """Whether the book has read more than a copy has; of a partition without records, no position
    is in the book."""
    return any(last.positions.get(place, 0) < offset for place, offset in now.items())
