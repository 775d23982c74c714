"""Commands that turn groups into batches: assemble."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from api.options import ConfigOption, LogOption, overrides, the_log
from api.output import say
from api.settings import DEFAULT_FILE, load
from api.signals import stop_on_signals
from consumers.assembler import Assembler
from consumers.assembling.settings import AssemblerSettings, BadSettings
from ledger.judgement import RulesError

ERRORS = (BadSettings, RulesError)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(assemble)


def assemble(
    run: Annotated[uuid.UUID, typer.Option("--run", help="The run whose groups are decided.")],
    log: LogOption = None,
    config: ConfigOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting over those of \\[assembler]: mode=sync. Repeatable."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted.")] = False,
) -> None:
    """Decide a run's groups and assemble its batches. A newer assembler of the run ends it."""
    chosen = assembler_settings(config, settings or [])
    stop = stop_on_signals()
    with the_log(log, config) as source:
        assembler = Assembler(source, str(run), chosen)
        assembler.run(stop, follow=follow, ready=lambda: say(f"{run}: assembling"))
    done = assembler.done
    say(
        f"{run}: {done.decided} groups decided, {done.dropped} of them dropped,"
        f" {done.batches} batches, {done.refills} refills requested"
    )


def assembler_settings(config: Path | None, given: list[str]) -> AssemblerSettings:
    """Settings of [assembler], over them `name=value` from the command line. Raises BadSettings."""
    table = load(config).assembler
    place = f"{config or DEFAULT_FILE}, [assembler]"
    AssemblerSettings.of(table, place)
    over = overrides(given, BadSettings)
    return AssemblerSettings.of(table | over, "--set" if over else place)
