"""All parts of a served book, started and stopped in order.

owner (projector) ─▶ desk, sql, quack, recorder ─▶ HTTP
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from api.app import make_app
from api.output import say
from api.server.access import load_token, token_path
from api.server.desk import Desk
from api.server.facts import Posting
from api.server.owner import Owner
from api.server.quack import Quack
from api.server.settings import ServeError, ServeSettings
from api.server.snapshot import Snapshots
from api.server.sql_pool import SqlPool
from api.signals import ENDINGS
from ledger.accounts.alerts import Thresholds
from ledger.book import Book, served_at
from ledger.log import EventLog

GRACE_S = 5
SWITCH_S = 0.0005
"""How long a thread may keep Python's lock while others wait. An answer takes the lock several
times; at the default of 5 ms each, 64 clients would wait for the projector all the time."""


class Serving:
    """One book, served."""

    def __init__(
        self,
        log: EventLog,
        book: Book,
        settings: ServeSettings,
        log_url: str,
        log_options: dict[str, str],
        spool: Path | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        """`thresholds` are those of [alerts]; null: nothing is watched."""
        self._log = log
        self._book = book
        self._settings = settings
        self._thresholds = thresholds or {}
        self._posting = Posting(log_url, log_options, spool)

    async def run(self, *, with_token: bool) -> None:
        """Serve until SIGTERM or Ctrl-C. Raises ServeError when the address can't be had."""
        token = load_token(self._settings, self._book.path) if with_token else None
        sys.setswitchinterval(SWITCH_S)
        stop = asyncio.Event()
        owner = Owner(self._log, self._book, self._settings)
        snapshots = Snapshots(self._book, self._settings.snapshot_s)
        sql = SqlPool(owner, snapshots)
        desk = Desk(owner)
        app = make_app(owner, desk, self._posting, sql, stop, token, self._thresholds)
        owner.start()
        try:
            async with Quack(owner, snapshots, token).running() as attach:
                await self._answer(app, stop, lambda url: self._tell(url, token, attach))
        finally:
            await sql.close()
            for end in (owner.stop, desk.close, self._posting.close):
                await asyncio.to_thread(end)
            snapshots.close()

    def _tell(self, url: str, token: str | None, attach: str | None) -> None:
        served_at(self._book.path).write_text(f"rollbook serve, at {url}\n")
        say(f"serving {self._book.path} at {url}, described at {url}/docs")
        if attach is not None:
            say(f"DuckDB clients: ATTACH '{attach}' AS book (TOKEN '...')")
        if token is None:
            say("without a token: everybody on this machine can read and record")
            return
        where = token_path(self._settings, self._book.path)
        say("the token is the one of [serve] token" if self._settings.token else f"token: {where}")
        if sys.stderr.isatty():  # a person, not a log file
            say(f"in a browser: {url}/?token={token}")

    async def _answer(self, app: ASGIApp, stop: asyncio.Event, told: Callable[[str], None]) -> None:
        with listening(self._settings) as sock:
            config = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,  # an address may carry a browser's token
                timeout_graceful_shutdown=GRACE_S,
                server_header=False,
            )
            server = _Server(config)

            def end() -> None:
                server.should_exit = True
                stop.set()  # else an open stream would use up the grace

            loop = asyncio.get_running_loop()
            for number in ENDINGS:
                loop.add_signal_handler(number, end)
            host, port = sock.getsockname()[:2]
            told(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await server.serve([sock])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Not at all: uvicorn would raise them again at its end, before the rest is closed."""
        yield


@contextlib.contextmanager
def listening(settings: ServeSettings) -> Generator[socket.socket]:
    """A socket on the settings' address. Raises ServeError."""
    try:
        family, *_, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )[0]
        sock = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise ServeError(
            f"the address must be this machine's own and free, got {settings.host}:{settings.port}"
            f" ({error.strerror}; [serve] host, port)"
        ) from None
    with sock:
        yield sock
