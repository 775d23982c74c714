"""rollbook demo: the whole loop on one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from api.demo.plan import FAULTS, Demo, DemoError, Plan, held, new_demo, usual_folder
from api.output import print_json, say
from api.signals import stop_on_signals
from deploy.supervisor import ChildFailed

ERRORS = (DemoError, ChildFailed)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(demo)


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="Folder of the demo; everything of it lies there (default: demo, or the next of"
            " demo-2, demo-3, ... that isn't there; with --resume, the last that is).",
        ),
    ] = None,
    log: Annotated[
        str, typer.Option(help="sqlite, kafka (a real Apache Kafka, started here) or a log's URL.")
    ] = "sqlite",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 18,
    sync: Annotated[
        bool, typer.Option("--sync", help="Sample for a step when the one before it is done.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, tasks and faults.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Attempts in flight.")] = 16,
    held_out: Annotated[
        int, typer.Option(min=1, max=40, help="Held-out tasks that are evaluated.")
    ] = 40,
    attempts: Annotated[int, typer.Option(min=1, help="At each held-out task.")] = 4,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="A sandbox server's fault, over the usual ones; repeat it, or `none`."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the demo in --dir, as it was asked for.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object at the end.")] = False,
) -> None:
    """Train a tiny policy to repair code, with every part real: SGLang, sandboxes, tests,
    Megatron. Ctrl-C stops all of it; --resume goes on."""
    folder = usual_folder(resume=resume) if folder is None else folder
    with held(folder.absolute()):
        if resume:
            found = Demo.at(folder)
            found.lives += 1
        else:
            faults = tuple(each for each in fault if each != "none") if fault else FAULTS
            plan = Plan(
                log=log,
                steps=steps,
                sync=sync,
                seed=seed,
                concurrency=concurrency,
                held_out=held_out,
                attempts=attempts,
                faults=faults,
            )
            found = new_demo(folder, plan)
        _run(found)
        _tell(found, as_json)


def _run(demo: Demo) -> None:
    from api.demo.children import Parts
    from api.demo.display import rows_of, shown
    from api.demo.progress import Figures, LogWatch
    from api.demo.run import DemoRun, Interrupted
    from deploy.engine.tiny_model import write_tiny_qwen3
    from ledger.open_log import open_log

    stop = stop_on_signals()
    write_tiny_qwen3(demo.policy, seed=demo.plan.seed)
    figures = Figures(demo.run_id, demo.plan.steps, datetime.now(UTC))
    parts = Parts(demo)

    def names() -> dict[str, str]:
        return {each.run_id: when for when, each in demo.evaluations.items()}

    with shown(lambda: rows_of(figures, names())) as show:

        @contextlib.contextmanager
        def watched() -> Generator[None]:
            with LogWatch(open_log(parts.log_url), figures):
                yield

        try:
            DemoRun(demo, parts, show, stop).run(watched)
        except Interrupted:
            say(f"stopped; to go on: rollbook demo --resume --dir {demo.folder}")
            raise typer.Exit(130) from None


def _tell(demo: Demo, as_json: bool) -> None:
    from api.demo.accounts import command_here, print_accounts
    from api.demo.summary import summary_of

    found = summary_of(demo)
    if as_json:
        print_json(found)
    else:
        print_accounts(found, command_here())
