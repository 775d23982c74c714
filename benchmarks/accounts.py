"""How long the accounts of a large book take, and how that grows with the book.

    python -m benchmarks.accounts                      # 1,000,000 and 10,000,000 turns
    python -m benchmarks.accounts --turns 100000 400000
    python -m benchmarks.accounts --of run             # not the whole book, which takes longest

A simulated run (`accounts_story.py`) is copied with new ids until a book has that many completed
turns, each with its tool call, attempts, rewards, judgements, decisions and steps. The first book
comes out of a real SQLite log through the projector; each further one is that book grown on by the
function that the projector calls for a batch, since writing so long a log would take longer than
what is measured. Then every account is asked as `rollbook report` does, in this process and warm:
the whole book, and one run. Medians of 3, of wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

import duckdb

from benchmarks.accounts_story import Story, story
from benchmarks.report import machine, our_versions, progress
from consumers.decode import decode_batches
from consumers.dedupe import HighestIds
from consumers.insert import insert
from consumers.rebuild import project
from ledger.accounts.registry import ACCOUNTS, Account
from ledger.accounts.reports import Reports
from ledger.book import Book, connect
from ledger.log import TopicPartition
from ledger.open_log import open_log
from producers.simulator.copies import as_batch

ROUNDS = 3
LIMIT_MS = 200.0
HOPELESS_S = 20.0
"""An account that takes longer than this is asked once."""
LOG_TIME_US = 1_767_225_600_000_000
CHECKPOINT_COPIES = 20
"""Without it, rows that wait for a checkpoint fill the memory of so fast a writer."""

Times = Mapping[str, tuple[float, int]]
"""Account -> (milliseconds, rows)."""


def through_the_log(told: Story, copies: int, folder: Path) -> tuple[Path, str]:
    """A book of so many copies, from an SQLite log; and the log's identity."""
    book = folder / "book.duckdb"
    with open_log(f"sqlite:///{folder / 'log.db'}") as log:
        for number in range(copies):
            log.append("events", told.copy(number))
        project(log, book)
        return book, log.identity


def grown(told: Story, have: int, copies: int, book: Path, identity: str) -> None:
    """Bring a book of `have` copies to `copies`, batch by batch."""
    with contextlib.closing(Book(book, identity)) as owner:
        owner.connection.execute("SET threads = 1")
        highest = HighestIds(owner.connection)
        (at,) = owner.positions().values()
        for number in range(have, copies):
            batch = as_batch(told.copy(number), at, LOG_TIME_US)
            at = batch.next_offset
            insert(owner, highest, decode_batches([batch]), {TopicPartition("events", 0): at})
            if number % CHECKPOINT_COPIES == 0:
                owner.connection.execute("CHECKPOINT")
        owner.connection.execute("CHECKPOINT")


def asked(book: Path, names: list[str], of: list[str]) -> Iterator[tuple[str, Times]]:
    """(what was asked for, times) of the whole book, and of one run in its middle."""
    accounts = [each for each in ACCOUNTS if not names or each.name in names]
    with contextlib.closing(connect(book, read_only=True)) as connection:
        runs = connection.execute(
            "SELECT run_id FROM run_declared WHERE kind = 'train' ORDER BY log_offset"
        ).fetchall()
        reports = Reports(connection)
        whose = {"book": None, "run": runs[len(runs) // 2][0]}
        for what in of:
            yield what, {each.name: _timed(reports, each, whose[what]) for each in accounts}


def _timed(reports: Reports, account: Account, run_id: UUID | None) -> tuple[float, int]:
    rows, seconds = 0, list[float]()
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        try:
            rows = len(reports.ask(account, run_id=run_id).rows)
        except duckdb.OutOfMemoryException:
            return float("inf"), 0
        seconds.append(time.perf_counter() - began)
        if seconds[-1] > HOPELESS_S:
            break
    return 1e3 * statistics.median(seconds[1:] or seconds), rows


def table(sizes: list[int], found: list[dict[str, Times]], of: list[str]) -> str:
    """One line per account: milliseconds at each size, the growth, and whether it is over."""
    heads = [f"{what} {size:,}" for what in of for size in sizes]
    heads += [f"{what} grew" for what in of]
    lines = ["| account | rows | " + " | ".join(heads) + " | over |"]
    lines.append("|" + "---|" * (len(heads) + 3))
    for name, (_, rows) in found[-1][of[0]].items():
        times = {what: [each[what][name][0] for each in found] for what in of}
        cells = [f"{ms:.0f}" for what in of for ms in times[what]]
        cells += [f"{times[what][-1] / times[what][0]:.1f}" for what in of]
        over = [what for what in of if times[what][-1] > LIMIT_MS]
        lines.append("| " + " | ".join([name, str(rows), *cells, ", ".join(over)]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--accounts", nargs="*", default=[], help="Only these.")
    parser.add_argument("--of", nargs="+", choices=("book", "run"), default=["book", "run"])
    parser.add_argument("--keep", type=Path, help="A folder for log and book; they stay there.")
    given = parser.parse_args()
    told = story()
    sizes = sorted(given.turns)
    copies = [max(1, round(size / told.turns)) for size in sizes]
    found: list[dict[str, Times]] = []
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-accounts-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        progress(f"{copies[0]} runs of {len(told.records)} facts through the log")
        book, identity = through_the_log(told, copies[0], folder)
        for before, count in zip([copies[0], *copies], copies, strict=False):
            if count > before:
                progress(f"on to {count} runs")
                grown(told, before, count, book, identity)
            progress(f"accounts at {count * told.turns:,} turns, {book.stat().st_size:,} bytes")
            found.append(dict(asked(book, given.accounts, given.of)))
    print(machine())
    print(our_versions())
    print(
        f"{told.turns} turns a run; milliseconds, over: more than {LIMIT_MS:.0f} at the last size"
    )
    print(table([count * told.turns for count in copies], found, given.of))


if __name__ == "__main__":
    main()
