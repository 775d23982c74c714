"""Command `rollbook alerts`: what is over its threshold; exit status 1 if anything is."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import UTC, datetime
from typing import Annotated

import duckdb
import typer

from api.options import BookOption, ConfigOption, FormatOption, LogOption, the_book, the_log
from api.output import Format, print_rows, say
from api.settings import load
from ledger.accounts.alerts import PROJECTOR_BEHIND, Alert, Measure, alerts_of, measures
from ledger.accounts.sides import find_run
from ledger.book import connect
from ledger.log import EventLog, Positions, TopicPartition

COLUMNS = tuple(field.name for field in dataclasses.fields(Alert))


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(alerts)


def alerts(
    book: BookOption = None,
    log: LogOption = None,
    config: ConfigOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="One run: its id, the beginning of it, or its name.")
    ] = None,
    at: Annotated[
        datetime | None, typer.Option("--at", help="Silence as of this time, UTC (default: now).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Print what is over its threshold in the settings; what stands still is first. Exit
    status 1 if anything is. With --log it is also checked how far the book is behind."""
    thresholds = load(config).alerts.model_dump()
    moment = datetime.now(UTC) if at is None else at.replace(tzinfo=at.tzinfo or UTC)
    path = the_book(book, config)
    with contextlib.closing(connect(path, read_only=True)) as connection:
        run_id = None if run is None else find_run(connection, run).run_id
        found = measures(connection, moment, thresholds)
        positions = _positions(connection)
    if log is not None:
        with the_log(log, config) as source:
            found.append(_behind(source, positions))
    if run_id is not None:
        found = [each for each in found if each.run_id in (None, run_id)]
    over = alerts_of(found, thresholds)
    print_rows(COLUMNS, [dataclasses.astuple(alert) for alert in over], output)
    what = f"{path}: {len(found)} measures, {len(over)} over their threshold"
    say(what if log is not None else f"{what}; how far the book is behind needs --log")
    raise typer.Exit(1 if over else 0)


def _positions(connection: duckdb.DuckDBPyConnection) -> Positions:
    rows = connection.execute(
        "SELECT log_partition, next_offset FROM positions WHERE topic = 'events'"
    ).fetchall()
    return {TopicPartition("events", int(place)): int(offset) for place, offset in rows}


def _behind(log: EventLog, positions: Positions) -> Measure:
    ends = log.end_positions("events")
    starts = log.start_positions("events")
    behind = sum(end - positions.get(place, starts[place]) for place, end in ends.items())
    return Measure(PROJECTOR_BEHIND, None, "topic events", float(behind))
