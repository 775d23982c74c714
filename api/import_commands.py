"""Commands about other systems' runs: import.

    read ─▶ write what the log lacks ─▶ decide or judge ─▶ reconcile with the files' own figures

Invariant: a second import of the same files appends nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb
import typer

from api.options import ConfigOption, FormatOption, LogOption, overrides
from api.output import Format, print_rows, say
from api.settings import load
from ledger.facts.lists import RunKind
from ledger.log import EventLog, Fenced
from ledger.open_log import open_log
from producers.importers import FORMATS, BadImport, ForeignRun, Options, read_runs
from producers.importers.claims import Compared, reconcile
from producers.importers.write import Written, write

ERRORS = (BadImport,)
COLUMNS = ["run", "figure", "files", "ledger", "difference", "verdict", "place"]
MAX_NAMED = 20
"""Changed facts that are named one by one."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command("import", epilog=_of_formats())(import_runs)


def _of_formats() -> str:
    """What each format takes, a paragraph each."""
    lines = [
        f"{name}: {form.path}" + "".join(f" (--set {setting})" for setting in form.settings)
        for name, form in FORMATS.items()
    ]
    return "\n\n".join(["PATH, by format:", *lines])


def import_runs(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help=f"{', '.join(FORMATS)}.")],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="What that system wrote: see below.")
    ],
    log: LogOption = None,
    config: ConfigOption = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="Zone of times that name none: Europe/Berlin.")
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option("--report", help="Report of a verifier that lies elsewhere. Repeatable."),
    ] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the format: see below. Repeatable."),
    ] = None,
    form_of_rows: FormatOption = Format.TABLE,
) -> None:
    """Bring runs of another system into the log, and hold the ledger's figures against those that
    its files give. Exit status 1 when any differ without a reason. A second import adds nothing."""
    settings = {name: value or "" for name, value in overrides(extra or [], BadImport).items()}
    options = Options(_zone(timezone), tuple(report or ()), settings)
    runs = read_runs(form, path, options)
    chosen = load(config).log
    compared: list[tuple[ForeignRun, Compared]] = []
    changed = False
    with open_log(chosen.url if log is None else log, chosen.client_options) as target:
        for run in runs:
            written = write(target, run)
            _judge(target, run, written)
            _tell(run, written)
            changed = changed or bool(written.changed)
            with _book_of(target, run.run_id) as book:
                answers = reconcile(run.claims, lambda sql, of=run, to=book: _one(to, sql, of))
            compared += [(run, each) for each in answers]
    print_rows(COLUMNS, [_row(run, each) for run, each in compared], form_of_rows)
    findings = _tell_comparison([each for _, each in compared])
    raise typer.Exit(1 if findings or changed else 0)


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise BadImport(
            f"--timezone must be a zone's name such as Europe/Berlin or UTC, got {name!r}"
        ) from None


def _judge(log: EventLog, run: ForeignRun, written: Written) -> None:
    """Decide what is complete of an evaluation; a run that was trained on is only judged, since its
    batches were assembled elsewhere."""
    if run.kind is RunKind.EVAL and written.undecided:
        from consumers.assembler import Assembler
        from consumers.assembling.settings import AssemblerSettings

        # The whole run is in the log: there is no evidence to wait for.
        settings = AssemblerSettings(evidence_wait_s=0.0)
        try:
            Assembler(log, run.run_id, settings).run(threading.Event(), follow=False)
        except Fenced as error:
            raise BadImport(
                f"another import of run {run.run_id} ({run.name}), or an assembler of it, began"
                " meanwhile and decides its groups; its facts are in the log: import again once the"
                " other has ended, nothing is written twice"
            ) from error
    elif run.kind is not RunKind.EVAL and written.unjudged:
        from consumers.judge import judge_log
        from ledger.judgement import load_rules, newest_rules

        judge_log(log, load_rules(newest_rules().number), run.run_id)


def _tell(run: ForeignRun, written: Written) -> None:
    say(
        f"{run.run_id} ({run.name}): {len(run.attempts)} attempts at {len(run.groups)} groups,"
        f" {written.new} facts new, {written.known} known"
    )
    for note in run.notes:
        say(f"note: {note}")
    for place in written.changed[:MAX_NAMED]:
        say(f"kept as the log has it, the files now say otherwise: {place}")
    if (more := len(written.changed) - MAX_NAMED) > 0:
        say(f"kept as the log has it: {more} facts more")


def _tell_comparison(compared: list[Compared]) -> int:
    """Say how many of the files' figures agree; how many differ without a reason."""
    findings = sum(each.unexplained for each in compared)
    stated = [each for each in compared if each.claim.foreign is not None]
    agree = sum(each.agrees for each in stated)
    told = f"{agree} of the {len(stated)} figures that the files state agree"
    if explained := len(stated) - agree - findings:
        told += f", {explained} differ for a reason that is given"
    say(f"{told}, {findings} differ without a reason" if findings else told)
    return findings


@contextlib.contextmanager
def _book_of(log: EventLog, run_id: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A book of one run's facts, as the log has them, for as long as the block runs."""
    from consumers.rebuild import project
    from ledger.book import connect
    from producers.importers.held import raw_records_of

    with tempfile.TemporaryDirectory(prefix="rollbook-import-") as folder:
        book = Path(folder) / "book.duckdb"
        with open_log(f"sqlite:///{folder}/run.db") as part:
            for records in raw_records_of(log, run_id):
                part.append("events", records)
            project(part, book)
        with contextlib.closing(connect(book, read_only=True)) as connection:
            yield connection


def _one(book: duckdb.DuckDBPyConnection, sql: str, run: ForeignRun) -> Any:
    row = book.execute(sql, {"run": run.run_id}).fetchone()
    return None if row is None else row[0]


def _row(run: ForeignRun, compared: Compared) -> list[Any]:
    claim = compared.claim
    return [
        run.name,
        claim.what,
        claim.foreign,
        compared.ledger,
        compared.difference,
        compared.verdict,
        claim.place,
    ]
