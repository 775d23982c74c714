"""Command `rollbook report`: one account, with what its rows mean and what they leave out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from api.options import BookOption, ConfigOption, FormatOption, the_book
from api.output import Format, objects_of, print_json, print_rows, say
from ledger.accounts.registry import (
    ACCOUNTS,
    UnknownAccount,
    definition_of,
    find_account,
    is_share,
)
from ledger.accounts.reports import Report
from ledger.accounts.reports import report as report_of
from ledger.accounts.sides import find_run
from ledger.book import BookError, connect

ERRORS = (UnknownAccount,)

FOR_PEOPLE = (Format.TABLE, Format.MARKDOWN)
SHOWN = 1000
"""Rows for people, where nobody said how many: a large book has accounts of millions."""
WIDE = 12
"""More columns than these don't fit a line of a terminal."""


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(report)


def report(
    account: Annotated[
        str | None, typer.Argument(help="Which account; without one, those there are.")
    ] = None,
    book: BookOption = None,
    config: ConfigOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="One run: its id, the beginning of it, or its name.")
    ] = None,
    rule_set: Annotated[
        int | None, typer.Option("--rule-set", help="Rows of one rule set alone.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Which, by comma; all: every one. Tables show a choice."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help=f"So many rows. Without it {SHOWN:,} of a table, else all."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Print one account of the book."""
    if account is None:
        rows = [(each.name, _first_sentence(each.view)) for each in ACCOUNTS]
        print_rows(("account", "definition"), rows, output)
        return
    asked = find_account(account)
    with contextlib.closing(connect(the_book(book, config), read_only=True)) as connection:
        run_id = None if run is None else find_run(connection, run).run_id
        most = limit or (SHOWN if output in FOR_PEOPLE else None)
        found = report_of(connection, asked, run_id=run_id, rule_set=rule_set, limit=most)
    print_report(found, output, columns)


def print_report(found: Report, output: Format, columns: str | None = None) -> None:
    """Raises BookError for a column that the account doesn't have."""
    people = output in FOR_PEOPLE
    shown = _chosen(found, columns, people)
    places = [found.columns.index(name) for name in shown]
    rows = [[row[place] for place in places] for row in found.rows]
    if output is Format.JSON:
        print_json({**_about(found), "rows": objects_of(shown, rows)})
        return
    if people:
        rows = [[_readable(name, each) for name, each in zip(shown, row, strict=True)]
                for row in rows]  # fmt: skip
    _print_head(found, output)
    if people and len(shown) > WIDE and len(rows) <= 2:
        # A row or two of many columns are read downwards.
        down = [[name, *(row[i] for row in rows)] for i, name in enumerate(shown)]
        print_rows(("column", *(f"row {i + 1}" for i in range(len(rows)))), down, output)
    else:
        print_rows(shown, rows, output)


def _chosen(found: Report, columns: str | None, people: bool) -> Sequence[str]:
    if columns is None:
        shown = (found.account.shown if people else ()) or found.columns
        several = found.run_id is None and "run_id" in found.columns and "run_id" not in shown
        return ("run_id", *shown) if several else shown
    if columns == "all":
        return found.columns
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in found.columns:
            known = ", ".join(found.columns)
            raise BookError(f"--columns are some of {known}; got {name!r}")
    return names


def _about(found: Report) -> dict[str, Any]:
    return {
        "account": found.account.name,
        "definition": found.definition,
        "window": found.account.window,
        "excluded": found.account.excluded,
        "run_id": None if found.run_id is None else str(found.run_id),
        "rule_sets": list(found.rule_sets),
        "position": found.position,
        "problems": found.problems,
        "total": found.total,
    }


def _print_head(found: Report, output: Format) -> None:
    """What the rows mean. With csv on stderr: what reads csv knows no comments."""
    told = {"window": found.account.window, "excluded": found.account.excluded}
    if found.rule_sets:
        told["rule sets"] = ", ".join("none" if n is None else str(n) for n in found.rule_sets)
    told["book up to"] = " ".join(f"{at}:{n}" for at, n in found.position.items()) or "nothing"
    if found.problems:
        told["problems"] = ", ".join(f"{name}: {n}" for name, n in found.problems.items())
    if found.total > len(found.rows):
        told["rows"] = f"the first {len(found.rows):,} of {found.total:,} (--limit)"
    if output is Format.MARKDOWN:
        print(f"## {found.account.name}\n\n{found.definition}\n")
        for name, text in told.items():
            print(f"- {name}: {text}")
        print()
        return
    tell = say if output is Format.CSV else print
    tell(f"{found.account.name}: {found.definition}")
    for name, text in told.items():
        tell(f"  {name}: {text}")


def _readable(column: str, value: Any) -> Any:
    """Shares in percent with two decimals, other fractions with four digits, short lists."""
    if isinstance(value, float):
        if is_share(column):
            return f"{100 * value:.2f}%"
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(str(_readable("", each)) for each in value)
    return value


def _first_sentence(view: str) -> str:
    return definition_of(view).partition(". ")[0].removesuffix(".") + "."
