"""Child processes, kept running: started in order, started again when they die, stopped in order.

    with Supervisor(Path("demo/children")) as children:
        children.add(Child("engine", engine_line, ready=engine_answers))
        children.add(Child("rollout", rollout_line, needs=("engine",), ends=True))
        while not children.ended("rollout"):
            children.look()
            time.sleep(0.05)

Invariants:

1. No child outlives the supervisor: what it can't stop, because it was killed itself, the kernel
   kills (`tied.py`).
2. A child runs only while those that it needs are ready; it isn't stopped when one of them dies.
3. One that dies again and again is an error with the end of its log, never an endless loop.

Used by one thread, which must live as long as the children: the kernel looks at the thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy import state_file

TIED = Path(__file__).with_name("tied.py")
DEATHS_MAX = 6
"""So many deaths within `DEATHS_S` are one too many."""
DEATHS_S = 60.0
PAUSE_S = 0.2
"""Before a second start; doubled with each further death within `DEATHS_S`."""
READY_EVERY_S = 0.25
"""How often a child that isn't ready yet is asked."""
LOG_LINES = 15
DEAD_S = 5.0
"""Most seconds that the kernel needs to end a killed process."""


class ChildFailed(Exception):
    """A child can't be kept running; the message has the end of its log."""


def always() -> bool:
    """Ready as soon as it runs."""
    return True


@dataclass(frozen=True, slots=True)
class Child:
    """One process, and how it is kept."""

    name: str
    """Of it and of its log file; unique among children that run."""
    command: Callable[[], Sequence[str]]
    """Its command line, asked for at each start."""
    needs: tuple[str, ...] = ()
    """Names of children that must be ready before it starts."""
    ready: Callable[[], bool] = always
    """Whether it can be used; asked until it says so once in a life."""
    ready_s: float = 300.0
    """Most seconds until it is ready; then it is killed and started again."""
    ends: bool = False
    """It has done its work when it ends with status 0; else it has to run for ever."""
    again: bool = True
    """It is started again when it dies; else it has failed."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Over that of all children."""
    gentle: bool = True
    """It is asked to end before it is killed."""


@dataclass(slots=True)
class _Life:
    """One child, over all its processes."""

    child: Child
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    done: bool = False
    failed: bool = False
    started_s: float = 0.0
    asked_s: float = 0.0
    not_before_s: float = 0.0
    recent: deque[float] = field(default_factory=deque[float])
    """Monotonic seconds of the newest deaths."""


