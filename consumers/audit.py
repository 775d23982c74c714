"""The audit: does the book have every fact once, do its accounts balance, and does it say so itself
where they don't?

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
    "conservation",
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
    return [
        Finding(check, check in CHECKS, str(detail))
        for check in (*CHECKS, *REMARKS)
        for (detail,) in connection.execute(_query(check)).fetchall()
    ]


def _query(check: str) -> str:
    return resources.files("ledger").joinpath(f"audit/{check}.sql").read_text()
