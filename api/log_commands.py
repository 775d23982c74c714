"""Commands over the log: archive, copy-log, backup, restore, drain."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import uuid
from pathlib import Path
from typing import Annotated

import typer

from api.options import ConfigOption, LogOption, the_log, with_archive
from api.output import say
from api.settings import load
from consumers.archive import archive as archive_log
from consumers.archive import archive_and_remove
from consumers.copy_log import copy_log as copy_records
from ledger.log import LogError
from ledger.open_log import check_url, open_log, redact, sqlite_path
from ledger.recording.spool import default_root, drain_orphans, folder_of
from ledger.sqlite_log import SqliteLog

ERRORS = (LogError, OSError)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(archive)
    app.command("copy-log")(copy_log)
    app.command()(backup)
    app.command()(restore)
    app.command()(drain)


def archive(
    folder: Annotated[Path, typer.Argument(help="Where the Parquet files lie.")],
    log: LogOption = None,
    config: ConfigOption = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove from the log what is archived and verified.")
    ] = False,
) -> None:
    """Write tokens and batches to Parquet with digests; going on where it ended before."""
    with the_log(log, config) as source:
        manifest = (archive_and_remove if remove else archive_log)(source, folder)
    records = sum(file.records for file in manifest.files)
    say(f"{folder}: {records} records in {len(manifest.files)} files")


def copy_log(
    to: Annotated[str, typer.Option("--to", help="URL of an empty log.")],
    log: LogOption = None,
    config: ConfigOption = None,
    without_run: Annotated[
        uuid.UUID | None, typer.Option("--without-run", help="Leave this run out.")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="Where tokens and batches lie that left the log."),
    ] = None,
) -> None:
    """Copy a log; with --without-run to erase a run. Exit status 1 if records were unreadable, 2 if
    the log has nothing of the run."""
    options = load(config).log.client_options
    with (
        with_archive(the_log(log, config), archive) as source,
        open_log(to, options) as target,
    ):
        copied = copy_records(source, target, without_run)
    say(f"{redact(to)}: {copied.records} records copied, {copied.erased} of the run left out")
    if without_run is not None and not copied.erased + copied.renamed:
        raise LogError(
            f"run {without_run} is in no record: {redact(to)} is a copy of the whole log"
        )
    if copied.renamed:
        say(f"{copied.renamed} records of other runs named it, and name {copied.alias} now")
    if copied.moved:
        say(f"{copied.moved} records tell positions of the copy now, not of the source")
    for event_id in copied.unmoved:
        say(f"copied as it is, since the copy has no such positions: fact {event_id}")
    for place in copied.unreadable:
        say(f"left out, since its run can't be read: {place}")
    raise typer.Exit(1 if copied.unreadable else 0)


def backup(
    to: Annotated[Path, typer.Option("--to", help="The new file.")],
    log: LogOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy a SQLite log to a file while writers go on."""
    url = load(config).log.url if log is None else log
    if check_url(url) != "sqlite":
        raise LogError(
            f"backup is for SQLite logs, got {redact(url)!r}: back a Kafka log up with Kafka's own"
            " means (replication, MirrorMaker), or copy it: rollbook copy-log --to sqlite:///PATH"
        )
    with SqliteLog(_existing(sqlite_path(url))) as source:
        source.backup(to)
    say(f"{to}: backup of {redact(url)}")


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `rollbook backup` made.")],
    log: LogOption = None,
    config: ConfigOption = None,
) -> None:
    """Put a backup in the place of a SQLite log that isn't there (any more)."""
    url = load(config).log.url if log is None else log
    if check_url(url) != "sqlite":
        raise LogError(f"restore is for SQLite logs, got {redact(url)!r}")
    target = Path(sqlite_path(url))
    _check_intact(_existing(backup))
    restore_log(backup, target)
    say(f"{target}: restored from {backup}, as a log of its own: books and archives of the old one")
    say("go beyond it; remove book files to have them built anew")


def drain(
    log: LogOption = None,
    config: ConfigOption = None,
    spool: Annotated[
        Path | None,
        typer.Option("--spool", help="Spool directory (default: the recorders')."),
    ] = None,
) -> None:
    """Bring facts that dead producers left in their spools to the log."""
    settings = load(config)
    url = settings.log.url if log is None else log
    with open_log(url, settings.log.client_options) as target:
        moved = drain_orphans(target, folder_of(spool or default_root(), url), 30.0)
    say(f"{redact(url)}: {moved} records drained")


def restore_log(backup: Path, target: Path) -> None:
    """Copy a backup to `target`, whole or not at all. It gets an identity of its own: a position
    in the log that was lost means another record in this one. Raises LogError."""
    if target.exists():
        raise LogError(f"{target} exists: a restore never overwrites a log")
    partial = target.with_name(f"{target.name}.partial-{uuid.uuid4().hex}")
    try:
        shutil.copyfile(backup, partial)
        with contextlib.closing(sqlite3.connect(partial)) as connection, connection:
            connection.execute("UPDATE meta SET identity = ?", [f"sqlite:{uuid.uuid4()}"])
        with partial.open("rb") as copied:
            os.fsync(copied.fileno())
        # A WAL that a lost log left would be read as this one's.
        for suffix in ("-wal", "-shm", "-lock"):
            Path(f"{target}{suffix}").unlink(missing_ok=True)
        os.link(partial, target)  # unlike a rename, fails if a log was made meanwhile
    except FileExistsError:
        raise LogError(f"{target} exists: a restore never overwrites a log") from None
    except (OSError, sqlite3.Error) as error:
        raise LogError(f"{backup} can't be restored to {target}: {error}") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{partial}{suffix}").unlink(missing_ok=True)
    SqliteLog(target).close()


def _existing(path: str | Path) -> Path:
    if not Path(path).is_file():
        raise LogError(f"there is no file {path}")
    return Path(path)


def _check_intact(path: Path) -> None:
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise LogError(f"backup {path} can't be read: {error}") from error
    if verdict != "ok":
        raise LogError(f"backup {path} is damaged: {verdict}")
