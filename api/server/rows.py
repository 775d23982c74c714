"""Rows of the book's views as typed models.

A view is the single source of what its rows are: columns and types are asked of an empty book, so
the OpenAPI document can't differ from what is answered.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID

import duckdb
from pydantic import BaseModel, Field, JsonValue, create_model

from ledger.accounts.registry import definition_of
from ledger.book_sql import VIEWS, sql_file

Number = float | Literal["nan", "inf", "-inf"]
"""JSON has no nan: a loss that is none must not look like a missing one."""


@cache
def empty_book() -> duckdb.DuckDBPyConnection:
    """A book without a fact, in memory, to ask for its columns."""
    connection = duckdb.connect()
    connection.execute(sql_file("book.sql"))
    connection.execute(sql_file("tables.sql"))
    for view in VIEWS:
        connection.execute(sql_file(f"views/{view}.sql"))
    return connection


@cache
def columns_of(view: str) -> tuple[tuple[str, str], ...]:
    """Names and DuckDB types of a view's or table's columns."""
    rows = empty_book().execute(f'DESCRIBE "{view}"').fetchall()
    return tuple((str(name), str(kind)) for name, kind, *_ in rows)


@cache
def row_model(view: str) -> type[BaseModel]:
    """The model of a view's rows. Every column may be null."""
    name = "".join(part.capitalize() for part in view.split("_")) + "Row"
    described = empty_book().execute(f'SELECT * FROM "{view}" LIMIT 0').description or ()
    fields: dict[str, Any] = {}
    for (column, _), (_, kind, *_) in zip(columns_of(view), described, strict=True):
        fields[_safe(column)] = (python_type(kind, name + column) | None, Field(alias=column))
    model = create_model(name, **fields)
    model.__doc__ = definition_of(view) if view in VIEWS else None
    return model


def _safe(column: str) -> str:
    """A name that pydantic takes for a field; the alias keeps the column's own."""
    return f"{column}_" if hasattr(BaseModel, column) or column.startswith("_") else column


def python_type(kind: Any, name: str) -> Any:
    """The type of JSON values for a DuckDB type."""
    match kind.id:
        case "list" | "array":
            return list[python_type(kind.children[0][1], name) | None]
        case "map":
            return dict[str, python_type(kind.children[1][1], name) | None]
        case "struct":
            fields: dict[str, Any] = {
                _safe(child): (python_type(inner, name + child) | None, Field(alias=child))
                for child, inner in kind.children
            }
            return create_model(re.sub(r"\W", "", name.title()), **fields)
        case other:
            return _SCALARS.get(other, JsonValue)


_INTEGERS = ("tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint",
             "uinteger", "ubigint", "uhugeint")  # fmt: skip
_SCALARS: dict[str, Any] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(("double", "float", "decimal"), Number),
    **dict.fromkeys(("timestamp with time zone", "timestamp", "timestamp_s"), datetime),
    "boolean": bool,
    "varchar": str,
    "uuid": UUID,
    "interval": Number,
}
