"""What commands print: rows on stdout as table, json, csv or markdown; progress and errors on
stderr."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from api.json_values import plain

errors = Console(stderr=True)


def say(text: str) -> None:
    """One line on stderr, as it is."""
    print(text, file=sys.stderr)


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], form: Format) -> None:
    """(n,) rows under their column names. Times are UTC in ISO 8601; csv leaves null empty."""
    if form is Format.JSON:
        print_json(objects_of(columns, rows))
    elif form is Format.MARKDOWN:
        _print_markdown(columns, rows)
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")  # not \r\n: shells keep the \r
        writer.writerow(columns)
        writer.writerows([["" if each is None else _csv(each) for each in row] for row in rows])
    else:
        _print_table(columns, rows)


def objects_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """(n,) rows as what JSON can hold, by column. Raises ValueError for two columns of one name."""
    if len(set(columns)) < len(columns):
        raise ValueError(f"json needs columns of different names, got {', '.join(columns)}")
    return [dict(zip(columns, map(plain, row), strict=True)) for row in rows]


def print_json(value: Any) -> None:
    """One JSON document."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False, indent=1)
    sys.stdout.write("\n")


def _print_markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    def cell(value: Any) -> str:
        # It can hold neither a bar nor the end of a line.
        text = "" if value is None else str(plain(value))
        return " ".join(text.replace("|", "\\|").split())

    def line(cells: Sequence[Any]) -> str:
        return f"| {' | '.join(map(cell, cells))} |"

    print(line(columns))
    print(f"|{' --- |' * len(columns)}")
    for row in rows:
        print(line(row))


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console.width = 1_000_000  # a pipe has no edge to wrap at
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        numbers = all(isinstance(row[i], int | float | None) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text("" if each is None else str(plain(each))) for each in row])
    console.print(table)


def _csv(value: Any) -> Any:
    told = plain(value)
    return json.dumps(told, ensure_ascii=False) if isinstance(told, list | dict) else told


@contextlib.contextmanager
def progress_bar(label: str) -> Generator[Callable[[int, int], None]]:
    """A bar on stderr while the block runs; nothing where stderr is no terminal."""
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
