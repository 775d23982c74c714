"""Dataclass -> DuckDB table, as pure functions over type hints."""

from __future__ import annotations

import typing
from collections.abc import Callable
from datetime import datetime

from ledger.facts import FACTS
from ledger.facts.base import Uuid
from ledger.wire.schema import full_hints, is_enum, is_record, optional

PLACE_COLUMNS = ("log_partition", "log_offset", "log_time")
"""Where in topic `events` a row comes from, and the log's clock there."""

_SCALARS = {
    str: "VARCHAR",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    datetime: "TIMESTAMPTZ",
}

Doc = Callable[[type, str], str]


def create_table(name: str, cls: type, doc: Doc) -> str:
    """The CREATE TABLE statement of a fact, with its documentation as comments.

    No keys: duplicates are dropped before they are inserted, at a fraction of an index's cost."""
    lines = [
        "    log_partition INTEGER NOT NULL,",
        "    log_offset BIGINT NOT NULL,",
        "    log_time TIMESTAMPTZ NOT NULL,",
    ]
    columns = list(full_hints(cls).items())
    for i, (column, hint) in enumerate(columns):
        inner, nullable = optional(hint)
        comma = "," if i < len(columns) - 1 else ""
        required = "" if nullable else " NOT NULL"
        lines.append(f"    {column} {sql_type(inner)}{required}{comma}  -- {doc(cls, column)}")
    body = "\n".join(lines)
    return f"-- {doc(cls, '')}\nCREATE TABLE {name} (\n{body}\n);\n"


def sql_type(hint: object) -> str:
    """The DuckDB type of a field."""
    inner, _ = optional(hint)
    if inner == Uuid:
        return "UUID"
    for python, sql in _SCALARS.items():
        if inner is python:
            return sql
    if is_enum(inner):
        return "VARCHAR"
    if is_record(inner):
        fields = ", ".join(f'"{name}" {sql_type(of)}' for name, of in full_hints(inner).items())
        return f"STRUCT({fields})"
    arguments = typing.get_args(inner)
    if typing.get_origin(inner) is list:
        return f"{sql_type(arguments[0])}[]"
    return f"MAP(VARCHAR, {sql_type(arguments[1])})"


def create_all(doc: Doc) -> str:
    """All tables of the facts."""
    return "\n".join(create_table(name, cls, doc) for name, cls in FACTS.items())
