"""Keeps one engine at the newest policy version, and records each change.

What is wanted is a version; what the engine has is looked up, never remembered. So one that was
away, or was restarted with old weights, is brought up to date like any other.

Invariants:

1. A checkpoint reaches an engine only once it is found to be of the engine's own model: SGLang ends
   itself over a wrong shape.
2. An engine that may hold half of an update stays paused until it has loaded a whole one. For the
   trainer may have been killed in the middle, whoever finds an engine paused loads it anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.facts.lists import PauseMode, WeightMethod
from ledger.recorder import Recorder
from trainer import hf_files
from trainer.architecture import ModelConfig, UnsupportedModel, read_config
from trainer.engines import Engine, EngineAway, EngineError, EngineState
from trainer.hf_files import WrongCheckpoint
from trainer.publish_settings import PublishSettings

logger = logging.getLogger(__name__)

RETRY_MAX_S = 60.0
"""Most seconds until an engine that refuses is tried again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A version that engines are to have."""

    version: int
    """Its number."""
    folder: Path
    """Its checkpoint, absolute."""
    config: ModelConfig
    """The architecture of that."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An engine that doesn't sample until it is resumed."""

    mode: PauseMode
    """What became of its requests."""
    in_flight: int | None
    """Requests that it had just before; null: it didn't say."""
    began: float
    """Monotonic seconds."""


