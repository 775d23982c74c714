"""The order of things: services, evaluation, training, evaluation, and the end.

    start       log, engine, sandboxes, projector, assembler
    before      the random policy on the held-out tasks, while the trainer starts up
    training    rollouts and steps, until the last step is done
    after       the trained policy on the held-out tasks
    accounts    everything but the log is stopped; the book is brought up to its end

Invariant: whatever ends it, every child is stopped, those that write before those that they write
to; and what was done is done when it goes on.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from uuid import uuid4

from api.demo.children import (
    ASSEMBLER,
    EVALUATION,
    JUDGE,
    PROJECTOR,
    ROLLOUT,
    TRAINER,
    Parts,
)
from api.demo.display import Show
from api.demo.plan import Demo, DemoError, Evaluation
from api.demo.services import BROKER, ENGINE, SANDBOXES, engine_version, newest_version
from api.settings import without_settings
from consumers.rebuild import project
from deploy.supervisor import ChildFailed, Supervisor
from ledger.open_log import open_log
from ledger.recording.spool import drain_orphans, folder_of

LOOK_S = 0.05
WORKERS = (EVALUATION, ROLLOUT, TRAINER, JUDGE, ASSEMBLER, PROJECTOR)
SERVICES = (ENGINE, SANDBOXES)
"""Stopped behind those that use them; the log comes with them, or last."""
WORKERS_S, SERVICES_S = 4.5, 1.5
"""Most seconds of each when somebody waits for the end."""
EVALUATIONS_MAX = 5
"""So many tries at an evaluation, each a run of its own."""
SPOOL_S = 30.0
"""For one append of what was left in a spool."""
LAST_ATTEMPTS_S = 60.0
"""Attempts in flight at the last step get so long to end."""


class Interrupted(Exception):
    """Somebody asked for the end."""


class DemoRun:
    """One life of a demo. Used by the thread that lives longest: children die with it."""

    def __init__(self, demo: Demo, parts: Parts, show: Show, stop: threading.Event) -> None:
        self._demo = demo
        self._parts = parts
        self._show = show
        self._stop = stop
        # What the demo's own settings don't say must not come from elsewhere.
        self._children = Supervisor(demo.part_logs, without_settings(os.environ))

    def run(self, opened: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        """Until the book is whole. `opened` runs beside, from when the log is there on.

        Raises Interrupted, ChildFailed, DemoError."""
        demo, children = self._demo, self._children
        try:
            with self._phase("start"):
                self._open_log()
            with opened():
                self._start()
                self._evaluate("before")
                self._train()
                self._evaluate("after")
            with self._phase("accounts"):
                children.stop([WORKERS, SERVICES], 30.0)
                complete_book(self._parts.log_url, demo.path("spool"), demo.book)
        finally:
            children.stop([WORKERS], WORKERS_S)
            children.stop([[*SERVICES, BROKER]], SERVICES_S)
            for name, count in children.deaths.items():
                demo.deaths[name] = demo.deaths.get(name, 0) + count
            demo.save()

    def _open_log(self) -> None:
        if self._parts.broker is not None:
            self._children.add(self._parts.kafka())
            self._wait(lambda: self._children.ready(BROKER))
        open_log(self._parts.log_url).close()  # makes what is missing of it
        self._parts.write_config()

    def _start(self) -> None:
        demo, parts, children = self._demo, self._parts, self._children
        with self._phase("start"):
            for child in (parts.engine(), parts.sandboxes(), parts.projector()):
                children.add(child)
            children.add(parts.assembler(demo.run_id))
            self._show.say(f"run {demo.run_id}: starting SGLang, sandboxes, projector, assembler")
            self._wait(lambda: children.ready(ENGINE, SANDBOXES))

    def _evaluate(self, when: str) -> None:
        """Raises DemoError when it can't be brought to an end."""
        demo, children = self._demo, self._children
        found = demo.evaluations.get(when)
        if found is not None and found.done:
            return
        if when == "before":
            self._add_trainer()
        with self._phase(when):
            version = 0 if when == "before" else self._trained_version()
            for _ in range(EVALUATIONS_MAX):
                # A run of its own each time: half of an evaluation is none.
                evaluation = demo.evaluations[when] = Evaluation(str(uuid4()))
                demo.save()
                self._show.say(f"evaluation {when} training: version {version}")
                children.add(self._parts.assembler(evaluation.run_id, JUDGE))
                children.add(self._parts.evaluation(when, evaluation, version))
                self._wait(lambda: children.ended(EVALUATION) or children.failed(EVALUATION))
                evaluation.done = children.ended(EVALUATION)
                children.remove([EVALUATION, JUDGE])
                demo.save()
                if evaluation.done:
                    return
            raise DemoError(
                f"the evaluation {when} training was interrupted {EVALUATIONS_MAX} times:"
                f" see {demo.part_logs}"
            )

    def _add_trainer(self) -> None:
        if not self._demo.trained:
            self._children.add(self._parts.trainer())

    def _train(self) -> None:
        demo, children = self._demo, self._children
        if demo.trained:
            return
        with self._phase("training"):
            if not children.has(TRAINER):
                self._add_trainer()
            children.add(self._parts.rollout())
            self._show.say(f"training: {demo.plan.steps} steps")
            self._wait(lambda: children.ended(TRAINER))
            limit = time.monotonic() + LAST_ATTEMPTS_S
            self._wait(lambda: children.ended(ROLLOUT) or time.monotonic() > limit)
            children.remove([ROLLOUT, TRAINER])
            demo.trained = True
            demo.save()

    def _trained_version(self) -> int:
        """The version that the trainer ended with, once the engine has it. Raises ChildFailed."""
        found = newest_version(self._demo.versions)
        if found is None:
            raise ChildFailed(f"{TRAINER} ended without a version in {self._demo.versions}")
        _, version = found
        children, url = self._children, self._parts.engine_url
        self._wait(lambda: children.ready(ENGINE))
        if engine_version(url) != version:
            # It came up behind the last publication, and nobody but we will notice.
            children.restart(ENGINE)
            self._wait(lambda: engine_version(url) == version)
        return version

    def _wait(self, until: Callable[[], bool]) -> None:
        """Keeps the children going. Raises Interrupted, ChildFailed."""
        while True:
            if self._stop.is_set():
                raise Interrupted
            self._children.look()
            if until():
                return
            self._show.tick()
            time.sleep(LOOK_S)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Generator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = self._demo.seconds
            seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began
            self._demo.save()


def complete_book(log_url: str, spools: Path, book: Path) -> None:
    """Bring what is in a log into its book, and before it what parts that ended left in their
    spools. Raises LogError, BookError."""
    with open_log(log_url) as log:
        drain_orphans(log, folder_of(spools, log_url), SPOOL_S)
        project(log, book)
