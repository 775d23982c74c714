"""Commands for a real SGLang server on this machine: engine install, tiny, start, stop, status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.options import FormatOption
from api.output import Format, print_rows, say
from deploy.engine.command import EngineSettings
from deploy.engine.install import EngineServerError
from deploy.engine.install import install as install_packages
from deploy.engine.server import EngineServer

app = typer.Typer(
    help="An SGLang server on this machine, with or without a GPU.", no_args_is_help=True
)

DataOption = Annotated[Path, typer.Option("--data", help="Directory of the server's state.")]
DEFAULT_DATA = Path(".engine")

__all__ = ["EngineServerError", "app"]


@app.command()
def install(
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--no-gpu", help="For a GPU (default: if there is one).")
    ] = None,
) -> None:
    """Install SGLang into this environment; does nothing where all of it is there."""
    steps = install_packages(gpu, say)
    say("installed" if steps else "nothing to install: all of it is there")


@app.command()
def tiny(
    folder: Annotated[Path, typer.Argument(help="Where the checkpoint goes.")],
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
) -> None:
    """Write a tiny Qwen3 with random weights: the policy that micro_repair begins with."""
    from deploy.engine.tiny_model import write_tiny_qwen3

    say(f"{write_tiny_qwen3(folder, seed=seed)}: written")


@app.command()
def start(
    model: Annotated[Path, typer.Argument(help="Folder of a Hugging Face checkpoint.")],
    data: DataOption = DEFAULT_DATA,
    port: Annotated[int | None, typer.Option(help="Port (default: a free one, kept).")] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and completion (default: model's).")
    ] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens that the KV cache holds.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Most requests at once.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the weights, as bfloat16.")] = None,
    model_name: Annotated[str | None, typer.Option(help="Name (default: the folder).")] = None,
    policy_version: Annotated[
        int, typer.Option(help="The version of these weights; 0: the initial ones.")
    ] = 0,
    timeout: Annotated[
        float | None, typer.Option(help="Most seconds until it is ready (default: 180, GPU: 1800).")
    ] = None,
) -> None:
    """Start a server on loopback and wait until it is ready; prints its URL."""
    try:
        settings = EngineSettings(
            context_length=context_length,
            kv_tokens=kv_tokens,
            max_running=max_running,
            dtype=dtype,
            model_name=model_name,
            policy_version=policy_version,
        )
    except ValueError as error:
        raise EngineServerError(str(error)) from None
    server = EngineServer(data, model, settings, port, detached=True)
    typer.echo(server.start(timeout))


@app.command()
def stop(
    data: DataOption = DEFAULT_DATA,
    timeout: Annotated[
        float, typer.Option(help="Seconds for what it still has to do; then it is killed.")
    ] = 30.0,
) -> None:
    """Stop the server and all its processes; SGLang takes some 6 s to end."""
    EngineServer(data).stop(timeout)
    say(f"{data}: stopped")


@app.command()
def status(data: DataOption = DEFAULT_DATA, output: FormatOption = Format.TABLE) -> None:
    """Whether the server runs, and where; exit status 1 if it doesn't."""
    state = EngineServer(data).status()
    word = "ready" if state.ready else "not ready" if state.running else "stopped"
    row = (word, state.url, state.pid, str(state.model_path or ""), str(state.log_file))
    print_rows(("state", "url", "pid", "model", "log"), [row], output)
    raise typer.Exit(0 if state.running else 1)
