"""All that training goes on from: weights, optimizer, random state and place, in one checkpoint.

    weights-tensor-T-pipeline-P.pt               parameters of these ranks
    optimizer-tensor-T-pipeline-P[-data-D].pt    moments and float32 copies; of each data-parallel
                                                 rank where they share them
    random-R.pt                                  random state of each rank
    manifest.json                                progress, facts not in the log yet, the shape

What several ranks have alike is written once. Each file is one rank's part as it is in memory:
resuming is bit-identical, and needs the same shape. Megatron's own distributed checkpoints can
change shape, but start processes for every save, which takes seconds; and its shared optimizer
can't load what it saves where torch's Adam stands in for a fused one.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel

from ledger.log import Positions, positions_of
from trainer import checkpoint_files, groups
from trainer.checkpoint_files import CheckpointError, Found
from trainer.model import Learner, bare
from trainer.outbox import HeldFact

__all__ = ["CheckpointError", "Progress", "Restored", "newest", "restore", "save"]

_HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training has come."""

    step: int = 0
    """The last step that was done; 0: none."""
    version: int = 0
    """The policy version of the weights."""
    batch_id: str | None = None
    """What that step trained on."""
    positions: Positions = field(default_factory=Positions)
    """Where to read batches on; empty: at the first one."""

    @property
    def told_positions(self) -> dict[str, int]:
        """Positions as facts tell them, by `topic/partition`."""
        return {str(place): offset for place, offset in sorted(self.positions.items())}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint whose files are on disk, all but the manifest."""

    path: Path
    """The folder that it will have."""
    size_bytes: int
    """Of these files."""
    save_s: float
    """Seconds until they were safe."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint says beside the weights, the same on every rank."""

    path: Path
    """Its folder."""
    saved_at: datetime
    """UTC."""
    progress: Progress
    """Where to go on."""
    held: list[HeldFact]
    """Facts that may not be in the log."""


def save(
    folder: Path,
    learner: Learner,
    progress: Progress,
    run_id: str,
    facts: Callable[[Saved], Sequence[HeldFact]],
) -> None:
    """Writes a checkpoint; every rank calls it, and all return when it is safe on disk.

    `facts` is asked on rank 0, last of all, for those that may not be in the log; so the fact of
    this very checkpoint is in it. Raises CheckpointError."""
    began = time.monotonic()
    if dist.get_rank() == 0:
        checkpoint_files.start(folder, progress.step)
    dist.barrier()
    partial = checkpoint_files.partial(folder, progress.step)
    files = _write_parts(partial, learner)
    found: list[dict[str, Any] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, files)
    told = {name: about for part in found if part for name, about in part.items()}
    if dist.get_rank() == 0:
        size = sum(cast(int, about["bytes"]) for about in told.values())
        path = folder / checkpoint_files.name_of(progress.step)
        manifest = {
            "run_id": run_id,
            "saved_at": datetime.now(UTC).isoformat(),
            "step": progress.step,
            "policy_version": progress.version,
            "batch_id": progress.batch_id,
            "batch_positions": progress.told_positions,
            "facts": list(facts(Saved(path, size, time.monotonic() - began))),
            "shape": shape_of(learner),
            "files": told,
        }
        checkpoint_files.publish(folder, progress.step, manifest)
    dist.barrier()


def newest(folder: Path) -> Found | None:
    """The newest whole checkpoint, the same for every rank. Raises as `checkpoint_files.newest`."""
    return groups.agreed(checkpoint_files.newest(folder) if dist.get_rank() == 0 else None)


def restore(found: Found, learner: Learner, run_id: str) -> Restored:
    """Sets this rank's weights, optimizer and random state. Raises CheckpointError, before
    anything is set, for a checkpoint of another run or shape."""
    manifest = found.manifest
    if manifest["run_id"] != run_id:
        raise CheckpointError(f"{found.folder} must be of run {run_id}, is of {manifest['run_id']}")
    _check_shape(found, shape_of(learner))
    _read_parts(found.folder, learner)
    progress = Progress(
        step=manifest["step"],
        version=manifest["policy_version"],
        batch_id=manifest["batch_id"],
        positions=positions_of(manifest["batch_positions"]),
    )
    saved_at = datetime.fromisoformat(manifest["saved_at"])
    return Restored(found.folder, saved_at, progress, manifest["facts"])


