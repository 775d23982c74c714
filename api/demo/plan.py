"""What a demo was asked for, where everything of it lies, and how far it has come.

Invariant: `demo.json` is replaced as a whole, and says of an evaluation that it is done only once
it is; so whoever goes on from it repeats at most what was under way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import uuid
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from deploy import state_file

FAULTS = (
    "start_refused:p=0.04,status=500",
    "start_slow:p=0.02,seconds=1.5",
    "command_slow:p=0.01,seconds=1.5",
    "lost_idle:after=0,p=0.04",
)
"""What the sandbox server does wrong on purpose; `producers.local_e2b.faults` says how."""
STATE = "demo.json"


class DemoError(ValueError):
    """The demo can't be run as asked; the message says value, rule and place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for. Kept for the whole life of a demo's folder."""

    log: str = "sqlite"
    """`sqlite`, `kafka` (an Apache Kafka of its own) or the URL of a log."""
    steps: int = 18
    """Training steps."""
    sync: bool = False
    """Whether the rollouts of a step wait for the step before it."""
    seed: int = 0
    """Of weights, tasks' order and faults."""
    concurrency: int = 16
    """Attempts in flight."""
    group_size: int = 8
    """Attempts at a task that are scored together."""
    groups_per_batch: int = 4
    """Groups that a step trains on."""
    attempts: int = 4
    """At each held-out task, in an evaluation."""
    held_out: int = 40
    """Held-out tasks that are evaluated."""
    verbose: int = 4
    """Training tasks whose tests print so much that the context runs away."""
    faults: tuple[str, ...] = FAULTS
    """Rules of the sandbox server."""

    def __post_init__(self) -> None:
        if self.log not in ("sqlite", "kafka") and "://" not in self.log:
            raise DemoError(f"--log must be sqlite, kafka or a log's URL, got {self.log!r}")


@dataclass(slots=True)
class Evaluation:
    """One evaluation of the policy on the held-out tasks."""

    run_id: str
    """A run of its own."""
    done: bool = False
    """Whether all its groups are decided."""


@dataclass(slots=True)
class Demo:
    """A demo in its folder."""

    folder: Path
    """Absolute."""
    plan: Plan
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Of the training run."""
    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """By when: before, after."""
    trained: bool = False
    """Whether the trainer has done its last step."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Spent so far, by phase of the demo."""
    lives: int = 1
    """How often it was started."""
    deaths: dict[str, int] = field(default_factory=dict[str, int])
    """How often parts died without being asked to, in all lives."""

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The demo that is there, to go on with. Raises DemoError."""
        folder = folder.absolute()
        try:
            found: dict[str, Any] = json.loads((folder / STATE).read_text())
        except FileNotFoundError:
            raise DemoError(f"--resume needs the folder of a demo, and {folder} is none") from None
        try:
            plan = Plan(**{**found["plan"], "faults": tuple(found["plan"]["faults"])})
            evaluations = {when: Evaluation(**each) for when, each in found["evaluations"].items()}
            return cls(folder, **{**found, "plan": plan, "evaluations": evaluations})
        except (KeyError, TypeError) as error:
            raise DemoError(
                f"{folder / STATE} must be of this version, got one that isn't: {error}"
            ) from None

    def save(self) -> None:
        """For the next life."""
        told = dataclasses.asdict(self)
        del told["folder"]
        state_file.write(self.folder, told, STATE)

    @property
    def book(self) -> Path:
        return self.folder / "book.duckdb"

    @property
    def policy(self) -> Path:
        """The random policy that it begins with."""
        return self.folder / "policy"

    @property
    def versions(self) -> Path:
        """Exports of the trained ones."""
        return self.folder / "versions"

    @property
    def config(self) -> Path:
        """Settings for every command of it."""
        return self.folder / "rollbook.toml"

    @property
    def part_logs(self) -> Path:
        """What each part said."""
        return self.folder / "parts"

    def path(self, name: str) -> Path:
        """A folder or file of a part."""
        return self.folder / name


def new_demo(folder: Path, plan: Plan) -> Demo:
    """A demo in a folder that is empty or isn't there. Raises DemoError."""
    folder = folder.absolute()
    if folder.exists() and any(each.name != "lock" for each in folder.iterdir()):
        what = "a demo: go on with --resume, or" if (folder / STATE).exists() else "files:"
        raise DemoError(f"{folder} has {what} name another folder (--dir)")
    folder.mkdir(parents=True, exist_ok=True)
    demo = Demo(folder, plan)
    demo.save()
    return demo


def usual_folder(*, resume: bool, first: Path = Path("demo")) -> Path:
    """Where nobody named a folder: `demo`, else the first of demo-2, demo-3, ... that isn't there;
    to go on, the last one that is."""
    folder = first
    for number in itertools.count(2):
        following = first.with_name(f"{first.name}-{number}")
        if not (following if resume else folder).exists():
            break
        folder = following
    return folder


@contextlib.contextmanager
def held(folder: Path) -> Generator[None]:
    """A demo's folder, for one process. Raises DemoError while another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo runs in {folder}: name another folder (--dir)") from None
        yield
