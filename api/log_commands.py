"""Commands over the log: archive, copy-log, backup, restore, drain."""

from __future__ import annotations

import os
import shutil
import sqlite3
import uuid
from pathlib import Path
from typing import Annotated

import typer

from api.options import ConfigOption, LogOption, the_log
from api.output import errors
from api.settings import load
from consumers.archive import archive as archive_log
from consumers.archive import archived_positions, verify
from consumers.copy_log import copy_log as copy_records
from ledger.log import LogError
from ledger.open_log import check_url, open_log, redact, sqlite_path
from ledger.recording.spool import drain_orphans, folder_of
from ledger.sqlite_log import SqliteLog

ERRORS = (LogError,)


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
        manifest = archive_log(source, folder)
        if remove:
            verify(folder)
            source.remove_before(archived_positions(manifest))
    records = sum(file.records for file in manifest.files)
    errors.print(f"{folder}: {records} records in {len(manifest.files)} files")


def copy_log(
    to: Annotated[str, typer.Option("--to", help="URL of an empty log.")],
    log: LogOption = None,
    config: ConfigOption = None,
    without_run: Annotated[
        uuid.UUID | None, typer.Option("--without-run", help="Leave this run out.")
    ] = None,
) -> None:
    """Copy a log; with --without-run to erase a run. Exit status 1 if records were unreadable."""
    options = load(config).log.options
    with the_log(log, config) as source, open_log(to, options) as target:
        copied = copy_records(source, target, str(without_run) if without_run else None)
    errors.print(
        f"{redact(to)}: {copied.records} records copied, {copied.erased} of the run left out"
    )
    for place in copied.unreadable:
        errors.print(f"left out, since its run can't be read: {place}")
    raise typer.Exit(1 if copied.unreadable else 0)


def backup(
    to: Annotated[Path, typer.Option("--to", help="The new file.")],
    log: LogOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy a SQLite log to a file while writers go on."""
    url = log or load(config).log.url
    if check_url(url) != "sqlite":
        raise LogError(
            f"backup is for SQLite logs, got {redact(url)!r}: back a Kafka log up with Kafka's own"
            " means (replication, MirrorMaker), or copy it: rollbook copy-log --to sqlite:///PATH"
        )
    with SqliteLog(_existing(sqlite_path(url))) as source:
        source.backup(to)
    errors.print(f"{to}: backup of {redact(url)}")


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `rollbook backup` made.")],
    log: LogOption = None,
    config: ConfigOption = None,
) -> None:
    """Put a backup in the place of a SQLite log that isn't there (any more)."""
    url = log or load(config).log.url
    if check_url(url) != "sqlite":
        raise LogError(f"restore is for SQLite logs, got {redact(url)!r}")
    target = Path(sqlite_path(url))
    if target.exists():
        raise LogError(f"{target} exists: a restore never overwrites a log")
    _check_intact(_existing(backup))
    partial = target.with_name(f"{target.name}.partial-{uuid.uuid4().hex}")
    shutil.copyfile(backup, partial)
    with partial.open("rb") as copied:
        os.fsync(copied.fileno())
    partial.rename(target)
    SqliteLog(target).close()
    errors.print(f"{target}: restored from {backup}")


def drain(
    log: LogOption = None,
    config: ConfigOption = None,
    spool: Annotated[
        Path | None, typer.Option("--spool", help="Spool directory (default: the settings').")
    ] = None,
) -> None:
    """Bring facts that dead producers left in their spools to the log."""
    settings = load(config)
    url = log or settings.log.url
    with open_log(url, settings.log.options) as target:
        moved = drain_orphans(target, folder_of(spool or settings.spool.root, url), 30.0)
    errors.print(f"{redact(url)}: {moved} records drained")


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
