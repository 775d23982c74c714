"""Commands that make batches of stored traces: assemble-sft."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from api.options import ConfigOption, LogOption, the_log, with_archive
from api.output import say
from consumers.assembling.settings import BadSettings
from consumers.sft_assembler import assemble_sft as assemble_traces
from consumers.sft_assembler import sft_run
from consumers.sft_batches import SftSettings

ERRORS = (BadSettings,)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command("assemble-sft")(assemble_sft)


def assemble_sft(
    from_runs: Annotated[
        list[uuid.UUID], typer.Option("--from", help="A run whose traces are taken. Repeatable.")
    ],
    reward_min: Annotated[
        float, typer.Option("--reward-min", help="Traces with less reward are left out.")
    ] = 1.0,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="File of task ids, one a line (default: all).")
    ] = None,
    per_task: Annotated[
        int | None, typer.Option("--per-task", help="Most traces of one task (default: all).")
    ] = None,
    per_batch: Annotated[int, typer.Option("--per-batch", help="Traces of one batch.")] = 32,
    seed: Annotated[int, typer.Option("--seed", help="Draws the order of the traces.")] = 0,
    run: Annotated[
        uuid.UUID | None,
        typer.Option("--run", help="The SFT run (default: derived from all that is given here)."),
    ] = None,
    parent: Annotated[
        uuid.UUID | None,
        typer.Option("--parent", help="The run whose weights it starts from (default: --from)."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name, for people.")] = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Where tokens lie that left the log.")
    ] = None,
    log: LogOption = None,
    config: ConfigOption = None,
) -> None:
    """Make training batches of stored traces, for a run of kind sft. A second run of the same
    command writes nothing new; one that was killed goes on where it was."""
    settings = SftSettings(
        from_runs=tuple(sorted(map(str, from_runs))),
        reward_min=reward_min,
        tasks=None if tasks is None else _lines(tasks),
        traces_per_task=per_task,
        traces_per_batch=per_batch,
        seed=seed,
    )
    with with_archive(the_log(log, config), archive) as source:
        of_run = sft_run(source, settings, _text(run), _text(parent), name)
        done = assemble_traces(source, of_run, settings)
    say(
        f"{done.run_id}: {done.batches} batches of {done.traces} traces of {done.tasks} tasks,"
        f" {done.written} batches new"
    )
    if done.lost:
        say(f"{done.run_id}: {done.lost} traces left out: their payloads aren't there or are bad")


def _lines(file: Path) -> tuple[str, ...]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"task ids can't be read: {error} (--tasks)") from None
    return tuple(sorted({line.strip() for line in lines if line.strip()}))


def _text(run: uuid.UUID | None) -> str | None:
    return None if run is None else str(run)
