"""Rollout and train dumps of miles: `{rollout_id}.pt`, `eval_{id}.pt`, `train_data/{id}_{rank}.pt`.

Invariant: a sample is counted once, however many ranks wrote it down.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producers.importers.miles_pickle import Tensor, load
from producers.importers.source import BadImport, Json, SourceFile, name_below

_ROLLOUT = re.compile(r"(?:.*_)??(eval_)?(\d+)\.pt")
_TRAIN = re.compile(r"(\d+)_(\d+)\.pt")


@dataclass(frozen=True, slots=True)
class RolloutDump:
    """The samples of one rollout."""

    number: int
    """rollout_id, from 0."""
    evaluation: bool
    """Whether it was sampled to evaluate."""
    samples: list[Json]
    source: SourceFile


@dataclass(slots=True)
class Trained:
    """What was trained on of one rollout, by its ranks' dumps."""

    samples: dict[int, Json] = field(default_factory=dict[int, Json])
    """Sample index -> the first rank's file that has it."""
    tokens: int | None = 0
    """Items of their loss masks that are 1; null: a rank doesn't tell them."""
    raw_rewards: list[float] = field(default_factory=list[float])
    """Of the whole batch: every rank's file has all of them."""


def rollout_dumps(path: Path, root: Path) -> list[RolloutDump]:
    """The dumps at `path`: one file, or a folder's, training first. Raises BadImport."""
    files = [path] if path.is_file() else sorted(path.glob("*.pt"))
    dumps = [_rollout(file, root) for file in files if _ROLLOUT.fullmatch(file.name)]
    return sorted(dumps, key=lambda dump: (dump.evaluation, dump.number))


def _rollout(file: Path, root: Path) -> RolloutDump:
    top = _top(file, root)
    if not isinstance(top.value, dict) or "samples" not in top.value:
        raise top.wrong("an object with samples, as --save-debug-rollout-data writes it")
    named = _ROLLOUT.fullmatch(file.name)
    assert named is not None
    number = top.integer("rollout_id")
    return RolloutDump(
        int(named[2]) if number is None else number,
        named[1] is not None,
        top.items("samples"),
        top.source,
    )


def trained(folder: Path, root: Path) -> dict[int, Trained]:
    """Rollout id -> what its ranks trained on. Tensor- and pipeline-parallel ranks write the same
    samples, and are told by their indices. Raises BadImport."""
    found: dict[int, Trained] = {}
    for file in sorted(folder.glob("*.pt"), key=_rank_of):
        named = _TRAIN.fullmatch(file.name)
        if named is None:
            continue
        top = _top(file, root)
        number = top.integer("rollout_id")
        into = found.setdefault(int(named[1]) if number is None else number, Trained())
        columns = top.member("rollout_data")
        masks = columns.object().get("loss_masks")
        for row, index in enumerate(_column(columns, "sample_indices")):
            if not isinstance(index, int):
                raise columns.at("sample_indices").wrong("whole numbers")
            if index in into.samples:
                continue
            into.samples[index] = top
            told = None if masks is None or row >= len(masks) else _ones(masks[row])
            into.tokens = None if told is None or into.tokens is None else into.tokens + told
        if not into.raw_rewards:
            rewards = _column(columns, "raw_reward")
            into.raw_rewards = [float(each) for each in rewards if isinstance(each, int | float)]
    return found


def _ones(mask: Any) -> int | None:
    """Items of a loss mask that are not 0; null for what is no mask."""
    items = mask.values() if isinstance(mask, Tensor) else mask
    return sum(bool(each) for each in items) if isinstance(items, list) else None


def mask_sum(value: Any) -> int | None:
    """Tokens that the policy sampled, by a sample's loss mask; null where it has none."""
    return None if value is None else _ones(value)


def _column(columns: Json, name: str) -> list[Any]:
    value = columns.object().get(name)
    if isinstance(value, Tensor):
        return value.values()
    return [] if value is None else [each.value for each in columns.at(name).array()]


def _rank_of(file: Path) -> tuple[int, int, str]:
    named = _TRAIN.fullmatch(file.name)
    return (int(named[1]), int(named[2]), "") if named else (0, 0, file.name)


def _top(file: Path, root: Path) -> Json:
    """A dump's content, with its place."""
    name = name_below(file, root)
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while part := content.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise BadImport(f"{name} can't be read: {error.strerror}") from None
    return Json(load(file, name), SourceFile(name, digest.hexdigest(), ""))
