"""What a client's SQL may do: select, and nothing else. Two doors, each tried alone."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator

import duckdb
import pytest

from api.server.sealed import Sealed
from api.server.sql_functions import FUNCTIONS, TABLE_FUNCTIONS
from api.server.sql_guard import LONGEST, add_guard, refusal
from ledger.book_sql import VIEWS, sql_file

WRITES = """
INSERT INTO runs VALUES (1)
DELETE FROM turn_completed
UPDATE turn_completed SET slot = 1
TRUNCATE turn_completed
MERGE INTO turn_completed USING runs ON true WHEN MATCHED THEN DELETE
CREATE TABLE mine AS SELECT 1
CREATE TEMP TABLE mine (a INT)
CREATE VIEW mine AS SELECT 1
CREATE OR REPLACE MACRO select_only(s, q) AS true
CREATE OR REPLACE MACRO sql_refusal(q) AS NULL
CREATE SCHEMA mine
CREATE SEQUENCE mine
CREATE TYPE mine AS ENUM ('a')
CREATE SECRET mine (TYPE s3)
CREATE INDEX mine ON turn_completed (slot)
DROP VIEW runs
DROP MACRO select_only
ALTER TABLE turn_completed ADD COLUMN a INT
COMMENT ON TABLE turn_completed IS 'mine'
WITH mine AS (INSERT INTO runs VALUES (1) RETURNING *) SELECT * FROM mine
SELECT * FROM (DELETE FROM turn_completed RETURNING *)
SELECT nextval('mine')
SELECT currval('mine')
SELECT setseed(0.5)
SELECT write_log('mine')
FROM truncate_duckdb_logs()
"""
FILES = """
COPY runs TO '/tmp/mine.csv'
COPY (SELECT 1) TO '/tmp/mine.parquet'
COPY turn_completed FROM '/etc/passwd'
EXPORT DATABASE '/tmp/mine'
IMPORT DATABASE '/tmp/mine'
ATTACH '/tmp/mine.duckdb'
ATTACH ':memory:' AS mine
DETACH copy_1
USE copy_1
FROM '/etc/passwd'
FROM 'mine.csv'
FROM "mine.parquet"
FROM 'https://example.org/mine.parquet'
FROM 's3://mine/mine.csv'
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_csv_auto('/etc/passwd')
SELECT * FROM READ_CSV('/etc/passwd')
SELECT * FROM "read_csv"('/etc/passwd')
SELECT * FROM main.read_csv('/etc/passwd')
SELECT * FROM system.main.read_csv('/etc/passwd')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_blob('/etc/passwd')
SELECT * FROM read_json('/etc/passwd')
SELECT * FROM read_ndjson_objects('/etc/passwd')
SELECT * FROM read_parquet('mine')
SELECT * FROM parquet_scan('mine')
SELECT * FROM parquet_metadata('mine')
SELECT * FROM read_duckdb('mine')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT * FROM glob('/etc/*')
SELECT (SELECT content FROM read_text('/etc/passwd'))
SELECT * FROM runs WHERE name IN (SELECT content FROM read_text('/etc/passwd'))
WITH mine AS (FROM read_text('/etc/passwd')) FROM mine
SELECT * FROM runs, LATERAL (SELECT * FROM read_text(runs.name))
SELECT * FROM runs UNION ALL SELECT * FROM read_text('/etc/passwd')
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM pandas_scan(1)
SELECT * FROM python_map_function(1)
"""
SETTINGS = """
SET memory_limit = '100GB'
SET enable_external_access = true
SET GLOBAL threads = 64
RESET ALL
PRAGMA memory_limit = '100GB'
PRAGMA database_list
CALL pragma_version()
INSTALL httpfs
LOAD httpfs
FORCE INSTALL httpfs
UPDATE EXTENSIONS
CHECKPOINT
FORCE CHECKPOINT
VACUUM
ANALYZE
BEGIN
COMMIT
ROLLBACK
PREPARE mine AS SELECT 1
EXECUTE mine
DEALLOCATE mine
EXPLAIN SELECT 1
EXPLAIN ANALYZE SELECT 1
SET VARIABLE mine = 1
SELECT getvariable('mine')
SELECT current_setting('memory_limit')
SELECT * FROM duckdb_settings()
SELECT * FROM pg_settings
SELECT * FROM pg_catalog.pg_settings
SELECT * FROM duckdb_secrets()
SELECT * FROM which_secret('a', 's3')
SELECT * FROM duckdb_extensions()
SELECT * FROM duckdb_logs
SELECT * FROM duckdb_databases
SELECT * FROM pragma_database_list
SELECT * FROM duckdb_temporary_files()
SELECT * FROM duckdb_external_file_cache()
SELECT * FROM checkpoint()
SELECT * FROM force_checkpoint()
SELECT * FROM enable_logging()
SELECT * FROM disable_logging()
SELECT * FROM enable_profiling()
"""
TRICKS = """
SELECT 1; SELECT 2
SELECT 1; DROP VIEW runs
SELECT 1 /* */; COPY runs TO '/tmp/mine.csv'
FROM query('SELECT 1')
FROM Query('SELECT 1')
FROM query_table('runs')
SELECT json_execute_serialized_sql('{}')
FROM json_execute_serialized_sql('{}')
SELECT json_serialize_plan('SELECT 1')
SELECT sleep_ms(100000)
SELECT pg_sleep(100000)
SELECT pg_catalog.pg_sleep(100000)
SELECT list_transform([1], lambda x: sleep_ms(x))
SELECT sum(sleep_ms(1)) OVER () FROM runs
SELECT 1 ORDER BY nextval('mine')
SELECT 1 LIMIT (SELECT count(*) FROM read_text('/etc/passwd'))
SELECT 1 GROUP BY write_log('mine')
SELECT 1 HAVING write_log('mine')
SELECT count(*) FILTER (write_log('mine')) FROM runs
SELECT quack_check_token('a', 'b', 'c')
FROM quack_serve('quack:localhost:1', token := 'mine')
FROM quack_stop('quack:localhost:1')
FROM quack_query('quack:localhost:1', 'SELECT 1')
FROM quack_active_connections()
SELECT finalize(1)
PIVOT runs ON kind
SHOW TABLES
"""


def listed(text: str) -> list[str]:
    """The statements of a text, one a line."""
    return [line for line in text.splitlines() if line]


@pytest.fixture(scope="module")
def guarded() -> Iterator[duckdb.DuckDBPyConnection]:
    with contextlib.closing(duckdb.connect()) as connection:
        add_guard(connection)
        yield connection


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    """A sealed DuckDB that shows a copy of an empty book."""
    folder = tmp_path_factory.mktemp("copies")
    with contextlib.closing(duckdb.connect(str(folder / "1.duckdb"))) as book:
        for name in ("book.sql", "tables.sql", *(f"views/{view}.sql" for view in VIEWS)):
            book.execute(sql_file(name))
    sealed = Sealed(folder, 256)
    sealed.seal()
    sealed.show(folder / "1.duckdb", "events/0:0", "2026-01-01T00:00:00+00:00")
    with contextlib.closing(sealed.connection):
        yield sealed


@pytest.mark.parametrize("kind", [WRITES, FILES, SETTINGS, TRICKS])
def test_whatever_does_not_only_select_is_refused(
    guarded: duckdb.DuckDBPyConnection, kind: str
) -> None:
    assert [each for each in listed(kind) if refusal(guarded, each) is None] == []


def test_the_list_of_refused_statements_is_long_enough() -> None:
    assert sum(len(set(listed(kind))) for kind in (WRITES, FILES, SETTINGS, TRICKS)) >= 100


def test_every_view_of_the_book_could_be_asked_as_a_query(
    guarded: duckdb.DuckDBPyConnection, sealed: Sealed
) -> None:
    for view in VIEWS:
        body = re.split(r"CREATE OR REPLACE VIEW \w+ AS", sql_file(f"views/{view}.sql"))[1]
        assert refusal(guarded, body) is None, view
        assert sealed.connection.execute(f'FROM "{view}" LIMIT 1').description, view


def test_what_only_reads_is_answered(guarded: duckdb.DuckDBPyConnection) -> None:
    for query in (
        "SELECT 1; -- a comment",
        "DESCRIBE runs",
        "FROM (SUMMARIZE runs)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) FROM n",
        "SELECT [x + 1 for x in range(3)], {'a': 1}.a, CASE WHEN 1 BETWEEN 0 AND 2 THEN 'y' END",
        "SELECT count(*) FILTER (slot > 0), max(slot) OVER (PARTITION BY group_id) FROM runs",
        "FROM (VALUES (1)) AS t(a) POSITIONAL JOIN unnest([1]) TABLESAMPLE 10%",
    ):
        assert refusal(guarded, query) is None, query


def test_a_refusal_says_what_is_wrong(guarded: duckdb.DuckDBPyConnection) -> None:
    assert refusal(guarded, "SELECT pg_sleep(1)") == "function pg_sleep is not allowed here"
    assert refusal(guarded, "SELECT 1; SELECT 2") == "only one statement is answered"
    assert refusal(guarded, "FROM 'mine.csv'") == "table mine.csv is not one of the book"
    assert "SELECT clause without" in str(refusal(guarded, "SELECT"))
    assert refusal(guarded, "SELECT 1" + " " * LONGEST) == (
        f"a query must have at most {LONGEST} characters"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "FROM read_text('/etc/passwd')",
        "FROM '/etc/passwd'",
        "FROM read_csv('/etc/hostname')",
        "FROM glob('/etc/*')",
        "ATTACH '/tmp/mine.duckdb'",
        "COPY (SELECT 1) TO '/tmp/mine.csv'",
        "INSTALL httpfs",
        "LOAD '/tmp/mine.duckdb_extension'",
        "FROM 'https://example.org/mine.csv'",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET allowed_directories = ['/']",
        "RESET lock_configuration",
        "DELETE FROM copy_1.turn_completed",
        "CREATE TABLE copy_1.mine (a INT)",
        "EXPORT DATABASE '/tmp/mine'",
    ],
)
def test_behind_the_guard_there_is_no_way_out_either(sealed: Sealed, statement: str) -> None:
    with pytest.raises(duckdb.Error):
        sealed.connection.cursor().execute(statement).fetchall()


def test_a_newer_duckdb_brings_no_function_that_nobody_looked_at() -> None:
    """With another DuckDB: look at what is new, add what only computes, and change the digest."""
    with contextlib.closing(duckdb.connect()) as connection:
        rows = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions()"
        ).fetchall()
    known = {str(name).lower() for (name,) in rows}
    assert {each for each in FUNCTIONS | TABLE_FUNCTIONS if each not in known} == set()
    names = "\n".join(sorted(known))
    assert (duckdb.__version__, hashlib.sha256(names.encode()).hexdigest()[:16]) == (
        "1.5.5", "520e53bcd34ddc49",
    )  # fmt: skip
