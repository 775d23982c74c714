"""Options that commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from api.output import Format
from api.settings import load
from consumers.archived_log import ArchivedLog
from ledger.log import EventLog, LogError
from ledger.open_log import check_url, open_log, redact, sqlite_path

LogOption = Annotated[
    str | None, typer.Option("--log", help="URL of the log: sqlite:///PATH or kafka://HOST/PREFIX.")
]
BookOption = Annotated[Path | None, typer.Option("--book", help="The book, a DuckDB file.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How rows are printed.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file (default: rollbook.toml here).")
]
SpoolOption = Annotated[
    Path | None, typer.Option("--spool", help="Where facts wait while the log is away.")
]


def the_log(log: str | None, config: Path | None) -> EventLog:
    """The log that the command line or the settings name. Raises LogError; a SQLite log that is
    only read is not made, also not of an empty file."""
    settings = load(config).log
    url = settings.url if log is None else log
    if check_url(url) == "sqlite":
        file = Path(sqlite_path(url))
        if not file.exists():
            raise LogError(f"there is no log {redact(url)}: a recorder makes one (is it a typo?)")
        if file.is_file() and not file.stat().st_size:
            raise LogError(f"there is no log {redact(url)} yet: its file is empty")
    return open_log(url, settings.client_options)


def the_book(book: Path | None, config: Path | None) -> Path:
    """The book that the command line or the settings name."""
    return load(config).book.path if book is None else book


def overrides(given: Sequence[str], error: type[ValueError]) -> dict[str, str | None]:
    """The settings of `--set NAME=VALUE`, the last one of a name; null and none, in any case, are
    None. Raises `error` for what is no setting."""
    over: dict[str, str | None] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise error(f"--set must be name=value, got {each!r}")
        over[name] = None if value.lower() in ("null", "none") else value
    return over


@contextlib.contextmanager
def with_archive(log: EventLog, archive: Path | None) -> Iterator[EventLog]:
    """The log, with what left it for an archive. Closes it. Raises LogError when the two don't
    belong together."""
    with log:
        yield log if archive is None else ArchivedLog(log, archive)
