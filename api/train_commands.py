"""rollbook train: a policy, on the batches of a run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.options import ConfigOption, LogOption, SpoolOption, overrides, the_log
from api.output import say
from api.settings import DEFAULT_FILE, load
from api.signals import stop_on_signals
from ledger.batches import BatchDamaged
from ledger.facts.lists import PauseMode, WeightMethod
from trainer.architecture import UnsupportedModel, read_config
from trainer.checkpoint_files import CheckpointError
from trainer.publish_settings import PublishSettings
from trainer.training_settings import BadTrainingSettings, TrainingSettings, settings_of

if TYPE_CHECKING:
    from trainer.train import MakePublisher


class TrainError(ValueError):
    """What was asked for can't be trained; the message says value, rule and place."""


ERRORS = (BadTrainingSettings, BatchDamaged, CheckpointError, TrainError, UnsupportedModel)

EnginesOption = Annotated[
    list[str] | None,
    typer.Option("--engine", help="URL of an SGLang server that gets each version. Repeatable."),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(train)


def train(
    run: Annotated[uuid.UUID, typer.Option("--run", help="The run whose batches are trained on.")],
    model: Annotated[
        Path, typer.Option("--model", help="Hugging Face checkpoint that the run starts from.")
    ],
    checkpoints: Annotated[
        Path, typer.Option("--checkpoints", help="Folder of the run's checkpoints.")
    ],
    steps: Annotated[int, typer.Option("--steps", min=0, help="The last step of the run.")],
    log: LogOption = None,
    engines: EnginesOption = None,
    versions: Annotated[
        Path | None,
        typer.Option(
            "--versions",
            help="Folder for exports (default: beside the checkpoints if there are engines, else"
            " no exports).",
        ),
    ] = None,
    method: Annotated[
        WeightMethod, typer.Option("--method", help="How weights travel to engines.")
    ] = WeightMethod.DISK,
    pause: Annotated[
        PauseMode, typer.Option("--pause", help="What becomes of requests that run meanwhile.")
    ] = PauseMode.RETRACT,
    spool: SpoolOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting over those of \\[trainer]: tensor=2. Repeatable."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Train on a run's batches, from its newest checkpoint on. As one process, or as each of many:
    `torchrun --nproc-per-node 8 --no-python -- rollbook train ...`. SIGTERM and Ctrl-C finish the
    step, save it and end."""
    chosen = training_settings(config, settings or [])
    _check(model)
    file = load(config).log
    the_log(log, config).close()  # a log that isn't there is a typo, not a place to wait for
    stop = stop_on_signals()
    from trainer.hf_files import WrongCheckpoint
    from trainer.train import Campaign
    from trainer.train import train as run_trainer

    campaign = Campaign(
        run_id=str(run),
        log=file.url if log is None else log,
        log_options=file.client_options,
        model=model,
        checkpoints=checkpoints,
        last_step=steps,
        settings=chosen,
        spool=spool,
    )
    if versions is None and engines:
        versions = checkpoints.with_name(f"{checkpoints.name}-versions")
    publisher = _publisher(engines or [], versions, model, pause, method)
    try:
        progress = run_trainer(campaign, stop.is_set, publisher)
    except WrongCheckpoint as error:
        raise TrainError(str(error)) from error
    if os.environ.get("RANK", "0") == "0":
        say(f"{run}: step {progress.step} done, policy version {progress.version}")


def training_settings(config: Path | None, given: Sequence[str]) -> TrainingSettings:
    """Settings of [trainer], over them `name=value` from the command line. Raises
    BadTrainingSettings."""
    table = load(config).trainer
    place = f"{config or DEFAULT_FILE}, [trainer]"
    settings_of(table, place)
    over = overrides(given, BadTrainingSettings)
    return settings_of(table | over, "--set" if over else place)


def _check(model: Path) -> None:
    """Raises TrainError, UnsupportedModel for what is no model, before torch is loaded."""
    try:
        read_config(model)
    except OSError as error:
        raise TrainError(f"--model must be a Hugging Face checkpoint: {error}") from None


def _publisher(
    engines: Sequence[str],
    folder: Path | None,
    model: Path,
    pause: PauseMode,
    method: WeightMethod,
) -> MakePublisher | None:
    """Of exports in `folder`, and of engines that get them. A run that is the parent of others,
    such as SFT, has exports and no engines."""
    if folder is None:
        return None
    from trainer.publish import Publisher

    try:
        settings = PublishSettings(
            engines=tuple(engines), method=method, pause=pause, companions=model
        )
    except ValueError as error:
        raise TrainError(f"{error} (--engine, --method, --pause)") from None
    return lambda recorder: Publisher(settings, folder, recorder)
