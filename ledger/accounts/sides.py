"""What a comparison is asked to compare, looked up in a book.

RUN            by its id, the beginning of its id (4 digits or more), or its name
RUN/3          its span 3 of declared resources; of an evaluation, policy version 3
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import duckdb

from ledger.accounts.compare import HARDWARE, RESOURCES, Row, Side
from ledger.book import BookError

SHORTEST_ID = 4

SCOPE = (
    "kind",
    "dataset",
    "split",
    "subset",
    "subset_sha256",
    "tasks",
    "attempts_per_task",
    "temperature",
    "top_p",
    "top_k",
    "output_cap_tokens",
    "context_cap_tokens",
    "turn_cap",
    "clock_cap_s",
    "pass_threshold",
    "scaffold",
    "model",
)
"""Columns of fact `run_declared` that say what a run set out to do."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One side as it was asked for."""

    text: str
    run_id: UUID
    number: int | None
    """Span or policy version; null: not given."""


def find_run(connection: duckdb.DuckDBPyConnection, text: str) -> Asked:
    """RUN or RUN/NUMBER. Raises BookError where no run, or more than one, is meant."""
    name, slash, number = text.rpartition("/")
    found = _meant(connection, text)
    if not found and slash and number.isdecimal():
        found = _meant(connection, name)
    else:
        number = ""
    if len(found) != 1:
        which = ", ".join(f"{run_id} ({run_name})" for run_id, run_name in found) or "none"
        raise BookError(f"{text!r} must be the id or the name of one run, and means {which}")
    return Asked(text, found[0][0], int(number) if number else None)


def _meant(connection: duckdb.DuckDBPyConnection, name: str) -> list[tuple[UUID, str]]:
    return connection.execute(
        "SELECT run_id, arg_max(name, log_offset) AS last_name FROM run_declared GROUP BY run_id"
        " HAVING last_name = $name"
        " OR (len($name) >= $shortest AND starts_with(run_id::VARCHAR, lower($name)))",
        {"name": name, "shortest": SHORTEST_ID},
    ).fetchall()


def read_throughput(
    connection: duckdb.DuckDBPyConnection, asked: Asked, rule_set: int | None
) -> tuple[Side, Row]:
    """One row of `throughput`. A span without an attempt (a run begins before it has said what it
    runs on) is meant only where it is asked for. Raises BookError where none, or more than one, is
    meant."""
    found = rows_of(connection, "throughput", asked.run_id, "span, rule_set")
    if asked.number is not None:
        found = [row for row in found if row["span"] == asked.number]
    else:
        found = [row for row in found if row["attempted"]] or found
    if rule_set is not None:
        found = [row for row in found if row["rule_set"] == rule_set]
    row = the_one(asked, found, ("span", "rule_set"))
    return _side(connection, asked, row), row


def read_step_time(connection: duckdb.DuckDBPyConnection, asked: Asked) -> tuple[Side, list[Row]]:
    """The steps of a run, or of one span of it. Raises BookError where its hardware changed between
    them and no span is given."""
    found = rows_of(connection, "step_time", asked.run_id, "started_at, step")
    if asked.number is not None:
        found = [row for row in found if row["resource_span"] == asked.number]
    if not found:
        raise BookError(f"{asked.text!r} has no completed step")
    spans = sorted({row["resource_span"] for row in found if row["resource_span"] is not None})
    declared = [
        row
        for row in rows_of(connection, "resource_spans", asked.run_id, "span")
        if row["span"] in spans
    ]
    if len({tuple(row[name] for name in HARDWARE) for row in declared}) > 1:
        raise BookError(
            f"the steps of {asked.text!r} ran on different hardware: give one of its spans,"
            f" {' or '.join(f'{asked.text}/{span}' for span in spans)}"
        )
    return _side(connection, asked, _same(declared)), found


def _same(declared: Sequence[Row]) -> Row:
    """What the spans agree on; what changed between them is a text that says so."""
    return {
        name: _one_of([row[name] for row in declared]) for name in (declared[0] if declared else ())
    }


def _one_of(values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    return " then ".join(str(value) for value in values)


def the_one(asked: Asked, found: Sequence[Row], by: Sequence[str]) -> Row:
    """The only row. Raises BookError with what tells the rows apart."""
    if len(found) == 1:
        return found[0]
    which = "; ".join(", ".join(f"{name} {row[name]}" for name in by) for row in found) or "none"
    raise BookError(
        f"{asked.text!r} must have one {' and one '.join(by)} (RUN/NUMBER, --rule-set),"
        f" and has {which}"
    )


def _side(connection: duckdb.DuckDBPyConnection, asked: Asked, declared: Row) -> Side:
    settings = _leaves("limits", declared.get("limits") or {})
    settings |= scope_of(connection, asked.run_id) | _configured(connection, asked.run_id)
    return Side(asked.text, {name: declared.get(name) for name in RESOURCES}, settings)


def scope_of(connection: duckdb.DuckDBPyConnection, run_id: UUID) -> dict[str, Any]:
    """What the run declared of its scope, by column."""
    (row,) = connection.execute(
        f"SELECT {', '.join(SCOPE)} FROM run_declared WHERE run_id = ?"
        " ORDER BY log_time DESC, log_offset DESC LIMIT 1",
        [run_id],
    ).fetchall()
    return dict(zip(SCOPE, row, strict=True))


def _configured(connection: duckdb.DuckDBPyConnection, run_id: UUID) -> dict[str, Any]:
    """The run's whole configuration, and its assembler's as of its last decision."""
    (of_run,) = connection.execute(
        "SELECT arg_max(configuration, log_offset) FROM run_declared WHERE run_id = ?", [run_id]
    ).fetchall()
    (of_groups,) = connection.execute(
        "SELECT arg_max(cut.configuration, log_offset) FROM group_decided WHERE run_id = ?",
        [run_id],
    ).fetchall()
    return _leaves("configuration", _parsed(of_run[0])) | _leaves(
        "assembler", _parsed(of_groups[0])
    )


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text  # whatever it is, it can still differ


def _leaves(name: str, value: Any) -> dict[str, Any]:
    """Dotted names and values of nested settings; a list is one value."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, each in cast("dict[str, Any]", value).items():
        found |= _leaves(f"{name}.{key}", each)
    return found


def rows_of(
    connection: duckdb.DuckDBPyConnection, view: str, run_id: UUID, order: str
) -> list[Row]:
    result = connection.execute(f"SELECT * FROM {view} WHERE run_id = ? ORDER BY {order}", [run_id])
    columns = [str(column[0]) for column in result.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
