"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.output import Format
from api.settings import load
from ledger.log import EventLog
from ledger.open_log import open_log

LogOption = Annotated[
    str | None, typer.Option("--log", help="URL of the log: sqlite:///PATH or kafka://HOST/PREFIX.")
]
BookOption = Annotated[Path | None, typer.Option("--book", help="The book, a DuckDB file.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How rows are printed.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file (default: rollbook.toml here).")
]


def the_log(log: str | None, config: Path | None) -> EventLog:
    """The log that the command line or the settings name."""
    settings = load(config)
    return open_log(log or settings.log.url, settings.log.options)


def the_book(book: Path | None, config: Path | None) -> Path:
    """The book that the command line or the settings name."""
    return book or load(config).book.path
