"""Publishes policy versions: an export, a fact, and every engine brought up to date.

    with Publisher(settings, folder, recorder) as publisher:   # on every rank
        publisher.publish(learner, version=0, step=None)       # or adopt(version) on a resume
        ...
        publisher.publish(learner, version, step)

Behind it a thread of rank 0 looks at every engine each `look_every_s` seconds and brings one that
is behind up to date: it was away, or was restarted with the weights that it starts from.

**What an engine that is back may serve.** SGLang takes requests as soon as it answers. From then
until the next look (`look_every_s`, and what a look takes) it samples from its old weights; then it
is paused, loads the newest version and goes on. What it sampled meanwhile is labelled with
the version that it was started with, so staleness rules see it. Nothing closes that window from
here but an engine that is started on the newest export, with that version as its own.

Invariants:

1. Versions only grow, over all lives of the folder: a number is never used for two sets of weights.
2. A folder `version-…` is whole, and is recorded before any engine loads it.
3. No engine holds up training for longer than the limits in the settings, nor another engine.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from ledger.facts.lists import WeightMethod
from ledger.recorder import Recorder
from trainer import groups, hf_weights
from trainer.architecture import ModelConfig, read_config
from trainer.distributed import Broadcast, buckets
from trainer.engine_keeper import Target
from trainer.fleet import Fleet
from trainer.hf_files import WrongCheckpoint
from trainer.model import Learner, bare
from trainer.publish_settings import PublishSettings

logger = logging.getLogger(__name__)

_NAME = re.compile(r"version-(\d{8,})")
FLUSH_S = 5.0
"""Most seconds that a version waits for its own fact."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of one version."""

    version: int
    """Its number."""
    folder: Path
    """Its checkpoint."""
    size_bytes: int
    """Of the checkpoint."""
    publish_s: float
    """Seconds of the export."""
    switch_s: float
    """Seconds until every engine had taken it, or had failed to."""
    applied: tuple[str, ...]
    """URLs of engines that sample from it now."""
    behind: tuple[str, ...]
    """URLs of those that don't; they get it, or a newer one, once they can."""


class Publisher:
    """Every rank has one; rank 0's does the work."""

    def __init__(
        self, settings: PublishSettings, folder: Path, recorder: Recorder | None = None
    ) -> None:
        """`folder` gets a folder for each version, and belongs to one run. Rank 0 must have a
        recorder, or it raises ValueError. Inside `trainer.ranks.started`."""
        self._settings = settings
        self._folder = folder.resolve()
        self._recorder = recorder
        self._fleet: Fleet | None = None
        if dist.get_rank() == 0:
            if recorder is None:
                raise ValueError("rank 0 must have a recorder, got none")
            self._fleet = Fleet(settings, recorder)
            for left in self._folder.glob(".version-*"):  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def publish(self, learner: Learner, version: int, step: int | None) -> Publication | None:
        """Exports the learner's weights as this version and has every engine take it.

        A collective over all ranks; the result is rank 0's. An engine that fails is no error: it is
        in `behind`, and in a fact. Raises ValueError, on every rank, unless the version is above
        all before it, and WrongCheckpoint if the folder holds versions of another model."""
        self._agree(lambda: self._check(version, learner.config))
        began = time.monotonic()
        folder = self._path(version)
        size = hf_weights.export(
            bare(learner.model), learner.config, folder, companions=self._settings.companions
        )
        publish_s = time.monotonic() - began
        if self._fleet is not None and self._recorder is not None:
            self._recorder.weights_published(
                policy_version=version,
                method=self._settings.method,
                step=step,
                path=str(folder),
                size_bytes=size,
                publish_s=publish_s,
            )
            # Nothing may be sampled from a version that the log doesn't know.
            self._recorder.flush(FLUSH_S)
        began = time.monotonic()
        if self._fleet is not None:
            self._fleet.aim(Target(version, folder, learner.config))
        if self._settings.method is WeightMethod.DISTRIBUTED:
            self._broadcast(learner)
        if self._fleet is None:
            return None
        applied = self._fleet.run(self._fleet.settled())
        self._clean()
        return Publication(
            version,
            folder,
            size,
            publish_s,
            time.monotonic() - began,
            applied,
            tuple(url for url in self._settings.engines if url not in applied),
        )

    def adopt(self, version: int) -> tuple[str, ...]:
        """Has every engine take a version that is there from an earlier life: what a trainer that
        resumes does if it trains on from just that. Returns the URLs of engines that have it, on
        rank 0. Raises ValueError, on every rank, if it isn't there; WrongCheckpoint."""
        self._agree(lambda: self._check_there(version))
        if self._fleet is None:
            return ()
        folder = self._path(version)
        self._fleet.aim(Target(version, folder, read_config(folder)))
        return self._fleet.run(self._fleet.settled())

    @property
    def newest(self) -> int | None:
        """The highest version in the folder, as this rank sees it; null: there is none. After a
        kill it may be one that no fact names, and is used all the same."""
        return max(self._versions(), default=None)

    def close(self) -> None:
        """Stops looking after engines. They go on with what they have."""
        if self._fleet is not None:
            self._fleet.close()

    def _broadcast(self, learner: Learner) -> None:
        """Rank 0 sends to the engines; the ranks of its replica give it their shares meanwhile."""
        module = bare(learner.model)
        if self._fleet is None:
            # Rank 0 is in the first replica; the others have nothing that it lacks.
            if groups.data().rank() == 0:
                for _ in hf_weights.named_tensors(module, learner.config):
                    pass
            return
        gpu = learner.device.type == "cuda"
        sending = Broadcast(self._fleet.keepers, self._settings, gpu)
        self._fleet.run(sending.open())
        try:
            with torch.no_grad():
                tensors = hf_weights.named_tensors(module, learner.config)
                for bucket, last in buckets(tensors, self._settings.bucket_bytes):
                    if gpu:
                        torch.cuda.synchronize()  # another thread sends, on a stream of its own
                    self._fleet.run(sending.send(bucket, last=last))
        finally:
            self._fleet.run(sending.close())

    def _agree(self, check: Callable[[], None]) -> None:
        """Raises on every rank what rank 0's check raises: else the others would wait for it in a
        collective."""
        found: Exception | None = None
        if self._fleet is not None:
            try:
                check()
            except (ValueError, OSError) as error:
                found = error
        if (error := groups.agreed(found)) is not None:
            raise error

    def _check(self, version: int, config: ModelConfig) -> None:
        newest = self.newest
        if version < 0 or (newest is not None and version <= newest):
            least = 0 if newest is None else newest + 1
            raise ValueError(
                f"version must be at least {least}, got {version}: no version is used twice"
                f" ({self._folder})"
            )
        if newest is not None and (theirs := read_config(self._path(newest))) != config:
            raise WrongCheckpoint(f"{self._folder} must hold versions of {config}, has {theirs}")

    def _check_there(self, version: int) -> None:
        if not self._path(version).is_dir():
            raise ValueError(
                f"version must be one of {sorted(self._versions())}, got {version} ({self._folder})"
            )

    def _versions(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        names = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        return [int(name[1]) for name in names if name]

    def _path(self, version: int) -> Path:
        return self._folder / f"version-{version:08}"

    def _clean(self) -> None:
        """Removes all but the newest versions; a name goes before what it names."""
        for version in sorted(self._versions())[: -self._settings.keep]:
            path = self._path(version)
            try:
                gone = path.rename(path.with_name(f".{path.name}.gone"))
                shutil.rmtree(gone)
            except OSError as error:
                logger.warning("%s could not be removed: %s", path, error)