class Supervisor:
    """Keeps children. `look` does the work, and has to be called again and again."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """`folder` gets a log file for each child, and `state.json` with the pids. `environment` is
        that of all children; null: of this process."""
        self._folder = folder.absolute()
        self._environment = dict(os.environ if environment is None else environment)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lives: dict[str, _Life] = {}
        self.deaths: Counter[str] = Counter()
        """By child: ends that were not asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop([list(self._lives)], 5.0)

    def add(self, child: Child) -> None:
        """It is started at the next look at which what it needs is ready."""
        if child.name in self._lives:
            raise ValueError(f"a child has a name of its own, got {child.name!r} twice")
        self._lives[child.name] = _Life(child)

    def look(self) -> None:
        """Sees who died, starts who is due, asks who is new. Raises ChildFailed."""
        for life in list(self._lives.values()):
            if life.process is not None and life.process.poll() is not None:
                self._died(life, life.process.returncode)
            if life.process is None and self._is_due(life):
                self._start(life)
            if life.process is not None and not life.ready:
                self._ask(life)

    def ready(self, *names: str) -> bool:
        """Whether all of these can be used."""
        return all(self._lives[name].ready for name in names)

    def ended(self, *names: str) -> bool:
        """Whether all of these have done their work. Needs a look first, and stays so."""
        return all(self._lives[name].done for name in names)

    def failed(self, name: str) -> bool:
        """Whether this one died, and isn't started again."""
        return self._lives[name].failed

    def has(self, name: str) -> bool:
        """Whether it was added, and not removed."""
        return name in self._lives

    def restart(self, name: str) -> None:
        """kill -9, as a crash would: it comes up again."""
        process = self._lives[name].process
        if process is not None:
            _signal_group(process, signal.SIGKILL)

    def remove(self, names: Iterable[str], limit_s: float = 30.0) -> None:
        """Stop these, and forget them."""
        names = list(names)
        self.stop([names], limit_s)
        for name in names:
            self._lives.pop(name, None)

    def stop(self, stages: Iterable[Iterable[str]], limit_s: float) -> None:
        """Ask the children of each stage to end, and kill those that haven't within `limit_s`,
        before the next stage. Names of no child are passed over."""
        for stage in stages:
            stopping = [life for name in stage if (life := self._lives.get(name)) is not None]
            for life in stopping:
                life.done = True  # it isn't started again
            _end([life for life in stopping if life.process is not None], limit_s)
            for life in stopping:
                life.process, life.ready = None, False
        self._write_state()

    def _is_due(self, life: _Life) -> bool:
        if life.done or life.failed:
            return False
        needs = [self._lives.get(name) for name in life.child.needs]
        return time.monotonic() >= life.not_before_s and all(
            needed is not None and needed.ready for needed in needs
        )

    def _start(self, life: _Life) -> None:
        line = [sys.executable, "-I", "-S", str(TIED), str(os.getpid()), *life.child.command()]
        with self._log_file(life).open("ab") as log:
            life.process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **life.child.environment},
                start_new_session=True,  # a Ctrl-C for the terminal's group is for us alone
            )
        life.started_s = time.monotonic()
        self._write_state()

    def _ask(self, life: _Life) -> None:
        now = time.monotonic()
        if now - life.asked_s < READY_EVERY_S:
            return
        life.ready, life.asked_s = life.child.ready(), now
        if not life.ready and now - life.started_s > life.child.ready_s:
            self.restart(life.child.name)

    def _died(self, life: _Life, status: int) -> None:
        process, life.process, life.ready = life.process, None, False
        if process is not None:
            _signal_group(process, signal.SIGKILL)  # what it left behind
        if life.child.ends and status == 0:
            life.done = True
            self._write_state()
            return
        self.deaths[life.child.name] += 1
        if not life.child.again:
            life.failed = True
            self._write_state()
            return
        now = time.monotonic()
        life.recent.append(now)
        while life.recent[0] < now - DEATHS_S:
            life.recent.popleft()
        if len(life.recent) >= DEATHS_MAX:
            raise ChildFailed(
                f"{life.child.name} ended {len(life.recent)} times within {DEATHS_S:g} s, the last"
                f" time with status {status}; the end of {self._log_file(life)}:\n"
                + self._said(life)
            )
        life.not_before_s = now + PAUSE_S * (2 ** (len(life.recent) - 1) - 1)
        self._write_state()

    def _log_file(self, life: _Life) -> Path:
        return self._folder / f"{life.child.name}.log"

    def _said(self, life: _Life) -> str:
        lines = self._log_file(life).read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-LOG_LINES:])

    def _write_state(self) -> None:
        """For whoever wants to know the pids; nothing here reads it."""
        alive = {
            name: life.process.pid
            for name, life in self._lives.items()
            if life.process is not None and life.process.poll() is None
        }
        state_file.write(self._folder, {"pids": alive, "deaths": dict(self.deaths)})


def _end(lives: Sequence[_Life], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for life in lives:
        assert life.process is not None
        if life.child.gentle:
            with contextlib.suppress(ProcessLookupError):
                life.process.terminate()
        else:
            _signal_group(life.process, signal.SIGKILL)
    for life in lives:
        assert life.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            life.process.wait(max(0.0, deadline - time.monotonic()))
        _signal_group(life.process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            life.process.wait(DEAD_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To all of a child's session: a leader that was killed may have left others. The group's
    number is the leader's pid, which the kernel gives to nobody else while the group has members or
    the leader isn't reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
