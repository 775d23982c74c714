"""Importing in tests: what the command says, and what is then in the log's book.

imported("harbor", folder, url, "--timezone", "UTC")   runs `rollbook import`, with its rows read
refused("harbor", folder)                              the message that bad input gets
booked(url, tmp_path, "SELECT ...")                    what the book of that log answers
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from producers.importers import BadImport, ForeignRun, Options, read_runs
from tests.books import projected, rows


@dataclass(frozen=True, slots=True)
class Said:
    """What an import printed."""

    status: int
    figures: dict[str, tuple[Any, Any, str]]
    """Figure -> files, ledger, verdict."""
    notes: str


def imported(form: str, path: Path, url: str, *options: str) -> Said:
    """Run the command."""
    arguments = ["import", form, str(path), "--log", url, "--format", "json", *options]
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    figures = {
        row["figure"]: (row["files"], row["ledger"], row["verdict"])
        for row in json.loads(result.stdout)
    }
    return Said(result.exit_code, figures, result.stderr)


def read(form: str, path: Path, **options: Any) -> list[ForeignRun]:
    """The runs at a path, with settings as `extra`."""
    return read_runs(form, path, Options(extra={key: str(each) for key, each in options.items()}))


def refused(form: str, path: Path, **options: Any) -> str:
    """What bad input is told."""
    with pytest.raises(BadImport) as refusal:
        [run.drafts() for run in read(form, path, **options)]
    return str(refusal.value)


def booked(url: str, tmp_path: Path, query: str) -> list[Any]:
    """What a book of the log answers; it must be in order."""
    book = tmp_path / "book.duckdb"
    projected(url, book)
    assert rows(book, "SELECT identity, detail FROM conservation") == []
    assert rows(book, "SELECT * FROM book_problems") == []
    return rows(book, query)


def put(path: Path, value: Any) -> Path:
    """Write JSON, or text as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path
