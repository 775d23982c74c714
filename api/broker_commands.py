"""Commands for the real Apache Kafka on this machine: broker start, stop, status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.options import FormatOption
from api.output import Format, print_rows, say
from deploy.kafka.broker import Broker
from deploy.kafka.jars import BrokerError

app = typer.Typer(help="Apache Kafka on this machine, for development.", no_args_is_help=True)

DataOption = Annotated[Path, typer.Option("--data", help="Directory of the broker's data.")]
DEFAULT_DATA = Path(".kafka")

__all__ = ["BrokerError", "app"]


@app.command()
def start(
    data: DataOption = DEFAULT_DATA,
    port: Annotated[int | None, typer.Option(help="Port (default: a free one, kept).")] = None,
) -> None:
    """Start a broker on loopback; prints host:port. Its jars are fetched once, by Maven."""
    typer.echo(Broker(data, port).start())


@app.command()
def stop(data: DataOption = DEFAULT_DATA) -> None:
    """Stop the broker; its data stays."""
    Broker(data).stop()
    say(f"{data}: stopped")


@app.command()
def status(data: DataOption = DEFAULT_DATA, output: FormatOption = Format.TABLE) -> None:
    """Whether the broker runs, and where; exit status 1 if it doesn't."""
    state = Broker(data).status()
    row = (
        "running" if state.running else "stopped",
        state.bootstrap,
        state.pid,
        state.cluster_id,
        str(state.data_dir),
    )
    print_rows(("state", "bootstrap", "pid", "cluster_id", "data"), [row], output)
    raise typer.Exit(0 if state.running else 1)