class EngineKeeper:
    """One engine's. `lock` is held by whoever changes the engine."""

    def __init__(self, engine: Engine, settings: PublishSettings, recorder: Recorder) -> None:
        self.engine = engine
        self.lock = asyncio.Lock()
        self.target: Target | None = None
        """To be read under the lock: whoever had it before may have waited for an older one."""
        self._settings = settings
        self._recorder = recorder
        self._told: tuple[int, str] | None = None
        """Version, and the error's type or nothing: what the last fact said."""
        self._failures = 0
        self._try_again = 0.0
        """Monotonic seconds, before which a look doesn't try again what failed."""

    async def settle(self, *, patient: bool = False) -> bool:
        """Brings the engine to the target, unless it is there. Whether it is there now.

        `patient`: it is left alone for a while after it refused. Never raises for an engine."""
        async with self.lock:
            target = self.target
            if target is None or (patient and time.monotonic() < self._try_again):
                return False
            state = await self.look(target)
            if state is None:
                return False
            told_done = self._told == (target.version, "")
            # One that has just been brought up to date isn't ready while its start goes on.
            if state.version == str(target.version) and (state.ready or told_done):
                if not told_done:  # it was done after we gave up waiting
                    self.tell_done(target, WeightMethod.DISK, None, None)
                return True
            if not await self.takes(state, target):
                return False
            # One that was away may be in use already; so it is paused, even where an update
            # otherwise waits for running requests.
            mode = self._settings.pause
            if not state.ready or (patient and mode is PauseMode.NONE):
                mode = PauseMode.RETRACT
            try:
                pause = None if mode is PauseMode.NONE else await self.hold(mode)
            except EngineError as error:
                self.tell_failure(target, error)
                return False
            return await self.load_held(target, pause, go_on=state.ready)

    async def look(self, target: Target) -> EngineState | None:
        """Its state; null when it tells none, which is recorded."""
        try:
            return await self.engine.look()
        except EngineError as error:
            self.tell_failure(target, error)
            return None

    async def takes(self, state: EngineState, target: Target) -> bool:
        """Whether the target is of its model; why not is recorded. Asked before anything is sent,
        and only then: it opens every tensor of the checkpoint."""
        try:
            await asyncio.to_thread(check_fits, state, target, self._settings.engine_config)
        except (WrongCheckpoint, UnsupportedModel, OSError) as error:
            self.tell_failure(target, error)
            return False
        return True

    async def hold(self, mode: PauseMode) -> Pause:
        """Pauses it. Raises EngineError."""
        in_flight = await self.engine.in_flight()
        began = time.monotonic()
        await self.engine.pause(mode)
        return Pause(mode, in_flight, began)

    async def load_held(self, target: Target, pause: Pause | None, *, go_on: bool) -> bool:
        """Loads the target from disk and resumes the engine. Whether it has it now.

        `go_on`: its weights are whole, so it goes on with them where it takes no new ones."""
        flush = pause is None or pause.mode is not PauseMode.IN_PLACE
        began = time.monotonic()
        failure: EngineError | None = None
        try:
            await self.engine.load(target.folder, target.version, flush_cache=flush)
        except EngineError as error:
            failure = error
        apply_s = time.monotonic() - began
        if pause is not None and (failure is None or go_on):
            try:
                await self.engine.resume()
            except EngineError as error:
                failure = failure or error
        if failure is not None:
            self.tell_failure(target, failure, pause, apply_s)
            return False
        self.tell_done(target, WeightMethod.DISK, pause, apply_s)
        return True

    def tell_done(
        self, target: Target, method: WeightMethod, pause: Pause | None, apply_s: float | None
    ) -> None:
        """Records that the engine has the target. `apply_s` null: it has it from before."""
        mode = None if apply_s is None else PauseMode.NONE if pause is None else pause.mode
        aborted = carried = 0
        if pause is not None:
            aborted, carried = pause.in_flight, pause.in_flight
            if pause.mode is PauseMode.ABORT:
                carried = 0
            else:
                aborted = 0
        self._recorder.weights_applied(
            policy_version=target.version,
            method=method,
            engine=self.engine.url,
            success=True,
            pause_mode=mode,
            cache_flushed=None if mode is None else mode is not PauseMode.IN_PLACE,
            paused_s=None if pause is None else time.monotonic() - pause.began,
            apply_s=apply_s,
            aborted_requests=None if mode is None else aborted,
            carried_requests=None if mode is None else carried,
        )
        self._told = (target.version, "")
        self._failures, self._try_again = 0, 0.0

    def tell_failure(
        self,
        target: Target,
        error: Exception,
        pause: Pause | None = None,
        apply_s: float | None = None,
    ) -> None:
        """Records a failure: once for each version and type of error, or an engine that is away
        for a day would fill the log. That one which has the version went away is none."""
        kind = error.error_type if isinstance(error, EngineError) else type(error).__name__
        self._failures += 1
        pace = self._settings.look_every_s * 2 ** min(self._failures - 1, 6)
        # One that is away is no trouble to look at, and must be met as soon as it is back.
        refused = kind.startswith("HTTP") or not isinstance(error, EngineError)
        self._try_again = time.monotonic() + min(pace, RETRY_MAX_S) if refused else 0.0
        away = isinstance(error, EngineAway)
        if self._told == (target.version, kind) or (away and self._told == (target.version, "")):
            return
        self._told = (target.version, kind)
        logger.warning("%s did not take version %d: %s", self.engine.url, target.version, error)
        self._recorder.weights_applied(
            policy_version=target.version,
            method=self._settings.method,
            engine=self.engine.url,
            success=False,
            pause_mode=None if pause is None else pause.mode,
            paused_s=None if pause is None else time.monotonic() - pause.began,
            apply_s=apply_s,
            error_type=kind,
            error=str(error),
        )


def check_fits(state: EngineState, target: Target, engine_config: Path | None) -> None:
    """Raises WrongCheckpoint, UnsupportedModel or OSError unless the target's checkpoint is one of
    the model that the engine runs. After an update its model's folder is the one it loaded."""
    folder = engine_config or Path(state.model)
    if folder.parent == target.folder.parent and not folder.exists():
        # An older version that was removed meanwhile: all in one folder are of one model.
        folder = target.folder
    theirs = replace(
        read_config(folder),
        context=target.config.context,  # bounds of use, which no tensor depends on
        bos_token_id=target.config.bos_token_id,
        eos_token_id=target.config.eos_token_id,
    )
    if theirs != target.config:
        raise WrongCheckpoint(
            f"version {target.version} must be of the engine's model {theirs} ({folder}),"
            f" got {target.config}"
        )
    hf_files.check(target.folder, theirs)
