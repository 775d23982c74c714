"""A process that answers one query after another from a copy of the book.

    stdin     a line of JSON: the copy, the query, its limits
    stdout    "ready"; then a line of JSON, and as many bytes of rows as it says

Whoever started it kills it when an answer takes too long.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import duckdb

from api.json_values import plain
from api.server.sealed import Sealed, confine
from api.server.sql_guard import refusal

FETCH = 1_000
READY = b"ready\n"


class TooLarge(Exception):
    """An answer is over a limit."""


def main() -> None:
    start = json.loads(sys.stdin.readline())
    confine(start["memory_mb"])
    sealed = Sealed(Path(start["folder"]), start["memory_mb"])
    sealed.seal()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    shown = None
    for line in sys.stdin:
        asked = json.loads(line)
        told: dict[str, Any]
        rows = b""
        try:
            if asked["copy"] != shown:
                sealed.show(Path(asked["copy"]), asked["position"], asked["taken_at"])
                shown = asked["copy"]
            told, rows = answer(sealed.connection.cursor(), asked)
        except (duckdb.Error, MemoryError, TooLarge, UnicodeError) as error:
            told = {"kind": kind_of(error), "why": str(error) or type(error).__name__}
        told["bytes"] = len(rows)
        sys.stdout.buffer.write(json.dumps(told).encode() + b"\n" + rows)
        sys.stdout.buffer.flush()


def answer(
    cursor: duckdb.DuckDBPyConnection, asked: dict[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """The columns, and the rows as a JSON array. Raises TooLarge, duckdb.Error."""
    if (why := refusal(cursor, asked["query"])) is not None:
        return {"kind": "refused", "why": why}, b""
    result = cursor.execute(asked["query"])
    columns = [(str(name), str(kind)) for name, kind, *_ in result.description or ()]
    parts: list[bytes] = []
    count = size = 0
    while fetched := result.fetchmany(FETCH):
        count += len(fetched)
        if count > asked["rows"]:
            raise TooLarge(f"an answer may have {asked['rows']} rows, this one has more")
        part = ",".join(json.dumps(plain(row), ensure_ascii=False) for row in fetched).encode()
        size += len(part)
        if size > asked["bytes_most"]:
            raise TooLarge(f"an answer may have {asked['bytes_most']} bytes, this one has more")
        parts.append(part)
    return {"kind": "answer", "columns": columns}, b"[" + b",".join(parts) + b"]"


def kind_of(error: Exception) -> str:
    """What a client should make of an error."""
    if isinstance(error, TooLarge):
        return "too_large"
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return "out_of_memory"
    return "wrong"


if __name__ == "__main__":
    main()
