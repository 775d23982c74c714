"""Folders of checkpoints: written whole or not at all, checked by digest before one is used.

    checkpoints/lock                       held by the trainer that uses the folder
    checkpoints/step-00000012/             one checkpoint, which has its name only once it is whole
        manifest.json                      what it is, and the size and digest of every other file
        tensor-0-pipeline-0.pt ...         see trainer/checkpoint.py
    checkpoints/damaged-step-00000011/     one that was refused: kept for people, never read again

Invariants: a reader sees all of a checkpoint or none of it, whenever the writer is killed; older
ones go only once a newer one is on disk; a damaged one is named and passed over, and training never
starts afresh because of it. All ranks must see the same folder. Needs no torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.durable import sync

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FORMAT = 1
_PREFIX = "step-"


class CheckpointError(RuntimeError):
    """A checkpoint can't be used or made; the message says value, rule and place."""


class _Damaged(Exception):
    """A checkpoint that isn't what was written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint whose files are as they were written."""

    folder: Path
    """Where it lies."""
    manifest: Mapping[str, Any]
    """As it was given to `publish`."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, no other trainer uses the folder. Raises CheckpointError when one does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another trainer is using the checkpoints in {folder}") from None
        yield


def name_of(step: int) -> str:
    """Of a checkpoint's folder."""
    return f"{_PREFIX}{step:08}"


def partial(folder: Path, step: int) -> Path:
    """Where a checkpoint's files are written."""
    return folder / f".{name_of(step)}.partial"


def start(folder: Path, step: int) -> None:
    """Makes `partial`, empty. Raises CheckpointError for a step that
    has one."""
    if (folder / name_of(step)).exists():
        raise CheckpointError(f"checkpoint {folder / name_of(step)} is there already")
    fresh = partial(folder, step)
    with suppress(FileNotFoundError):  # left by a trainer that was killed
        shutil.rmtree(fresh)
    fresh.mkdir()


def seal(path: Path) -> tuple[str, dict[str, Any]]:
    """A file that was written, safe on disk: its name, and what the manifest says of it."""
    sync(path)
    return path.name, {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def publish(folder: Path, step: int, manifest: Mapping[str, Any]) -> Path:
    """Gives a checkpoint its name once all its files are sealed, atomically."""
    unnamed, whole = partial(folder, step), folder / name_of(step)
    body = {"format": FORMAT, **manifest}
    # The manifest has its own digest, or a flipped bit in a position would go unseen.
    text = json.dumps(body, sort_keys=True)
    (unnamed / MANIFEST).write_text(json.dumps({"sha256": _digest(text), "body": body}, indent=1))
    sync(unnamed / MANIFEST)
    sync(unnamed)
    unnamed.rename(whole)
    sync(folder)
    return whole


def newest(folder: Path) -> Found | None:
    """The newest checkpoint that is whole; null where there never was one.

    Damaged ones are set aside, each with a warning. Raises CheckpointError when all are."""
    checkpoints = sorted(folder.glob(f"{_PREFIX}*"), reverse=True)
    for each in checkpoints:
        try:
            return Found(each, _checked(each))
        except _Damaged as error:
            aside = each.with_name(f"damaged-{each.name}")
            logger.warning("checkpoint %s is damaged, kept as %s: %s", each, aside.name, error)
            with suppress(FileNotFoundError):
                shutil.rmtree(aside)
            each.rename(aside)
            sync(folder)
    if checkpoints or any(folder.glob(f"damaged-{_PREFIX}*")):
        raise CheckpointError(f"every checkpoint in {folder} is damaged")
    return None


def prune(folder: Path, keep: int) -> None:
    """Removes all but the newest `keep`."""
    for old in sorted(folder.glob(f"{_PREFIX}*"))[:-keep]:
        # First out of sight: a trainer that is killed meanwhile leaves no half checkpoint.
        gone = old.with_name(f".{old.name}.partial")
        with suppress(FileNotFoundError):
            shutil.rmtree(gone)
        old.rename(gone)
        shutil.rmtree(gone)


def _checked(folder: Path) -> dict[str, Any]:
    """The manifest, once every file is as it says. Raises _Damaged."""
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text())
        body, digest = told["body"], told["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"{path} can't be read: {error!r}") from error
    if _digest(json.dumps(body, sort_keys=True)) != digest:
        raise _Damaged(f"{path} doesn't match its own digest {digest}")
    if body["format"] != FORMAT:
        raise CheckpointError(f"{path} must have format {FORMAT}, got {body['format']}")
    for name, due in body["files"].items():
        file = folder / name
        if not file.is_file():
            raise _Damaged(f"{file} is missing")
        if (size := file.stat().st_size) != due["bytes"]:
            raise _Damaged(f"{file} must have {due['bytes']} bytes, got {size}")
        if (found := _sha256(file)) != due["sha256"]:
            raise _Damaged(f"{file} must have digest {due['sha256']}, got {found}")
    return body


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