def shape_of(learner: Learner) -> dict[str, Any]:
    """What a checkpoint's files depend on, as JSON has it."""
    settings = learner.settings
    shape = {
        "model": dataclasses.asdict(learner.config),
        "tensor": settings.tensor,
        "pipeline": settings.pipeline,
        "ranks": dist.get_world_size(),
        "distributed_optimizer": settings.distributed_optimizer,
        "precision": settings.precision,
    }
    return json.loads(json.dumps(shape))


def _check_shape(found: Found, wanted: Mapping[str, Any]) -> None:
    has = _flat(found.manifest["shape"])
    differences = [
        f"{name} {has.get(name)} instead of {value}"
        for name, value in _flat(wanted).items()
        if has.get(name) != value
    ]
    if differences:
        raise CheckpointError(f"{found.folder} is of another shape: {', '.join(differences)}")


def _flat(shape: Mapping[str, Any]) -> dict[str, Any]:
    model = {f"model.{name}": value for name, value in shape["model"].items()}
    return {name: value for name, value in shape.items() if name != "model"} | model


def _write_parts(folder: Path, learner: Learner) -> dict[str, Any]:
    """This rank's files, sealed."""
    weights, optimizer, random = _paths(folder, learner)
    parts: dict[Path, Any] = {random: _random_state()}
    if groups.data().rank() == 0:
        parts[weights] = _tensors(learner)
    if groups.data().rank() == 0 or learner.settings.distributed_optimizer:
        parts[optimizer] = [_optimizer_state(each) for each in _adams(learner)]
    for path, part in parts.items():
        torch.save(part, path)
    return dict(checkpoint_files.seal(path) for path in parts)


@torch.no_grad()
def _read_parts(folder: Path, learner: Learner) -> None:
    weights, optimizer, random = _paths(folder, learner)
    state = torch.load(weights, map_location="cpu", weights_only=True)
    for name, tensor in _tensors(learner).items():
        tensor.copy_(state[name])
    states = torch.load(optimizer, map_location="cpu", weights_only=True)
    for adam, state in zip(_adams(learner), states, strict=True):
        _set_optimizer_state(adam, state)
    _set_random_state(torch.load(random, weights_only=True))


def _paths(folder: Path, learner: Learner) -> tuple[Path, Path, Path]:
    """Of weights, optimizer and random state."""
    part = f"tensor-{groups.tensor().rank()}-pipeline-{groups.pipeline().rank()}"
    share = f"-data-{groups.data().rank()}" if learner.settings.distributed_optimizer else ""
    return (
        folder / f"weights-{part}.pt",
        folder / f"optimizer-{part}{share}.pt",
        folder / f"random-{dist.get_rank()}.pt",
    )


def _adams(learner: Learner) -> list[Any]:
    """The torch optimizers inside Megatron's."""
    outer = cast(Any, learner.optimizer)
    inner = [each.optimizer for each in getattr(outer, "chained_optimizers", [outer])]
    return [each for each in inner if each is not None]  # a rank without a share has none


def _optimizer_state(adam: Any) -> dict[str, Any]:
    return {"adam": adam.state_dict(), "parameters": _optimized(adam)}


def _set_optimizer_state(adam: Any, state: Mapping[str, Any]) -> None:
    for parameter, saved in zip(_optimized(adam), state["parameters"], strict=True):
        parameter.copy_(saved)
    # Hyperparameters are settings of this start: a changed learning rate has to count.
    settings = [{name: group[name] for name in _HYPERPARAMETERS} for group in adam.param_groups]
    adam.load_state_dict(state["adam"])
    for group, given in zip(adam.param_groups, settings, strict=True):
        group.update(given)


def _optimized(adam: Any) -> list[torch.Tensor]:
    """What it steps on, the very tensors: with bfloat16 these are float32 copies, and with a
    shared optimizer this rank's share of them."""
    return [parameter for group in adam.param_groups for parameter in group["params"]]


def _tensors(learner: Learner) -> dict[str, torch.Tensor]:
    """Parameters and buffers of this rank, the very ones."""
    module = bare(learner.model)
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "megatron": _tracker().get_states(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    _tracker().set_states(state["megatron"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _tracker() -> Any:
    """Megatron's random states beside torch's."""
    return tensor_parallel.get_cuda_rng_tracker()
