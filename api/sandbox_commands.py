"""Commands for the E2B-compatible server on this machine: sandboxes start, stop, status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from api.options import FormatOption
from api.output import Format, print_rows, say
from producers.local_e2b.launch import KEY_VARIABLE, LocalE2B
from producers.local_e2b.settings import LocalE2BError

app = typer.Typer(
    help="Sandboxes on this machine, for the e2b SDK; for development.", no_args_is_help=True
)

DataOption = Annotated[Path, typer.Option("--data", help="Directory of the server.")]
DEFAULT_DATA = Path(".sandboxes")

__all__ = ["LocalE2BError", "app"]


@app.command()
def start(
    data: DataOption = DEFAULT_DATA,
    port: Annotated[int, typer.Option(help="Port (0: a free one).")] = 0,
    slots: Annotated[int, typer.Option(help="Sandboxes at a time.")] = 16,
    queue_timeout: Annotated[float, typer.Option(help="Longest wait for a slot, s.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of faults and start latencies.")] = 0,
    fault: Annotated[
        list[str] | None, typer.Option(help="KIND:KEY=VALUE,... or a .toml file; repeat it.")
    ] = None,
    start_latency: Annotated[
        str, typer.Option(help="fixed:SECONDS or lognormal:MEDIAN,SIGMA.")
    ] = "fixed:0",
    templates: Annotated[Path | None, typer.Option(help="Folder of templates.")] = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run even if sandboxes are no security boundary.")
    ] = False,
) -> None:
    """Start the server on loopback; prints its URL for E2B_API_URL and E2B_SANDBOX_URL. The key
    that clients must send is that of $ROLLBOOK_SANDBOXES_KEY; without one, any is taken."""
    server = LocalE2B(
        data,
        port=port,
        slots=slots,
        queue_timeout_s=queue_timeout,
        seed=seed,
        faults=tuple(fault or ()),
        start_latency=start_latency,
        templates=templates,
        unsafe=unsafe,
        api_key=os.environ.get(KEY_VARIABLE) or None,
        detached=True,
    )
    typer.echo(server.start())


@app.command()
def stop(data: DataOption = DEFAULT_DATA) -> None:
    """Stop the server and end every sandbox."""
    LocalE2B(data).stop()
    say(f"{data}: stopped")


@app.command()
def status(data: DataOption = DEFAULT_DATA, output: FormatOption = Format.TABLE) -> None:
    """Whether the server runs, and where; exit status 1 if it doesn't."""
    state = LocalE2B(data).state()
    row = ("running" if state else "stopped", state.get("url"), state.get("pid"), str(data))
    print_rows(("state", "url", "pid", "data"), [row], output)
    raise typer.Exit(0 if state else 1)
