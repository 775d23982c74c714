"""Commands over the book: project, audit, sql."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import duckdb
import typer

from api.options import BookOption, ConfigOption, FormatOption, LogOption, the_book, the_log
from api.output import Format, print_rows, progress_bar, say
from api.signals import stop_on_signals
from consumers.audit import audit as audit_book
from consumers.insert import Inserted
from consumers.projector import Projector
from consumers.rebuild import owned_book
from consumers.rebuild import project as project_book
from ledger.book import BookError, connect
from ledger.log import EventLog, Positions, TopicPartition
from ledger.wire.checks import CLOCKS_DIFFER_US, to_micros

ERRORS = (BookError, duckdb.Error, ValueError)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (project, audit, sql):
        app.command()(command)


def project(
    log: LogOption = None,
    book: BookOption = None,
    config: ConfigOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted.")] = False,
    pause: Annotated[
        float,
        typer.Option(min=0.0, help="With --follow: seconds between inserts; longer costs less."),
    ] = 0.0,
) -> None:
    """Bring the book up to the end of the log; make it or rebuild it where needed."""
    path = the_book(book, config)
    with the_log(log, config) as source:
        if follow:
            _follow(source, path, pause)
            return
        with progress_bar("projecting") as progress:
            inserted = project_book(source, path, progress)
    tell_inserted(path, inserted)


def audit(
    log: LogOption = None,
    book: BookOption = None,
    config: ConfigOption = None,
    output: FormatOption = Format.TABLE,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Audit the book where it stands, without the log.")
    ] = False,
) -> None:
    """Check that the book has every fact of the log once, and that the accounts balance; exit
    status 1 if something is wrong."""
    path = the_book(book, config)
    if not as_is:
        with the_log(log, config) as source:
            project_book(source, path)
    with contextlib.closing(connect(path, read_only=True)) as connection:
        findings = audit_book(connection)
    rows = [(each.check, "wrong" if each.wrong else "note", each.detail) for each in findings]
    print_rows(("check", "verdict", "detail"), rows, output)
    wrong = sum(each.wrong for each in findings)
    say(f"{path}: {wrong} findings" if wrong else f"{path}: nothing is wrong")
    raise typer.Exit(1 if wrong else 0)


def sql(
    query: Annotated[str, typer.Argument(help="Any DuckDB query over the book's views.")],
    book: BookOption = None,
    config: ConfigOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Ask the book; nothing in it can be changed."""
    with contextlib.closing(connect(the_book(book, config), read_only=True)) as connection:
        if not query.strip():
            raise BookError("a query must not be empty")
        if (statements := len(connection.extract_statements(query))) != 1:
            raise BookError(f"a query must be one statement, got {statements}")
        result = connection.execute(query)
        columns = [str(column[0]) for column in result.description or ()]
        print_rows(columns, result.fetchall(), output)


def parse_until(log: EventLog, text: str) -> Positions:
    """`events/0:123,events/1:45`, or a time, as positions. Raises BookError."""
    if re.fullmatch(r"events/\d+:\d+(,events/\d+:\d+)*", text):
        pairs = (part.removeprefix("events/").split(":") for part in text.split(","))
        given = {TopicPartition("events", int(place)): int(offset) for place, offset in pairs}
        # A partition that isn't named is left out, so it stays at its start.
        return log.start_positions("events") | given
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BookError(
            f"--until must be positions like events/0:123 or a time like 2026-01-31T12:00:00Z,"
            f" got {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if to_micros(moment) > to_micros(now := datetime.now(UTC)) + CLOCKS_DIFFER_US:
        raise BookError(f"--until must not lie ahead of {now:%Y-%m-%dT%H:%M:%SZ}, got {text!r}")
    return log.positions_at("events", to_micros(moment))


def _follow(log: EventLog, path: Path, pause_s: float) -> None:
    stop = stop_on_signals()
    with owned_book(log, path) as book:
        say(f"{path}: following the log")
        projector = Projector(log, book)
        projector.follow(stop, pause_s)
    tell_inserted(path, projector.inserted)


def tell_inserted(path: Path, inserted: Inserted) -> None:
    """Say what a projection inserted."""
    say(
        f"{path}: {inserted.facts} facts, {inserted.duplicates} duplicates dropped,"
        f" {inserted.quarantined} records quarantined"
    )
