"""A trainer from its start to its end, on every rank: `train(campaign, stopped)`.

A start is always the same: the newest whole checkpoint, or the model's own weights, saved as
checkpoint 0 before anything else is done. So a folder without a checkpoint means a run that never
trained, and a log that says otherwise means that it is the wrong folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from ledger.log import EventLog
from ledger.open_log import open_log
from ledger.recorder import Recorder
from trainer import checkpoint, checkpoint_files, groups
from trainer.architecture import ModelConfig, read_config
from trainer.checkpoint import CheckpointError, Progress, Restored
from trainer.desk import Desk
from trainer.history import History, read_history
from trainer.loop import Publisher, Trainer
from trainer.model import Learner, build_learner, build_model
from trainer.outbox import Outbox
from trainer.ranks import started, world_size
from trainer.take import BatchLoader, Limits
from trainer.training_settings import BadTrainingSettings, TrainingSettings

PRODUCER = "trainer"
MakePublisher = Callable[[Recorder | None], AbstractContextManager[Publisher]]
"""Called on every rank; the recorder is rank 0's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to train, and where everything lies."""

    run_id: str
    """The run."""
    log: str
    """URL of the log."""
    model: Path
    """Hugging Face checkpoint to start from; without weights in it they are random."""
    checkpoints: Path
    """Folder of the run's checkpoints, which all ranks see."""
    last_step: int
    """Training ends when this step is done."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    """All settings."""
    log_options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the log's client."""
    spool: Path | None = None
    """Where facts wait while the log is away; null: the recorder's usual place."""


def train(
    campaign: Campaign, stopped: Callable[[], bool], make_publisher: MakePublisher | None = None
) -> Progress:
    """Trains until the last step is done, or until `stopped` says so on rank 0. Returns how far
    it has come.

    Raises CheckpointError, WrongCheckpoint, UnsupportedModel, LogError, BatchDamaged, and
    BadTrainingSettings for those that don't fit the model, the ranks or the machine."""
    began = time.monotonic()
    config = read_config(campaign.model)
    settings = campaign.settings
    try:
        settings.megatron.check(config, world_size(), gpu=torch.cuda.is_available())
    except ValueError as error:
        raise BadTrainingSettings(str(error)) from None
    with (
        started(settings.megatron, config, seed=settings.loop.seed) as device,
        ExitStack() as open_,
    ):
        log: EventLog | None = None
        history = History()
        if dist.get_rank() == 0:
            open_.enter_context(checkpoint_files.locked(campaign.checkpoints))
            log = open_.enter_context(open_log(campaign.log, campaign.log_options))
            history = read_history(log, campaign.run_id)
        weights = _weights(campaign.model)
        learner = build_learner(
            config, settings.megatron, settings.optimizer, device, weights=weights
        )
        reference = None
        if settings.loss.kl_coef:
            reference = build_model(config, settings.megatron, device, weights=weights)
        restored = _restore(campaign, learner, history)
        progress = restored.progress if restored is not None else Progress()
        desk, recorder = None, None
        if log is not None:
            recorder = open_.enter_context(_recorder(campaign))
            loader = open_.enter_context(
                BatchLoader(log, campaign.run_id, progress.positions, _limits(campaign, config))
            )
            outbox = Outbox(recorder, restored.held if restored is not None else ())
            desk = Desk(loader, outbox, history)
        publisher = None
        if make_publisher is not None:
            publisher = open_.enter_context(make_publisher(recorder))
        trainer = Trainer(
            learner,
            settings,
            campaign.checkpoints,
            campaign.run_id,
            progress=progress,
            next_version=groups.agreed(max({progress.version, *history.versions}) + 1),
            desk=desk,
            publisher=publisher,
            reference=reference,
        )
        if restored is None:
            trainer.save()
        else:
            trainer.resumed()
        if desk is not None:
            lost = history.lost_behind(progress.version) if restored is not None else []
            desk.open(progress, restored, lost, time.monotonic() - began)
        trainer.run(campaign.last_step, stopped)
        return trainer.progress


def _restore(campaign: Campaign, learner: Learner, history: History) -> Restored | None:
    """The newest checkpoint, set; null for a run that never trained."""
    found = checkpoint.newest(campaign.checkpoints)
    if found is not None:
        return checkpoint.restore(found, learner, campaign.run_id)
    if history.last_step is not None:
        raise CheckpointError(
            f"run {campaign.run_id} has trained up to step {history.last_step}, but"
            f" {campaign.checkpoints} has no checkpoint of it"
        )
    return None


def _weights(model: Path) -> Path | None:
    return model if any(model.glob("*.safetensors")) else None


def _recorder(campaign: Campaign) -> Recorder:
    return Recorder(
        campaign.log,
        producer=PRODUCER,
        run_id=campaign.run_id,
        options=dict(campaign.log_options),
        spool_dir=campaign.spool,
    )


def _limits(campaign: Campaign, config: ModelConfig) -> Limits:
    loop = campaign.settings.loop
    budget = loop.microbatch_tokens or config.context
    return Limits(config.vocab, min(budget, config.context), loop.tokenizer)
