"""Command `rollbook compare`: two runs, or two spans of one, beside one another."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import duckdb
import typer

from api.options import BookOption, ConfigOption, FormatOption, the_book
from api.output import Format, print_rows
from ledger.accounts.compare import compare_step_time, compare_throughput
from ledger.accounts.compare_quality import compare_pass_at_1, read_evaluation
from ledger.accounts.rule_sets import check_rule_set, rule_sets_in
from ledger.accounts.sides import find_run, read_step_time, read_throughput
from ledger.book import connect


class Compared(StrEnum):
    """What two runs can be compared in."""

    THROUGHPUT = "throughput"
    STEP_TIME = "step-time"
    PASS_AT_1 = "pass-at-1"


_SIDE = "A run by id, beginning of its id, or name; RUN/N is its span N, or policy version N."


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(compare)


def compare(
    measure: Annotated[Compared, typer.Argument(help="What to compare.")],
    a: Annotated[str, typer.Argument(help=_SIDE)],
    b: Annotated[str, typer.Argument(help=_SIDE)],
    book: BookOption = None,
    config: ConfigOption = None,
    rule_set: Annotated[
        int | None, typer.Option("--rule-set", help="Whose judgement counts, where there are two.")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Say what B is beside A: ratios, what they were bought with, every setting that differs."""
    with contextlib.closing(connect(the_book(book, config), read_only=True)) as connection:
        lines = compared(connection, measure, a, b, rule_set)
    _print(lines, output)


def compared(
    connection: duckdb.DuckDBPyConnection, measure: Compared, a: str, b: str, rule_set: int | None
) -> Sequence[Any]:
    """The lines of a comparison, the verdict last. Raises BookError, ValueError."""
    if rule_set is not None:
        check_rule_set(rule_set, rule_sets_in(connection))
    asked = find_run(connection, a), find_run(connection, b)
    if measure is Compared.PASS_AT_1:
        return compare_pass_at_1(*(read_evaluation(connection, side, rule_set) for side in asked))
    if measure is Compared.THROUGHPUT:
        (of_a, row_a), (of_b, row_b) = (
            read_throughput(connection, side, rule_set) for side in asked
        )
        return compare_throughput(of_a, row_a, of_b, row_b).lines
    (of_a, steps_a), (of_b, steps_b) = (read_step_time(connection, side) for side in asked)
    return compare_step_time(of_a, steps_a, of_b, steps_b).lines


def _print(lines: Sequence[Any], output: Format) -> None:
    """Rows of lines; for people without the columns that say nothing, and with rounded numbers."""
    columns = [field.name for field in dataclasses.fields(lines[0])]
    rows = [[getattr(line, name) for name in columns] for line in lines]
    if output in (Format.TABLE, Format.MARKDOWN):
        kept = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
        columns = [columns[i] for i in kept]
        rows = [[_rounded(row[i]) for i in kept] for row in rows]
    print_rows(columns, rows, output)


def _rounded(value: Any) -> Any:
    """Four digits are more than such figures are worth; a whole number is as it is."""
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 10_000 else value
