"""Commands that make facts up: simulate."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from api.options import ConfigOption, FormatOption, LogOption
from api.output import Format, print_rows, say
from api.settings import load
from ledger.log import LogError
from ledger.open_log import open_log
from producers.simulator.plan import BadPlan
from producers.simulator.published import SCENARIOS, scenario
from producers.simulator.run import START, SimulatedRun
from producers.simulator.write import write

ERRORS = (LogError, BadPlan)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(simulate)


def simulate(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(SCENARIOS)} (all of them).")],
    seed: Annotated[int, typer.Option("--seed", help="Another seed is another run.")] = 1,
    scale: Annotated[
        float, typer.Option("--scale", help="Attempts side by side, times this.")
    ] = 1.0,
    start: Annotated[
        datetime | None, typer.Option("--start", help="When it begins, UTC.", show_default=False)
    ] = None,
    log: LogOption = None,
    config: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Write the raw facts of simulated runs. The same name, seed, scale and start write nothing
    twice. `rollbook judge` and `rollbook assemble` say what came of the attempts."""
    settings = load(config).log
    began = START if start is None else start.replace(tzinfo=START.tzinfo)
    runs = [SimulatedRun(plan.scaled(scale), seed, began) for plan in scenario(name)]
    rows: list[tuple[object, ...]] = []
    with open_log(settings.url if log is None else log, settings.client_options) as target:
        for run in runs:
            clock = time.monotonic()
            written = write(target, run)
            seconds = time.monotonic() - clock
            rows.append((run.plan.name, run.plan.kind, run.run_id, written.facts, written.new))
            say(f"{run.plan.name}: {written.facts / seconds:,.0f} facts/s")
    print_rows(["name", "kind", "run_id", "facts", "new"], rows, form)
