"""A process that serves copies of the book to DuckDB clients over Quack.

    stdin     a line of JSON with the settings; then a line for each copy to show
    stdout    "ready" once clients can attach, or why they can't

Invariants: clients may only select (`sql_guard.py`), in a DuckDB that can only read (`sealed.py`);
and the process ends itself when a query is over its limit, whether or not its client still waits.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from api.server.sealed import Sealed, confine

PACKAGED = ("httpfs", "quack")
"""Extensions that come as packages. Quack would load httpfs by itself, which fails once the doors
are closed."""
BUILT_IN = ("json", "icu")
"""Extensions that are in DuckDB itself."""
WATCH_S = 0.25
OVER_TIME = 3
"""Exit status when a query was over its limit."""


def main() -> None:
    start = json.loads(sys.stdin.readline())
    first = json.loads(sys.stdin.readline())
    confine(start["memory_mb"])
    try:
        sealed = serving(start)
        show(sealed, first)
    except (ImportError, duckdb.Error) as error:
        print(" ".join(str(error).split()), flush=True)
        sys.exit(1)
    threading.Thread(target=watch, args=(sealed, start["limit_s"]), daemon=True).start()
    print("ready", flush=True)
    shown = first["copy"]
    for line in sys.stdin:
        told = json.loads(line)
        if told["copy"] != shown:
            show(sealed, told)
            shown = told["copy"]
    os._exit(0)  # the server's threads would keep it alive


def serving(start: dict[str, Any]) -> Sealed:
    """A sealed DuckDB that serves. Raises ImportError without the extensions, duckdb.Error."""
    extensions = (*map(packaged, PACKAGED), *BUILT_IN)
    sealed = Sealed(Path(start["folder"]), start["memory_mb"], extensions)
    connection = sealed.connection
    connection.execute("SET GLOBAL quack_authorization_function = 'select_only'")
    connection.execute(
        "CALL quack_serve($uri, token := $token)",
        {"uri": f"quack:localhost:{start['port']}", "token": start["token"]},
    )
    sealed.seal()
    return sealed


def packaged(name: str) -> str:
    """The file of an extension, in its package. To install it first, as is usual, would write to
    the user's home, which this process can't and a container may not have. Raises ImportError."""
    folder = resources.files(f"duckdb_extension_{name}") / "extensions"
    return str(folder / f"v{duckdb.__version__}" / f"{name}.duckdb_extension")


def show(sealed: Sealed, told: dict[str, str]) -> None:
    """Show a copy."""
    sealed.show(Path(told["copy"]), told["position"], told["taken_at"])


def watch(sealed: Sealed, limit_s: float) -> None:
    """End the process when a query runs for longer than its limit."""
    cursor = sealed.connection.cursor()
    while True:
        time.sleep(WATCH_S)
        rows = cursor.execute(
            "SELECT query_started_at FROM quack_active_connections() WHERE state = 'active'"
        ).fetchall()
        now = datetime.now(UTC).replace(tzinfo=None)
        if any(since is not None and (now - since).total_seconds() > limit_s for (since,) in rows):
            os._exit(OVER_TIME)


if __name__ == "__main__":
    main()
