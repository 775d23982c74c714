"""SQL of clients, through /sql and through DuckDB's own protocol: every limit ends a query."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from api.server.quack_child import PACKAGED, packaged
from ledger.open_log import open_log
from tests.assembled import RUN
from tests.books import append
from tests.builders import a_fact, an_id
from tests.lived_runs import lived
from tests.recorded import eventually
from tests.serving import Served, serving

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 7"
SQL_S = 8.0


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asked")


@pytest.fixture(scope="module")
def served(log_folder: Path) -> Iterator[Served]:
    """A served book with tight limits."""
    url = f"sqlite:///{log_folder / 'log.db'}"
    with open_log(url) as log:
        lived(log)
    limits = {"sql_s": SQL_S, "sql_rows": 1000, "sql_mb": 1, "sql_memory_mb": 256}
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HOME", str(log_folder / "home"))
            served = stack.enter_context(
                serving(url, log_folder, quack=True, snapshot_s=0.2, sql_processes=1, **limits)
            )
        served.caught_up()
        eventually(lambda: served.sql("FROM trajectories").json["rows"] != [], 60.0)
        yield served


@contextlib.contextmanager
def attached(served: Served) -> Iterator[duckdb.DuckDBPyConnection]:
    """Any DuckDB client, with the book attached as `book`."""
    with contextlib.closing(duckdb.connect()) as client:
        for name in PACKAGED:
            client.load_extension(packaged(name))
        client.execute(
            f"ATTACH 'quack:localhost:{served.quack_port}' AS book (TOKEN '{served.token}')"
        )
        yield client


def test_an_answer_has_its_columns_its_rows_and_its_position(served: Served) -> None:
    answer = served.sql(
        "SELECT disposition, count(*) AS slots, 1.5 AS half, 'nan'::DOUBLE AS none,"
        " TIMESTAMPTZ '2026-01-01 00:00:00Z' AS moment, [1, 2] AS list"
        " FROM dispositions WHERE disposition = 'excluded' GROUP BY ALL"
    )
    assert answer.status == 200, answer.body
    reply = answer.json
    assert [column["type"] for column in reply["columns"]] == [
        "VARCHAR", "BIGINT", "DECIMAL(2,1)", "DOUBLE", "TIMESTAMP WITH TIME ZONE", "INTEGER[]"
    ]  # fmt: skip
    assert reply["rows"] == [["excluded", 2, 1.5, "nan", "2026-01-01T00:00:00+00:00", [1, 2]]]
    assert reply["position"].startswith("events/0:")


@pytest.mark.parametrize(
    ("query", "kind", "rule"),
    [
        ("SELECT * FROM range(1001)", "too_large", "may have 1000 rows, this one has more"),
        ("SELECT repeat('x', 2000000)", "too_large", "may have 1048576 bytes"),
        ("SELECT * FROM range(300000000) ORDER BY hash(range)", "out_of_memory", "memory"),
        ("SELECT len(range(9000000000))", "", ""),
        ("SELECT len(repeat('x', 9000000000))", "", ""),
        ("SELECT pg_sleep(60)", "refused", "function pg_sleep is not allowed here"),
        ("SELECT no_such_column FROM runs", "wrong", "no_such_column"),
        ("SELECT" + "(" * 40_000, "", ""),
        (ENDLESS, "too_slow", "a query may take 8 s"),
    ],
)
def test_a_query_over_a_limit_is_an_error_and_the_next_one_is_answered(
    served: Served, query: str, kind: str, rule: str
) -> None:
    began = time.monotonic()
    reply = served.sql(query)
    assert time.monotonic() - began < SQL_S + 20
    assert reply.status == 422, reply.body[:300]
    assert kind in reply.json["type"]
    assert rule in reply.json["detail"]
    assert served.sql("SELECT count(*) FROM range(1000)").json["rows"] == [[1000]]


def test_as_many_rows_as_are_allowed_come_whole(served: Served) -> None:
    rows = served.sql("SELECT range FROM range(1000)").json["rows"]
    assert rows == [[number] for number in range(1000)]


def test_any_duckdb_client_attaches_and_sees_what_arrives(served: Served, log_folder: Path) -> None:
    with attached(served) as client:
        assert client.execute("SELECT count(*) FROM book.trajectories").fetchall() == [(36,)]
        asked = "FROM quack_query_by_name('book', 'SELECT count(*) FROM runs')"
        before = client.execute(asked).fetchall()[0][0]
        with open_log(f"sqlite:///{log_folder / 'log.db'}") as log:
            append(log, [a_fact("run_declared", seed=77, run_id=an_id("another"))])
        eventually(lambda: client.execute(asked).fetchall() == [(before + 1,)], 60.0)
        position = client.execute("SELECT position FROM book.snapshot").fetchall()[0][0]
        assert position.startswith("events/0:")


def test_a_server_needs_no_home(served: Served, log_folder: Path) -> None:
    assert served.quack_port is not None
    assert not (log_folder / "home").exists()


def test_an_attached_client_can_only_select(served: Served) -> None:
    with attached(served) as client:
        for statement in (
            f"DELETE FROM book.run_declared WHERE run_id = '{RUN}'",
            "CREATE TABLE book.mine (a INT)",
            "INSERT INTO book.book_meta VALUES ('a', 'b')",
            "FROM quack_query_by_name('book', 'FROM read_text(''/etc/passwd'')')",
            "FROM quack_query_by_name('book', 'SET memory_limit = ''9GB''')",
            "FROM quack_query_by_name('book', 'SELECT pg_sleep(60)')",
            "FROM quack_query_by_name('book', 'FROM quack_active_connections()')",
        ):
            with pytest.raises(duckdb.Error):
                client.execute(statement).fetchall()
        assert client.execute("SELECT count(*) FROM book.trajectories").fetchall() == [(36,)]


def test_a_client_without_the_token_does_not_attach(served: Served) -> None:
    with contextlib.closing(duckdb.connect()) as client:
        for name in PACKAGED:
            client.load_extension(packaged(name))
        wrong = f"ATTACH 'quack:localhost:{served.quack_port}' AS book (TOKEN 'another token')"
        with pytest.raises(duckdb.Error, match=r"(?i)token|auth"):
            client.execute(wrong)


def test_an_endless_query_of_an_attached_client_is_ended_and_others_attach_again(
    served: Served,
) -> None:
    with attached(served) as client, pytest.raises(duckdb.Error):
        client.execute(f"FROM quack_query_by_name('book', '{ENDLESS}')").fetchall()

    def answers() -> bool:
        with contextlib.suppress(duckdb.Error), attached(served) as client:
            return client.execute("SELECT count(*) FROM book.trajectories").fetchall() == [(36,)]
        return False

    eventually(answers, 60.0)
