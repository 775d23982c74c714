"""docs/VIEWS.md: every view of the book, and for accounts their window and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.accounts.registry import ACCOUNTS, definition_of
from ledger.book_sql import VIEWS


def views_page() -> str:
    """docs/VIEWS.md"""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# Views",
        "",
        "Rendered from `ledger/views` and `ledger/accounts/registry.py` by `make render`. All are"
        " plain DuckDB",
        "views: `rollbook sql`, `/sql`, or any DuckDB client on the file ask them the same way.",
        "",
        "## Accounts",
        "",
        "`rollbook report NAME` and `/v1/accounts/NAME`, each with its definition beside the rows.",
        "",
        "| name | one row is | window | not in it |",
        "|---|---|---|---|",
    )
    accounts = {account.view for account in ACCOUNTS}
    for account in ACCOUNTS:
        cells = (f"`{account.name}`", _row_of(account.view), account.window, account.excluded)
        yield f"| {' | '.join(map(_cell, cells))} |"
    yield from ("", "## What they are made of", "", "| view | one row is |", "|---|---|")
    for view in VIEWS:
        if view not in accounts:
            yield f"| `{view}` | {_cell(_row_of(view))} |"


def _row_of(view: str) -> str:
    return definition_of(view).removeprefix("One row per ").rstrip(".")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
