"""The README's example runs as it stands there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from api.cli import main

GROUPS = ("engine", "sandboxes", "broker", "export")
"""Commands that have commands."""
README = Path(__file__).parents[1].joinpath("README.md").read_text()


def test_the_readme_s_example_records_what_its_commands_then_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLBOOK_SPOOL_DIR", str(tmp_path / "spool"))
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    commands = commands_in(README.partition("## Ask")[2].partition("The accounts")[0])
    assert [command[1] for command in commands] == ["project", "sql", "audit", "replay"]
    for command in commands:
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, command
    printed = capsys.readouterr()
    assert "fix-1" in printed.out
    assert "book.duckdb: 8 facts" in printed.err
    assert "nothing is wrong" in printed.err


def commands_in(text: str) -> list[list[str]]:
    """Every `rollbook` command line of a text, also one in `$(...)`."""
    lines = re.findall(r"^(?:\w+=\$\()?(rollbook [^)\n]*)", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_every_command_and_option_of_the_readme_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    seen = commands_in(README)
    assert len(seen) >= 10
    for command in seen:
        names = command[1:3] if command[1] in GROUPS else command[1:2]
        monkeypatch.setattr(sys, "argv", ["rollbook", *names, "--help"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, command
        told = capsys.readouterr().out
        for option in command:
            assert not option.startswith("--") or option in told, command
