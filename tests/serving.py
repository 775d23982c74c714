"""A real `rollbook serve` for tests, on a free port, and clients of it.

serving(log_url, folder)     a context; gives a Served
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.server.places import parse
from ledger.log import Positions
from ledger.open_log import open_log
from tests.recorded import eventually

START_S = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Served:
    """A server that answers."""

    process: subprocess.Popen[str]
    log_url: str
    url: str
    token: str
    book: Path
    quack_port: int | None
    said: list[str]
    """Its lines on stderr up to when it answered."""

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Reply:
        """GET, or POST of a body as JSON. `token` null: none is shown; "": the right one."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token or self.token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + path, data, sent)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return _reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return _reply(error.code, error.headers, error.read())

    def sql(self, query: str, timeout_s: float = 60.0) -> Reply:
        """Ask in SQL."""
        return self.ask("/sql", {"query": query}, timeout_s=timeout_s)

    def sql_of_now(self, query: str) -> Reply:
        """Ask in SQL, of a copy of the book that has all that the log has now: a copy of before may
        still be young enough to be asked."""
        ends = self._ends()
        eventually(lambda: _covers(self.sql("SELECT 1").json["position"], ends), 60.0)
        return self.sql(query)

    def caught_up(self) -> None:
        """Wait until the book has all that the log has now. What the server knows of the log's end
        may be of before."""
        ends = self._ends()

        def has_read() -> bool:
            standing = self.ask("/readyz").json
            return _covers(standing["position"], ends) and standing["behind"] == 0

        eventually(has_read, 60.0)

    def _ends(self) -> Positions:
        with open_log(self.log_url) as log:
            return log.end_positions("events")


def _covers(position: str, ends: Positions) -> bool:
    at = parse(position) or {}
    return all(at.get(place, 0) >= end for place, end in ends.items())


def _reply(status: int, headers: Any, body: bytes) -> Reply:
    return Reply(status, {str(k).lower(): str(v) for k, v in headers.items()}, body)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@contextlib.contextmanager
def serving(
    log_url: str, folder: Path, *options: str, quack: bool = False, **settings: Any
) -> Iterator[Served]:
    """Serve a book of `log_url` in `folder`; `settings` are those of [serve]."""
    quack_port = free_port() if quack else None
    if quack_port is not None:
        settings["quack_port"] = quack_port
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    config = folder / "serve.toml"
    config.write_text("\n".join(["[serve]", "port = 0", *lines]) + "\n")
    book = folder / "book.duckdb"
    command = [
        sys.executable, "-m", "api.cli", "serve", "--log", log_url, "--book", str(book),
        "--config", str(config), "--spool", str(folder / "spool"), *options,
        *([] if quack else ["--no-quack"]),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                if line.startswith(("token", "the token", "without a token")):
                    break
            told = re.search(r" at (http://\S+), described", "".join(said))
            assert told, "".join(said)
            file = Path(f"{book}.token")
            token = file.read_text().strip() if file.exists() else "none"
            served = Served(process, log_url, told[1], token, book, quack_port, said)
            yield served
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()
