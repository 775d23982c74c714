"""`rollbook report`: an account's rows with what they mean, in four forms."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from api.cli import main
from ledger.accounts.registry import ACCOUNTS, definition_of, find_account, is_share
from ledger.accounts.reports import report
from ledger.book import connect
from ledger.book_sql import VIEWS
from tests.evaluated import a_book, an_evaluation, run_of

Rollbook = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    twenty = {f"t{n:02}": "p f f f" if n < 8 else "f f f f" for n in range(20)}
    return a_book(
        tmp_path_factory.mktemp("report"),
        [
            *an_evaluation("twenty", twenty, parent_policy_version=3),
            *an_evaluation("odd | name", {"a": "p i", "b": "i i"}, rule_set=2),
            *an_evaluation("none pass", {"a": "f f", "b": "f f"}),
        ],
    )


@pytest.fixture
def rollbook(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rollbook:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rollbook", "report", *arguments, "--book", str(book)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *capsys.readouterr()

    return run


def test_every_account_can_be_asked_and_shows_columns_that_it_has(book: Path) -> None:
    with connect(book, read_only=True) as connection:
        for account in ACCOUNTS:
            assert account.view in VIEWS
            found = report(connection, account)
            assert found.definition.startswith("One row per ")
            if found.rows or account.view not in ("pass_at_1", "pass_at_k"):
                assert set(account.shown) <= set(found.columns)


def test_an_answer_says_what_it_means_what_it_is_over_and_how_whole_the_book_is(
    rollbook: Rollbook,
) -> None:
    status, out, _ = rollbook("pass-at-1", "--run", "twenty", "--format", "json")
    assert status == 0
    found = json.loads(out)
    rows = found.pop("rows")
    position = found.pop("position")
    assert found == {
        "account": "pass-at-1",
        "definition": definition_of("pass_at_1"),
        "window": "from the first start to the last end of the evaluation's attempts",
        "excluded": "slots without a valid attempt are missing, and in the bounds alone",
        "run_id": run_of("twenty"),
        "rule_sets": [1],
        "problems": {},
        "total": 1,
    }
    assert list(position) == ["events/0"]
    (row,) = rows
    assert (row["passed"], row["valid"], row["published"]) == (8, 80, 0.1)
    assert row["bootstrap_low"] < 0.1 < row["bootstrap_high"]
    assert row["bootstrap_method"] == "bootstrap"
    # Eight tasks at 1/4 and twelve at 0: mean 0.1, variance 0.3 / 19.
    assert row["clustered_high"] == pytest.approx(0.1 + 1.959964 * (0.3 / 19 / 20) ** 0.5)


def test_a_table_has_percents_with_two_decimals_and_no_interval_of_zero_width(
    rollbook: Rollbook,
) -> None:
    _, out, _ = rollbook("pass-at-1", "--run", "twenty")
    assert out.startswith("pass-at-1: One row per evaluation run, policy version and rule set")
    assert "  rule sets: 1\n" in out
    down = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.strip()}
    assert down["pass_at_1_macro"] == "10.00%"
    _, out, _ = rollbook("pass-at-1", "--run", "none pass")
    down = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.strip()}
    # 3/T with two tasks says nothing at all.
    assert (down["bootstrap_low"], down["bootstrap_high"]) == ("0.00%", "100.00%")


def test_a_limit_says_what_it_leaves_out(
    rollbook: Rollbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, _ = rollbook("task-outcomes", "--format", "json")
    rows = json.loads(whole)["rows"]
    _, out, _ = rollbook("task-outcomes", "--format", "json", "--limit", "3")
    found = json.loads(out)
    assert (found["rows"], found["total"]) == (rows[:3], len(rows))
    # Rule set 2 is that of rows further down.
    assert found["rule_sets"] == [1, 2]
    _, out, _ = rollbook("task-outcomes", "--run", "twenty", "--limit", "20")
    assert "--limit" not in out
    # A table that nobody limited is limited.
    monkeypatch.setattr("api.report_commands.SHOWN", 19)
    _, out, _ = rollbook("task-outcomes", "--run", "twenty")
    assert "  rows: the first 19 of 20 (--limit)\n" in out
    _, out, _ = rollbook("task-outcomes", "--run", "twenty", "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 20


def test_csv_is_rows_alone_and_tells_the_rest_on_stderr(rollbook: Rollbook) -> None:
    status, out, errors = rollbook("task-outcomes", "--format", "csv", "--run", run_of("twenty"))
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["passed"] for row in rows] == ["1"] * 8 + ["0"] * 12
    assert errors.startswith("task-outcomes: One row per task of an evaluation run")


def test_markdown_keeps_a_bar_inside_its_cell(rollbook: Rollbook) -> None:
    _, out, _ = rollbook("pass-at-1", "--format", "markdown", "--rule-set", "2",
                         "--columns", "name,coverage,tasks_without_valid")  # fmt: skip
    assert out.startswith("## pass-at-1\n\nOne row per evaluation run")
    assert "- rule sets: 2\n" in out
    assert out.endswith(
        "| name | coverage | tasks_without_valid |\n| --- | --- | --- |\n"
        "| odd \\| name | 25.00% | b |\n"
    )


def test_a_rule_set_that_there_is_not_is_refused_with_those_there_are(rollbook: Rollbook) -> None:
    for account in ("pass-at-1", "step-time"):
        status, out, errors = rollbook(account, "--rule-set", "77")
        assert (status, out) == (2, "")
        assert errors == "error: a rule set must be one of 1, 2, got 77\n"
    assert rollbook("throughput", "--rule-set", "2")[0] == 0  # it exists, and judged nothing


def test_pass_at_k_has_an_interval_for_each_k(rollbook: Rollbook) -> None:
    _, out, _ = rollbook("pass_at_k", "--run", "twenty", "--format", "json")
    rows = json.loads(out)["rows"]
    assert [row["k"] for row in rows] == [1, 2, 3, 4]
    assert [row["pass_at_k"] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    for row in rows:
        assert row["clustered_low"] < row["pass_at_k"] < row["clustered_high"]


def test_without_an_account_all_of_them_are_listed(rollbook: Rollbook) -> None:
    _, out, _ = rollbook("--format", "json")
    assert [row["account"] for row in json.loads(out)] == [each.name for each in ACCOUNTS]


def test_what_is_not_there_is_answered_with_what_is(rollbook: Rollbook) -> None:
    status, _, errors = rollbook("pass-at-2")
    assert status == 2
    assert errors.startswith("error: an account is one of step-time, ")
    assert "pass-at-1" in errors
    assert errors.endswith("got 'pass-at-2'\n")
    status, _, errors = rollbook("pass-at-1", "--columns", "nmae")
    assert (status, "--columns are some of run_id, " in errors) == (2, True)
    status, _, errors = rollbook("pass-at-1", "--run", "gone")
    assert (status, "must be the id or the name of one run" in errors) == (2, True)


def test_accounts_are_found_with_dashes_or_underscores_and_shares_by_their_name() -> None:
    assert find_account("step-time") is find_account("step_time")
    assert [is_share(name) for name in ("tail_share", "share_of_slots", "coverage")] == [True] * 3
    assert [is_share(name) for name in ("wall_s", "shared", "passed")] == [False] * 3
