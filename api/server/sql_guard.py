"""Which SQL only reads: one SELECT whose functions and tables are known to do nothing else.

DuckDB's own parser says what is in a statement (`json_serialize_sql`, which knows nothing but
SELECT), and lists of what is allowed say whether it may run. The same macro guards /sql and Quack.
It is the first of two doors: the DuckDB behind it (`sealed.py`) has no way to files, network,
extensions or settings, and its book is read-only.
"""

from __future__ import annotations

import duckdb

from api.server.sql_functions import CATALOG_TABLES, FUNCTIONS, TABLE_FUNCTIONS

LONGEST = 100_000
"""Characters of a query."""


def _list(names: frozenset[str]) -> str:
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(names))
    return f"[{quoted}]"


GUARD = f"""
CREATE OR REPLACE MACRO sql_names(tree, path) AS (
    coalesce(list_distinct(list_transform(json_extract_string(tree, path), lambda n: lower(n))), [])
);
CREATE OR REPLACE MACRO sql_refusal(query) AS (
    WITH parsed AS MATERIALIZED (
        SELECT CASE
            WHEN length(query) <= {LONGEST} THEN json_serialize_sql(query::VARCHAR)
        END AS tree
    ),
    named AS MATERIALIZED (
        SELECT
            tree,
            list_filter(
                sql_names(tree, '$..function_name'),
                lambda n: NOT list_contains({_list(FUNCTIONS | TABLE_FUNCTIONS)}, n)
            ) AS functions,
            list_filter(
                sql_names(tree, '$..function.function_name'),
                lambda n: NOT list_contains({_list(TABLE_FUNCTIONS)}, n)
            ) AS table_functions,
            list_filter(
                sql_names(tree, '$..table_name'),
                lambda n: list_contains({_list(CATALOG_TABLES)}, n)
                    OR regexp_matches(n, '[^a-z0-9_ ]')
            ) AS tables
        FROM parsed
    )
    SELECT CASE
        WHEN tree IS NULL THEN 'a query must have at most {LONGEST} characters'
        WHEN json_extract_string(tree, '$.error') IS DISTINCT FROM 'false'
            THEN coalesce(json_extract_string(tree, '$.error_message'), 'only SELECT is answered')
        WHEN json_array_length(tree, '$.statements') IS DISTINCT FROM 1
            THEN 'only one statement is answered'
        WHEN len(functions) > 0 THEN 'function ' || functions[1] || ' is not allowed here'
        WHEN len(table_functions) > 0
            THEN 'table function ' || table_functions[1] || ' is not allowed here'
        WHEN len(tables) > 0 THEN 'table ' || tables[1] || ' is not one of the book'
        WHEN len(functions) = 0 AND len(table_functions) = 0 AND len(tables) = 0 THEN NULL
        ELSE 'the query was not understood'
    END FROM named
);
CREATE OR REPLACE MACRO select_only(session, query) AS (sql_refusal(query) IS NULL);
"""
"""`sql_refusal(query)`: why it is refused, null if it isn't. `select_only(session, query)`: for
Quack."""


def add_guard(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the macros."""
    connection.execute(GUARD)


def refusal(connection: duckdb.DuckDBPyConnection, query: str) -> str | None:
    """Why `query` is refused; None if it isn't."""
    (why,) = connection.execute("SELECT sql_refusal(?)", [query]).fetchone() or ("no answer",)
    return None if why is None else str(why)
