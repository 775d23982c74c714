"""Commands that go through a log once more: replay.

replay --book PATH        builds a book from the log's start
replay --batches          decides everything again at its cuts, and compares
replay --what-if SETTINGS what would have been trained on instead: a simulation
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from api.book_commands import parse_until, tell_inserted
from api.log_runs import find_in_log
from api.options import ConfigOption, FormatOption, LogOption, the_log, with_archive
from api.output import Format, print_rows, progress_bar, say
from consumers.rebuild import rebuild
from consumers.recorded_cuts import Ends, recorded_runs
from consumers.replay_batches import replay_run
from consumers.replay_compare import Difference, Replayed
from consumers.what_if import parse_what_if, what_if
from consumers.what_if_rows import Other, WhatIf
from ledger.book import BookError
from ledger.log import EventLog, LogError


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(replay)


def replay(
    book: Annotated[
        Path | None, typer.Option("--book", help="Build a book here from the log's start.")
    ] = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="Decide groups and batches again, and compare.")
    ] = False,
    simulate: Annotated[
        str | None,
        typer.Option(
            "--what-if",
            help="What other settings would have trained on: overlong=mask,min_valid=6.",
        ),
    ] = None,
    log: LogOption = None,
    config: ConfigOption = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Only this run's batches, by id or name (default: all)."),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="Where tokens and batches lie that left the log."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Of a book: events/0:123,events/1:45 or a time (default: the end)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a book that exists.")] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Go through the log once more: to a book, or to what was decided. Nothing is appended. With
    --batches exit status 1 if anything comes out otherwise, or can't be decided again."""
    if sum((book is not None, batches, simulate is not None)) != 1:
        raise BookError("replay takes one of --book, --batches and --what-if")
    if book is None and (until is not None or force):
        raise BookError("--until and --force are about --book")
    if book is not None and (run is not None or archive is not None):
        raise BookError("--run and --archive are about --batches and --what-if")
    if book is not None:
        _book(book, log, config, until, force)
        return
    with with_archive(the_log(log, config), archive) as source:
        ends = Ends.of(source)
        runs = _runs(source, run, ends)
        if simulate is not None:
            over = parse_what_if(simulate)
            _print_simulated([what_if(source, each, over, ends) for each in runs], simulate, form)
            return
        replayed = [replay_run(source, each, ends) for each in runs]
    _print_replayed(replayed, form)
    raise typer.Exit(0 if all(each.same for each in replayed) else 1)


def _book(book: Path, log: str | None, config: Path | None, until: str | None, force: bool) -> None:
    if book.exists() and not force:
        raise BookError(f"book {book} exists: give another --book, or --force to replace it")
    with the_log(log, config) as source, progress_bar("replaying") as progress:
        target = None if until is None else parse_until(source, until)
        inserted = rebuild(source, book, target, progress)
    tell_inserted(book, inserted)


def _runs(log: EventLog, run: str | None, ends: Ends) -> list[str]:
    found = recorded_runs(log, ends.events)
    if run is None:
        if not found:
            say("no decision is recorded in this log")
        return found
    run_id = find_in_log(log, run)
    if run_id not in found:
        raise LogError(f"no decision of run {run_id} is recorded in this log")
    return [run_id]


def _print_replayed(replayed: Sequence[Replayed], form: Format) -> None:
    differences = [
        (each.run_id, *difference) for each in replayed for difference in each.differences
    ]
    gone = [(each.run_id, *lost) for each in replayed for lost in each.gone]
    for run_id, step, group_id, why in gone:
        what = f"group {group_id}" if group_id is not None else f"the batch of step {step}"
        say(f"{run_id}: {what} can't be decided again: {why}")
    counts = [
        (each.run_id, what, tally.equal + tally.differing, tally.equal, tally.differing, tally.gone)
        for each in replayed
        for what, tally in (
            ("batches", each.batches), ("groups", each.groups), ("members", each.members),
        )
    ]  # fmt: skip
    if not differences:
        print_rows(["run", "what", "recomputed", "equal", "differing", "gone"], counts, form)
        return
    rows = [[_text(value) for value in row] for row in differences]
    print_rows(["run", *Difference._fields], rows, form)
    for run_id, what, again, _, differing, lost in counts:
        say(f"{run_id}: {differing} of {again} {what} differ, {lost} can't be decided again")


def _print_simulated(found: Sequence[WhatIf], given: str, form: Format) -> None:
    say(f"a simulation of {given}: it has no recorded cut, and nothing is appended")
    for each in found:
        for name, why in each.not_simulated:
            say(f"{each.run_id}: not simulated: {name}: {why}")
    rows = [
        [each.run_id, *(_text(value) for value in row)]
        for each in found
        for row in (*each.totals, *each.differences)
    ]
    print_rows(["run", *Other._fields], rows, form)
    same = sum(not each.differences for each in found)
    say(f"{len(found) - same} of {len(found)} runs would have come out otherwise")


def _text(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value  # type: ignore[arg-type]
