"""The audit: does the book have every fact once, and does it say so itself where it doesn't?

Each check is one query in `ledger/audit/`, whose rows are what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import duckdb

CHECKS = (
    "sequence_holes",
    "repeated_facts",
    "quarantined",
    "lost",
)
"""Files in `ledger/audit/`; every row is a finding."""

REMARKS = ("dropped_duplicates", "unclosed_producers")
"""Files in `ledger/audit/`; every row is worth knowing, and nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an audit has to say."""

    check: str
    wrong: bool
    """Whether something is wrong; else it is only worth knowing."""
    detail: str
    """Value, rule and place."""


def audit(connection: duckdb.DuckDBPyConnection) -> list[Finding]:
    """Every finding, what is wrong first. As of the book's positions."""
    findings = [
        Finding(check, check in CHECKS, str(detail))
        for check in (*CHECKS, *REMARKS)
        for (detail,) in connection.execute(_query(check)).fetchall()
    ]
    return findings + _conservation(connection)


def _query(check: str) -> str:
    return resources.files("ledger").joinpath(f"audit/{check}.sql").read_text()


def _conservation(connection: duckdb.DuckDBPyConnection) -> list[Finding]:
    """Rows of the view `conservation`, each a broken identity, where the book has that view."""
    views = connection.execute(
        "SELECT 1 FROM duckdb_views() WHERE view_name = 'conservation'"
    ).fetchall()
    if not views:
        return []
    rows = connection.execute("SELECT to_json(conservation) FROM conservation").fetchall()
    return [Finding("conservation", True, str(row)) for (row,) in rows]
