"""All settings of a training run, from names and values as a file or a command line has them.

    settings_of({"learning_rate": "1e-5", "tensor": 2, "old_policy": "recomputed"}, "--set")

The names of all groups are one list: none is in two of them. Needs no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer.loss_settings import LossSettings
from trainer.megatron_settings import MegatronSettings, OptimizerSettings


class BadTrainingSettings(ValueError):
    """A setting is unknown or wrong; the message says value, rule and place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What the loop does beside the step itself."""

    microbatch_tokens: int | None = None
    """Tokens that are computed at once, and the most that a sample may have. Null: the model's
    context."""
    checkpoint_every: int = 1
    """Steps between two checkpoints: what is done again after a crash."""
    keep_checkpoints: int = 3
    """The newest so many are kept."""
    seed: int = 1
    """Of the random state at the start."""
    tokenizer: str | None = None
    """Name or digest of the model's tokenizer; batches that name another are refused. Null: not
    checked."""

    def __post_init__(self) -> None:
        for name in ("microbatch_tokens", "checkpoint_every", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """All settings, by what they are about."""

    loss: LossSettings = field(default_factory=LossSettings)
    """What is learned."""
    megatron: MegatronSettings = field(default_factory=MegatronSettings)
    """How the model is computed."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """How weights follow gradients."""
    loop: LoopSettings = field(default_factory=LoopSettings)
    """The rest."""


_GROUPS: dict[str, type] = {
    "loss": LossSettings,
    "megatron": MegatronSettings,
    "optimizer": OptimizerSettings,
    "loop": LoopSettings,
}


def settings_of(given: Mapping[str, Any], place: str) -> TrainingSettings:
    """Settings from one table of names; numbers and words may come as text, bounds as "low,high".

    Raises BadTrainingSettings, which ends with `place`."""
    names = {kind: [each.name for each in dataclasses.fields(cls)] for kind, cls in _GROUPS.items()}
    known = [name for group in names.values() for name in group]
    if unknown := sorted(given.keys() - set(known)):
        raise BadTrainingSettings(f"there is no setting {unknown[0]} ({', '.join(known)}; {place})")
    groups: dict[str, Any] = {}
    for kind, cls in _GROUPS.items():
        values = {name: _bounds(name, given[name]) for name in names[kind] if name in given}
        try:
            groups[kind] = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise BadTrainingSettings(f"{_told(error)} ({place})") from None
    return TrainingSettings(**groups)


def _bounds(name: str, value: Any) -> Any:
    """A pair as a command line has it."""
    if name not in ("token_mask", "sequence_mask") or not isinstance(value, str):
        return value
    low, _, high = value.partition(",")
    return {"low": low, "high": high}


def _told(error: ValidationError) -> str:
    problems: list[str] = []
    for each in error.errors(include_url=False):
        name = ".".join(str(part) for part in each["loc"])
        message = each["msg"].removeprefix("Value error, ")
        problems.append(f"{name}: {message}, got {each['input']!r}" if name else message)
    return "; ".join(problems)
