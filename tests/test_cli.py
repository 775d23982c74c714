"""The command line: what it prints, and its exit status: 0 done, 1 a finding, 2 bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli import main
from api.output import Format, print_rows
from ledger.log import Record
from ledger.open_log import open_log
from ledger.recorder import Recorder
from tests.books import append, numbered
from tests.builders import a_turn, an_id


@dataclass
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


Rollbook = Callable[..., Done]


@pytest.fixture
def rollbook(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rollbook:
    """Runs a command in the lab's folder, in this process: starting one for each takes long."""
    monkeypatch.chdir(lab)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["rollbook", *arguments])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder with a log of ten turns and a settings file that names it."""
    with Recorder(
        f"sqlite:///{tmp_path}/log.db", producer="p", run_id=an_id("run"), spool_dir=tmp_path
    ) as recorder:
        for i in range(10):
            recorder.turn_completed(
                group_id=an_id("group"), slot=0, trajectory_id=an_id("trajectory"), turn_no=i
            )
    (tmp_path / "rollbook.toml").write_text('[log]\nurl = "sqlite:///log.db"\n')
    return tmp_path


def test_project_audit_and_sql_use_the_settings_of_the_folder(
    lab: Path, rollbook: Rollbook
) -> None:
    done = rollbook("project")
    assert (done.returncode, done.stdout) == (0, "")
    assert "book.duckdb: 12 facts, 0 duplicates dropped, 0 records quarantined" in done.stderr
    assert rollbook("audit").returncode == 0
    table = rollbook("sql", "SELECT count(*) AS n FROM turns")
    assert table.stdout.split() == ["n", "10"]


def test_sql_prints_csv_and_json(lab: Path, rollbook: Rollbook) -> None:
    rollbook("project")
    query = (
        "SELECT turn_no, NULL AS nothing, [1, 2] AS list, TIMESTAMPTZ '2026-01-02 03:04:05Z' AS t"
    )
    query += " FROM turns ORDER BY turn_no LIMIT 1"
    as_json = json.loads(rollbook("sql", query, "--format", "json").stdout)
    assert as_json == [
        {"turn_no": 0, "nothing": None, "list": [1, 2], "t": "2026-01-02T03:04:05+00:00"}
    ]
    as_csv = rollbook("sql", query, "--format", "csv").stdout
    assert list(csv.reader(io.StringIO(as_csv))) == [
        ["turn_no", "nothing", "list", "t"],
        ["0", "", "[1, 2]", "2026-01-02T03:04:05+00:00"],
    ]


def test_a_line_of_csv_ends_as_a_shell_expects(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["n", "text"], [(1, "one"), (2, None)], Format.CSV)
    assert capsys.readouterr().out == "n,text\n1,one\n2,\n"


def test_sql_can_not_write_to_the_book(lab: Path, rollbook: Rollbook) -> None:
    rollbook("project")
    refused = rollbook("sql", "DELETE FROM turn_completed")
    assert refused.returncode == 2
    assert "read-only" in refused.stderr


def test_replay_until_and_what_it_refuses(lab: Path, rollbook: Rollbook) -> None:
    assert rollbook("replay", "--book", "old", "--until", "events/0:4").returncode == 0
    counted = rollbook("sql", "SELECT count(*) FROM facts", "--book", "old")
    assert counted.stdout.split()[-1] == "4"
    again = rollbook("replay", "--book", "old")
    assert (again.returncode, "book old exists" in again.stderr) == (2, True)
    assert rollbook("replay", "--book", "old", "--force").returncode == 0


def test_audit_names_what_is_wrong_with_exit_status_1(lab: Path, rollbook: Rollbook) -> None:
    with open_log(f"sqlite:///{lab}/log.db") as log:
        append(log, numbered([a_turn(i) for i in range(3)])[1:])
        log.append("events", [Record("any", b"garbage")])
    found = rollbook("audit", "--format", "json")
    assert found.returncode == 1
    assert {(each["check"], each["verdict"]) for each in json.loads(found.stdout)} == {
        ("sequence_holes", "wrong"),
        ("quarantined", "wrong"),
    }


def test_archive_removes_only_what_it_verified(lab: Path, rollbook: Rollbook) -> None:
    with open_log(f"sqlite:///{lab}/log.db") as log:
        log.append("tokens", [Record("any", bytes([i])) for i in range(5)])
    done = rollbook("archive", "cold", "--remove")
    assert (done.returncode, "cold: 5 records" in done.stderr) == (0, True)
    with open_log(f"sqlite:///{lab}/log.db") as log:
        assert list(log.start_positions("tokens").values()) == [5]


def test_copy_log_without_a_run(lab: Path, rollbook: Rollbook) -> None:
    done = rollbook("copy-log", "--to", "sqlite:///copy.db", "--without-run", an_id("run"))
    assert done.returncode == 0
    assert "0 records copied, 12 of the run left out" in done.stderr


def test_the_backup_drill(lab: Path, rollbook: Rollbook) -> None:
    assert rollbook("backup", "--to", "saved.db").returncode == 0
    with open_log(f"sqlite:///{lab}/log.db") as log:
        append(log, numbered([a_turn(i) for i in range(300)]))
        assert (lab / "log.db-wal").exists()
        shutil.copy(lab / "log.db-wal", lab / "wal")
    (lab / "log.db").unlink()
    shutil.copy(lab / "wal", lab / "log.db-wal")  # as a killed writer leaves it
    assert rollbook("restore", "saved.db").returncode == 0
    assert rollbook("audit").returncode == 0
    counted = rollbook("sql", "SELECT count(*) FROM turns")
    assert counted.stdout.split()[-1] == "10"
    refused = rollbook("restore", "saved.db")
    assert (refused.returncode, "never overwrites" in refused.stderr) == (2, True)


def test_a_damaged_backup_is_not_restored(lab: Path, rollbook: Rollbook) -> None:
    rollbook("backup", "--to", "saved.db")
    content = bytearray((lab / "saved.db").read_bytes())
    content[4096:12_000] = os.urandom(12_000 - 4096)
    (lab / "saved.db").write_bytes(content)
    refused = rollbook("restore", "saved.db", "--log", "sqlite:///new.db")
    assert refused.returncode == 2
    assert not (lab / "new.db").exists()


def test_drain_says_how_much_it_moved(lab: Path, rollbook: Rollbook) -> None:
    done = rollbook("drain", "--spool", "spool")
    assert (done.returncode, "0 records drained" in done.stderr) == (0, True)


def test_a_log_is_no_book_a_book_is_no_log_and_an_empty_file_is_neither(
    lab: Path, rollbook: Rollbook
) -> None:
    rollbook("project", "--book", "book.duckdb")
    (lab / "empty").touch()
    before = (lab / "log.db").read_bytes()
    refused = {
        ("sql", "SELECT 1", "--book", "log.db"): "a book must be a DuckDB file, and log.db is",
        ("project", "--book", "log.db"): "a book must be a DuckDB file, and log.db is not",
        ("serve", "--book", "log.db"): "a book must be a DuckDB file, and log.db is not",
        ("sql", "SELECT 1", "--book", "empty"): "a book must be a DuckDB file, and empty is",
        ("project", "--log", "sqlite:///book.duckdb"): "something else (a book is named by --book)",
        ("project", "--log", "sqlite:///empty"): "there is no log sqlite:///empty yet: its file is",
    }
    for arguments, message in refused.items():
        done = rollbook(*arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "xtension" not in done.stderr
    assert (lab / "log.db").read_bytes() == before
    assert (lab / "empty").stat().st_size == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["project", "--log", "http://x"], "log URL must start with sqlite:/// or kafka://"),
        (["project", "--log", "kafka://host"], "must be kafka://host:port/prefix"),
        (["project", "--log", "sqlite:///no/such/log.db"], "there is no log sqlite:///no/such"),
        (["audit", "--log", "sqlite:///typo.db"], "there is no log sqlite:///typo.db"),
        (["project", "--log", ""], "log URL must start with"),
        (["project", "--book", "/dev/null/book"], "/dev/null"),
        (["sql", ""], "a query must not be empty"),
        (["sql", "SELECT 1 AS a, 2 AS a", "--format", "json"], "columns of different names"),
        (["sql", "SELECT 1", "--book", "missing"], "there is no book at missing"),
        (["sql", "SELEC 1"], "syntax error"),
        (["replay", "--book", "b", "--until", "noon"], "--until must be positions like"),
        (["replay", "--book", "b", "--until", "2099-01-01"], "--until must not lie ahead of 20"),
        (["backup", "--to", "x", "--log", "kafka://127.0.0.1:1/p"], "Kafka's own"),
        (["restore", "missing.db", "--log", "sqlite:///new.db"], "there is no file missing.db"),
        (["project", "--config", "missing.toml"], "missing.toml does not exist"),
        (["copy-log", "--to", "sqlite:///x.db", "--without-run", "seven"], "--without-run"),
        (["copy-log", "--to", "sqlite:///y.db", "--without-run", an_id("no")], "is in no record"),
        (["sql", "SELECT 1; SELECT 2"], "a query must be one statement, got 2"),
        (["simulate", "steps-before", "--scale", "-1"], "must be above 0 and finite, got -1"),
        (["simulate", "steps-before", "--scale", "nan"], "must be above 0 and finite, got nan"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    rollbook: Rollbook, arguments: list[str], message: str
) -> None:
    rollbook("project")
    refused = rollbook(*arguments)
    assert refused.returncode == 2, refused.stderr
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[log]\nurll = 'sqlite:///log.db'\n", "log.urll: Extra inputs are not permitted"),
        ("[logs]\n", "logs: Extra inputs are not permitted"),
        ("[log\n", "rollbook.toml is not TOML"),
        ("[spool]\n", "spool: Extra inputs are not permitted"),
        ("[log]\nurl = 7\n", "log.url: Input should be a valid string"),
    ],
)
def test_an_unknown_or_wrong_setting_is_an_error(
    lab: Path, rollbook: Rollbook, text: str, message: str
) -> None:
    (lab / "rollbook.toml").write_text(text)
    refused = rollbook("project")
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr


def test_the_environment_is_over_the_file_and_options_are_over_both(
    rollbook: Rollbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_LOG__URL", "sqlite:///other.db")
    open_log("sqlite:///other.db").close()
    done = rollbook("project", "--book", "b1")
    assert (done.returncode, "b1: 0 facts" in done.stderr) == (0, True)
    done = rollbook("project", "--book", "b2", "--log", "sqlite:///log.db")
    assert "b2: 12 facts" in done.stderr


def test_a_password_in_settings_or_url_is_never_printed(lab: Path, rollbook: Rollbook) -> None:
    (lab / "rollbook.toml").write_text(
        '[log]\nurl = "kafka://user:hunter2@127.0.0.1:1/p"\n'
        'options = { sasl_plain_password = "hunter2" }\n[book]\npath = 7\n'
    )
    for arguments in (["project"], ["project", "--log", "kafka://u:hunter2@127.0.0.1:1"]):
        refused = rollbook(*arguments)
        assert refused.returncode == 2
        assert "hunter2" not in refused.stdout + refused.stderr


def test_the_command_runs_as_a_process_and_stops_following_when_told(lab: Path) -> None:
    command = [sys.executable, "-m", "api.cli", "project", "--follow"]
    with subprocess.Popen(command, cwd=lab, stderr=subprocess.PIPE, text=True) as follower:
        deadline = time.monotonic() + 30
        while not (lab / "book.duckdb").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(6.0)  # the book is there before the first fact is in it
        follower.terminate()
        _, said = follower.communicate(timeout=30)
    assert follower.returncode == 0
    assert "book.duckdb: 12 facts" in said


def test_a_book_of_the_log_before_its_restore_is_refused(lab: Path, rollbook: Rollbook) -> None:
    """Its positions would skip what the restored log has there now."""
    rollbook("backup", "--to", "saved.db")
    rollbook("project")
    for file in lab.glob("log.db*"):
        file.unlink()
    rollbook("restore", "saved.db")
    refused = rollbook("project")
    assert (refused.returncode, "was projected from log" in refused.stderr) == (2, True)


def test_odd_values_have_a_form_in_json_and_csv(lab: Path, rollbook: Rollbook) -> None:
    rollbook("project")
    query = (
        "SELECT 'nan'::DOUBLE AS n, map([DATE '2026-01-02'], [1]) AS m, 'ab'::BLOB AS b,"
        " [TIMESTAMPTZ '2026-01-02 03:04:05Z'] AS l, 170141183460469231731687303715884105727 AS h"
    )
    shown = json.loads(rollbook("sql", query, "--format", "json").stdout)
    assert shown == [
        {
            "n": "nan",
            "m": {"2026-01-02": 1},
            "b": "6162",
            "l": ["2026-01-02T03:04:05+00:00"],
            "h": 170141183460469231731687303715884105727,
        }
    ]
    assert rollbook("sql", query, "--format", "csv").returncode == 0
    assert rollbook("sql", "SELECT ':smile: [red]x[/red]' AS t").stdout.split("\n")[1] == (
        ":smile: [red]x[/red]"
    )
