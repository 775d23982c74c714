"""Commands that write a run in another system's format: export atif."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Annotated

import typer

from api.log_runs import find_in_log
from api.options import ConfigOption, LogOption, the_log
from api.output import say
from producers.importers import BadImport

app = typer.Typer(help="Write a run as another system's files.", no_args_is_help=True)


@app.callback()
def export() -> None:
    """Write a run as another system's files."""


@app.command("atif")
def export_atif(
    run: Annotated[
        str, typer.Option("--run", help="The run: its id, the beginning of it, or its name.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for <trajectory id>.json files.")],
    log: LogOption = None,
    config: ConfigOption = None,
    trajectory: Annotated[
        list[uuid.UUID] | None,
        typer.Option("--trajectory", help="Only this attempt. Repeatable."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With token ids and logprobs, where the log has them.")
    ] = False,
) -> None:
    """Write each attempt of a run as an ATIF trajectory. The ledger keeps no messages, so the steps
    carry metrics, tool calls and their results."""
    from api.atif_export import VERSION, RunFacts, atif_of
    from producers.importers.held import facts_of_run, tokens_of_run

    with the_log(log, config) as source:
        run_id = find_in_log(source, run)
        facts = RunFacts.of(facts_of_run(source, run_id))
        payloads = tokens_of_run(source, run_id) if tokens else None
    chosen = sorted(facts.attempts) if not trajectory else [str(each) for each in trajectory]
    if unknown := [each for each in chosen if each not in facts.attempts]:
        raise BadImport(f"--trajectory must be an attempt of run {run_id}, got {unknown[0]}")
    if not chosen:
        raise BadImport(f"--run must be a run with attempts in this log, got {run_id}")
    out.mkdir(parents=True, exist_ok=True)
    for each in chosen:
        atif = atif_of(facts, each, payloads)
        (out / f"{each}.json").write_text(json.dumps(atif, ensure_ascii=False, indent=1) + "\n")
    say(f"{out}: {len(chosen)} trajectories in {VERSION}")
