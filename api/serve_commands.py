"""`rollbook serve`: one process owns the book, projects into it and answers for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.options import (
    BookOption,
    ConfigOption,
    LogOption,
    SpoolOption,
    the_book,
    the_log,
)
from api.output import say
from api.server.settings import ServeError, ServeSettings
from api.settings import Settings, load
from consumers.rebuild import owned_book
from ledger.book import BookError, served_at
from ledger.log import LogError

if TYPE_CHECKING:
    from ledger.book import Book
    from ledger.log import EventLog

ERRORS = (ServeError, BookError, LogError)


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(serve)


def serve(
    log: LogOption = None,
    book: BookOption = None,
    config: ConfigOption = None,
    spool: SpoolOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on: 8000; 0: any.")] = None,
    token: Annotated[
        bool,
        typer.Option("--token/--no-token", help="Without one: this machine only."),
    ] = True,
    quack: Annotated[
        bool, typer.Option("--quack/--no-quack", help="Let DuckDB clients attach.")
    ] = True,
) -> None:
    """Keep the book up with the log and answer for it over HTTP, until interrupted.

    The token is in BOOK.token, readable by its owner alone."""
    from api.server.serving import Serving

    loaded = load(config)
    settings = chosen(loaded, host, port, quack=quack)
    if not token and not settings.loopback:
        raise ServeError(
            f"another address than this machine's needs the token, got --no-token (host"
            f" {settings.host})"
        )
    path = the_book(book, config)
    with the_log(log, config) as source, opened(source, path) as owned:
        recorder_url = loaded.log.url if log is None else log
        serving = Serving(
            source, owned, settings, recorder_url, loaded.log.client_options, spool,
            loaded.alerts.model_dump(),
        )  # fmt: skip
        asyncio.run(serving.run(with_token=token))


def chosen(loaded: Settings, host: str | None, port: int | None, *, quack: bool) -> ServeSettings:
    """The settings, with what the command line says over them. Raises ServeError."""
    given = {"host": host, "port": port}
    over: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not quack:
        over["quack_port"] = None
    return ServeSettings.of(loaded.serve | over)


@contextlib.contextmanager
def opened(log: EventLog, path: Path) -> Iterator[Book]:
    """The book, with a note beside it for whoever finds it in use."""
    say(f"{path}: opening (a book of another version is built anew first)")
    with owned_book(log, path) as book:
        try:
            yield book
        finally:
            served_at(path).unlink(missing_ok=True)
