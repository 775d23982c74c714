"""rollbook doctor: what this machine lacks, and how to get it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from api.options import ConfigOption, FormatOption
from api.output import Format, print_rows, say
from api.settings import load


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(doctor)


def doctor(
    folder: Annotated[Path, typer.Option("--dir", help="Where runs are to be kept.")] = Path(),
    log: Annotated[str | None, typer.Option("--log", help="URL of a log to reach as well.")] = None,
    config: ConfigOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Look at this machine for everything that Rollbook can use. Exit status 1: something is
    missing. Nothing is changed."""
    from deploy.checks import machine_findings, tried
    from deploy.engine.install import installed

    findings = list(machine_findings(folder.absolute(), installed()))
    findings.append(
        tried("sandboxes", "sandboxes on this machine", _sandboxes, "install bubblewrap")
    )
    if log is not None:
        options = load(config).log.client_options
        get_it = "start it, or name another"
        findings.append(tried("log", "everything", lambda: _log(log, options), get_it))
    columns = ("part", "needed_for", "found", "get_it")
    rows = [(each.part, each.needed_for, each.found, each.get_it) for each in findings]
    print_rows(columns, rows, output)
    missing = sum(each.missing for each in findings)
    say(f"{missing} of {len(findings)} parts are missing" if missing else "nothing is missing")
    raise typer.Exit(1 if missing else 0)


def _sandboxes() -> str:
    """Whether a sandbox would be a boundary here: one is started, and ended."""
    from producers.local_e2b.isolation import find_host
    from producers.local_e2b.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        host = find_host(Settings(Path(folder), isolation="bwrap"))
    return f"{host.bwrap}, a sandbox starts"


def _log(url: str, options: dict[str, str]) -> str:
    from ledger.open_log import open_log

    with open_log(url, options) as opened:
        return f"log {opened.identity}"
