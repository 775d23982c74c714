"""Which rule sets can be asked for: those that this version has, and those that a book knows."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from ledger.book import BookError
from ledger.judgement import rule_numbers

IN_BOOK = "SELECT rule_set FROM trajectory_judged UNION SELECT rule_set FROM group_decided"
"""Numbers that judged or decided anything in the book."""


def rule_sets_in(connection: duckdb.DuckDBPyConnection) -> list[int]:
    """Numbers that the book knows."""
    return [int(number) for (number,) in connection.execute(IN_BOOK).fetchall()]


def check_rule_set(rule_set: int, in_book: Iterable[int]) -> None:
    """Raise BookError for a number that no rule set has: every account of it would be empty."""
    known = sorted({*rule_numbers(), *in_book})
    if rule_set not in known:
        numbers = ", ".join(map(str, known))
        raise BookError(f"a rule set must be one of {numbers}, got {rule_set}")
