"""The doctor: it names what is missing, and how to get it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from deploy.checks import Finding, machine_findings, tried
from deploy.engine.install import installed


def found(tmp_path: Path, versions: dict[str, str] | None = None) -> dict[str, Finding]:
    given = installed() if versions is None else versions
    return {each.part: each for each in machine_findings(tmp_path, given)}


def test_a_machine_that_the_set_up_was_run_on_lacks_nothing_of_it(tmp_path: Path) -> None:
    findings = found(tmp_path)
    for part in ("Python", "Java", "Kafka's jars", "SGLang", "Megatron-core"):
        assert not findings[part].missing, findings[part]


def test_copies_behind_a_package_on_the_path_do_not_hide_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packaging-0.1.dist-info").mkdir()
    (tmp_path / "packaging-0.1.dist-info" / "METADATA").write_text(
        "Name: packaging\nVersion: 0.1\n"
    )
    before = installed()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert installed() == before
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert installed() == before | {"packaging": "0.1"}


def test_what_is_missing_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    findings = found(tmp_path, {"torch": "2.1.0"})
    assert findings["Java"].get_it == "no java found (PATH): install openjdk-17-jre-headless"
    assert findings["Kafka's jars"].get_it == "install maven, then `rollbook broker start`"
    assert findings["Megatron-core"].get_it == "`pip install 'rollbook[trainer]'`"
    assert findings["Chromium"].get_it == "install chromium"
    assert "SGLang" in findings
    assert findings["SGLang"].missing


def test_what_can_not_be_tried_is_a_finding_with_the_reason() -> None:
    def attempt() -> str:
        raise OSError("no user namespaces")

    finding = tried("sandboxes", "tests", attempt, "install bubblewrap")
    assert finding.get_it == "install bubblewrap (no user namespaces)"
    assert finding.found == ""


def test_the_command_prints_rows_and_says_by_its_status_whether_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = f"sqlite:///{tmp_path / 'absent' / 'log.db'}"
    done = CliRunner().invoke(app, ["doctor", "--format", "json", "--log", log])
    rows = {row["part"]: row for row in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert str(tmp_path) in rows["log"]["get_it"]
    assert rows["sandboxes"]["found"] == f"{shutil.which('bwrap')}, a sandbox starts"
