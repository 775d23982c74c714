"""A book that is right: caught up, or built beside the old one and put in its place.

Invariant: at `path` there is always a whole book of one version, the old one until the new one has
caught up. A rebuild that was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from consumers.insert import Inserted
from consumers.keeper import Keeper
from consumers.projector import Progress, Projector
from ledger.book import Book, BookError, BookInUse, connect
from ledger.log import EventLog, Positions

MEMORY_LIMIT = "768MB"
"""DuckDB's while a book is built: what it has written already need not stay in memory."""


def project(log: EventLog, path: Path, progress: Progress | None = None) -> Inserted:
    """Bring the book at `path` up to where the log ends now; rebuild it if it was built with
    other tables, views or schemas. Of a large one, accounts are kept then (`consumers.keeper`).

    Raises BookError, LogError (PositionOutOfRange for a book that the log can't have made)."""
    with contextlib.closing(Book(path, log.identity)) as book:
        if book.current:
            projector = Projector(log, book)
            projector.catch_up(progress=progress)
            _keep(book)
            return projector.inserted
    inserted = rebuild(log, path, progress=progress)
    with contextlib.closing(Book(path, log.identity)) as book:
        _keep(book)
    return inserted


@contextlib.contextmanager
def owned_book(log: EventLog, path: Path) -> Generator[Book]:
    """The current book at `path`, open for writing; rebuilt first if need be."""
    book = Book(path, log.identity)
    if not book.current:
        book.close()
        rebuild(log, path)
        book = Book(path, log.identity)
    with contextlib.closing(book):
        yield book


def rebuild(
    log: EventLog, path: Path, until: Positions | None = None, progress: Progress | None = None
) -> Inserted:
    """Build the book anew from the log, up to `until` or to its end, and put it at `path`."""
    if path.exists():
        connect(path).close()  # raises BookInUse while somebody works on it
    beside = path.with_name(path.name + ".rebuild")
    if until is not None:
        check_positions(log, until)
        if beside.exists():
            connect(beside).close()
        _remove(beside)  # it may have come further than `until`
    book = _unfinished(beside, log)
    with contextlib.closing(book):
        # Inserts of a chunk have no work for a second thread, but pay for handing it over.
        book.connection.execute("SET threads = 1")
        book.connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        projector = Projector(log, book)
        projector.catch_up(until, progress)
        book.connection.execute("CHECKPOINT")
    # A stale WAL beside the new file would be replayed into it.
    _wal(path).unlink(missing_ok=True)
    beside.replace(path)
    return projector.inserted


def _keep(book: Book) -> None:
    with contextlib.closing(Keeper(book)) as keeper:
        keeper.keep_all()


def check_positions(log: EventLog, positions: Positions) -> None:
    """Raise BookError for a position that `log` doesn't have."""
    start, end = log.start_positions("events"), log.end_positions("events")
    if unknown := positions.keys() - end.keys():
        raise BookError(f"the log has {len(end)} partitions, and no {min(unknown)}")
    for place in end:
        at = positions.get(place)
        if at is None or not start[place] <= at <= end[place]:
            shown = "none" if at is None else at
            raise BookError(
                f"position of {place} must be from {start[place]} to {end[place]}, got {shown}"
            )


def _unfinished(beside: Path, log: EventLog) -> Book:
    try:
        if beside.exists():
            book = Book(beside, log.identity)
            if book.current:
                return book
            book.close()
    except BookInUse:
        raise  # somebody else rebuilds it
    except BookError:
        pass
    _remove(beside)
    return Book(beside, log.identity, views=False)


def _remove(path: Path) -> None:
    for file in (path, _wal(path)):
        file.unlink(missing_ok=True)


def _wal(path: Path) -> Path:
    return path.with_name(path.name + ".wal")
