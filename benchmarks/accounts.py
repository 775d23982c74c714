"""How long the accounts of a large book take, and how that grows with the book.

    python -m benchmarks.accounts                      # 1,000,000 and 10,000,000 turns
    python -m benchmarks.accounts --turns 100000 400000
    python -m benchmarks.accounts --of run             # not the whole book
    python -m benchmarks.accounts --not-kept           # as if the projector had kept nothing

A simulated run (`accounts_story.py`) is copied with new ids until a book has that many completed
turns, each with its tool call, attempts, rewards, judgements, decisions and steps. The first book
comes out of a real SQLite log through the projector; each further one is that book grown on by the
function that the projector calls for a batch, since writing so long a log would take longer than
what is measured. What can be kept of accounts (`ledger.kept`) is kept then, as the projector does
with runs that are quiet, and one run more begins. Then every account is asked as `rollbook report`
does for a table (its first 1,000 rows), in this process and warm: of the whole book, of a run that
ended, and of the one that goes on.
Some more facts of that one are taken in before each question, so no answer is the last one's.
Medians of 3, of wall time.
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

from api.report_commands import SHOWN
from benchmarks.accounts_story import Story, story
from benchmarks.report import machine, our_versions, progress
from consumers.decode import decode_batches
from consumers.dedupe import HighestIds
from consumers.insert import insert
from consumers.keeper import Keeper
from consumers.rebuild import project
from ledger.accounts.registry import ACCOUNTS, Account
from ledger.accounts.reports import Reports
from ledger.avro import decode
from ledger.book import Book
from ledger.log import Record, TopicPartition
from ledger.open_log import open_log
from producers.simulator.copies import as_batch

OF = ("book", "run", "open")
"""What is asked for."""
MOST_BY_LOG = 10
"""Runs that go through a real log; writing more of them takes longer than all else."""
ROUNDS = 3
LIMIT_MS = 200.0
HOPELESS_S = 20.0
"""An account that takes longer than this is asked once."""
LOG_TIME_US = 1_767_225_600_000_000
LATER = 20_000
"""Facts of the run that goes on, to come while accounts are asked."""
AT_ONCE = 30
"""Of them, before each question."""
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


class Growing:
    """A book that takes copies in, batch by batch, in its owner's process."""

    def __init__(self, told: Story, have: int, owner: Book) -> None:
        """A book of so many copies."""
        self.owner = owner
        self.copies = have
        self._told = told
        self._highest = HighestIds(owner.connection)
        (self._at,) = owner.positions().values()
        self._left: list[Record] = []
        """Of the copy that goes on."""

    def grow(self, copies: int) -> None:
        """Up to so many whole copies."""
        self.owner.connection.execute("SET threads = 1")
        self.go_on(len(self._left))
        while self.copies < copies:
            self.begin(0)
            if self.copies % CHECKPOINT_COPIES == 0:
                self.owner.connection.execute("CHECKPOINT")
        self.owner.connection.execute("CHECKPOINT")
        self.owner.connection.execute("RESET threads")

    def begin(self, later: int) -> UUID:
        """Take in one copy more, but for so many of its last facts; its run."""
        self._left = self._told.copy(self.copies)
        self.copies += 1
        run_id = decode(self._left[0].value).run_id
        self.go_on(len(self._left) - later)
        return UUID(run_id)

    def go_on(self, facts: int) -> None:
        """With the next facts of the copy that goes on."""
        now, self._left = self._left[:facts], self._left[facts:]
        if now:
            batch = as_batch(now, self._at, LOG_TIME_US)
            self._at = batch.next_offset
            place = TopicPartition("events", 0)
            insert(self.owner, self._highest, decode_batches([batch]), {place: self._at})


def keep(owner: Book) -> None:
    """Everything, as if all runs were quiet."""
    began, size = time.perf_counter(), owner.path.stat().st_size
    with contextlib.closing(Keeper(owner, worth_it_from=0)) as keeper:
        keeper.keep_all()
    owner.connection.execute("CHECKPOINT")
    seconds, more = time.perf_counter() - began, owner.path.stat().st_size - size
    progress(f"kept in {seconds:.1f} s and {more:,} bytes")


def asked(growing: Growing, names: list[str], of: list[str]) -> Iterator[tuple[str, Times]]:
    """(what was asked for, times) of the whole book, of a run in its middle, and of one that goes
    on."""
    accounts = [each for each in ACCOUNTS if not names or each.name in names]
    connection = growing.owner.connection
    runs = connection.execute(
        "SELECT run_id FROM run_declared WHERE kind = 'train' ORDER BY log_offset"
    ).fetchall()
    goes_on = growing.begin(LATER)
    reports = Reports(connection)
    whose = {"book": None, "run": runs[len(runs) // 2][0], "open": goes_on}
    for what in of:
        yield what, {each.name: _timed(growing, reports, each, whose[what]) for each in accounts}


def _timed(
    growing: Growing, reports: Reports, account: Account, run_id: UUID | None
) -> tuple[float, int]:
    rows, seconds = 0, list[float]()
    for _ in range(1 + ROUNDS):
        growing.go_on(AT_ONCE)
        began = time.perf_counter()
        try:
            rows = reports.ask(account, run_id=run_id, limit=SHOWN).total
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
    parser.add_argument("--of", nargs="+", choices=OF, default=list(OF))
    parser.add_argument("--not-kept", action="store_true", help="Keep no accounts.")
    parser.add_argument("--keep", type=Path, help="A folder for log and book; they stay there.")
    given = parser.parse_args()
    told = story()
    sizes = sorted(given.turns)
    copies = [max(1, round(size / told.turns)) for size in sizes]
    found: list[dict[str, Times]] = []
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-accounts-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        first = min(copies[0], MOST_BY_LOG)
        progress(f"{first} runs of {len(told.records)} facts through the log")
        book, identity = through_the_log(told, first, folder)
        with contextlib.closing(Book(book, identity)) as owner:
            growing = Growing(told, first, owner)
            for count in copies:
                progress(f"on to {count} runs")
                growing.grow(count)
                if not given.not_kept:
                    keep(owner)
                progress(f"accounts at {count * told.turns:,} turns, {book.stat().st_size:,} bytes")
                found.append(dict(asked(growing, given.accounts, given.of)))
    print(machine())
    print(our_versions())
    print(
        f"{told.turns} turns a run; milliseconds, over: more than {LIMIT_MS:.0f} at the last size"
    )
    print(table([count * told.turns for count in copies], found, given.of))


if __name__ == "__main__":
    main()
