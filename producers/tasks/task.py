"""What an agent loop sees of a task: a prompt, actions read from tokens, observations, a verdict.

Invariants:

1. A scaffold is pure: it turns tokens into actions and results into tokens, and runs nothing. One
   scaffold serves one attempt, and its answers depend on nothing but what it was given.
2. A prompt is only ever extended: turn n's prompt is turn n-1's prompt, its completion and
   `Observation.token_ids`, unless `new_segment` says that the history was rewritten.
3. A verdict's value is null when the verifier gave none, and never 0 in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from producers.sandbox import CommandResult, Sandbox

    OpenSandbox = Callable[[str | None], AbstractAsyncContextManager[Sandbox]]
    """Opens another sandbox of a template; None: the default one. Killed at the exit."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The policy asked for a command in its sandbox."""

    name: str
    """Name of the tool."""
    arguments: str
    """What the policy passed to it, as it wrote it."""
    command: str
    """What is run, by bash."""
    timeout_s: float
    """Most seconds that it may take."""


@dataclass(frozen=True, slots=True)
class Submit:
    """The policy says that it is done."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The policy wrote no valid action, which costs it a turn."""

    reason: str
    """The rule that it broke."""


Action = ToolCall | Submit | Nothing


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees of its action's result."""

    token_ids: tuple[int, ...]
    """What follows the completion in the next prompt; empty when done."""
    done: bool
    """Whether the attempt ends here by the task's own rule."""
    new_segment: tuple[int, ...] | None = None
    """The whole next prompt, where it can't extend the tokens so far; null: it does."""
    segment_reason: str | None = None
    """Why it can't; null: it does."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier said, in the terms of the fact `reward_assigned`."""

    value: float | None
    """The reward; null when the verifier gave none."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Parts of the reward by name."""
    tests_passed: int | None = None
    """Tests that passed; null: unknown."""
    tests_failed: int | None = None
    """Tests that failed, those that did not run included; null: unknown."""
    verify_s: float | None = None
    """Seconds that the verifier took."""
    isolated: bool = False
    """Whether the tests ran apart from the policy's sandbox."""
    sandbox_id: str | None = None
    """The sandbox that the tests ran in."""
    error_type: str | None = None
    """Raw type of the verifier's error."""
    error: str | None = None
    """The error's text."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of one attempt. Each ends it with a stop reason of its own."""

    turns: int
    """Most turns."""
    output_tokens: int
    """Most tokens that one turn may generate."""
    context_tokens: int
    """Most tokens that the attempt may grow to."""
    clock_s: float
    """Most seconds on the policy's clock."""


class Scaffold(Protocol):
    """Turns tokens into actions and results into tokens, for one attempt."""

    def prompt(self) -> list[int]:
        """Token ids of the first turn's prompt."""
        ...

    def read(self, completion: Sequence[int]) -> Action:
        """The action in a turn's completion, stop token included. Never raises: what can't be read
        is Nothing."""
        ...

    def observe(self, action: Action, result: CommandResult | None) -> Observation:
        """What follows. `result` is what a ToolCall gave, and None for other actions. A sandbox
        that failed is not told to the policy."""
        ...


class Task(Protocol):
    """One problem instance. Its properties are those of the fact `task_declared`."""

    @property
    def task_id(self) -> str:
        """Name of the instance, unique in its dataset."""
        ...

    @property
    def stratum(self) -> str | None:
        """The part of the dataset that it belongs to."""
        ...

    @property
    def stratum_weight(self) -> float | None:
        """Weight of the stratum in weighted figures."""
        ...

    @property
    def checksum(self) -> str:
        """Digest of the statement, the tests and the image: another one, another task."""
        ...

    @property
    def repository(self) -> str | None:
        """Repository that the task is set in."""
        ...

    @property
    def base_commit(self) -> str | None:
        """Commit that the attempt starts from."""
        ...

    @property
    def statement(self) -> str:
        """What the agent is asked to do."""
        ...

    @property
    def template(self) -> str | None:
        """Sandbox template that it runs in; None: the default one."""
        ...

    @property
    def verifier(self) -> str:
        """Name of the program that gives its reward."""
        ...

    @property
    def verifier_version(self) -> str:
        """Another version may give another reward for the same work."""
        ...

    def scaffold(self) -> Scaffold:
        """A scaffold for a new attempt."""
        ...

    async def setup(self, sandbox: Sandbox) -> None:
        """Put the repository into a new sandbox. Raises SandboxError, or TaskError when the sandbox
        works but the repository can't be put there."""
        ...

    async def apply_gold(self, sandbox: Sandbox) -> None:
        """Make the known-good change where `setup` was done. Raises like it."""
        ...

    async def verify(self, sandbox: Sandbox, open_sandbox: OpenSandbox) -> Verdict:
        """Score what was done in `sandbox`, in it or in one that `open_sandbox` opens. Raises
        SandboxError when a sandbox fails; every other failure is a verdict without a value."""
        ...


class TaskError(Exception):
    """A task's own files or commands are at fault: value, rule and place."""


class TasksRefused(ValueError):
    """Tasks could not be loaded: value, rule and place."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks of a run, and what they ask of the model. Its names go into `run_declared`."""

    dataset: str
    """Name of the dataset."""
    split: str | None
    """Split of the dataset."""
    subset: str | None
    """How the tasks were chosen from the split; null: all of them."""
    tasks: tuple[Task, ...]
    """In the dataset's order, with unique ids, at least one."""
    scaffold: str
    """Name and version of the scaffold."""
    caps: Caps
    """Limits that fit these tasks."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn."""
    action_tokens: int | None = None
    """An action is exactly this many tokens; null: it ends with a stop token, and one that doesn't
    was cut off by the output cap."""
    vocab_size: int | None = None
    """The model must have exactly this many tokens; null: its tokenizer decides."""
    tokenizer: str | None = None
    """Name or folder of the tokenizer that the prompts are written with; null: none."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise TasksRefused(f"a task set must have a task, got none ({self.dataset})")
        seen: set[str] = set()
        for task in self.tasks:
            if task.task_id in seen:
                raise TasksRefused(f"task id {task.task_id} must be unique ({self.dataset})")
            seen.add(task.task_id)

    @property
    def subset_sha256(self) -> str:
        """Digest of the sorted task ids, one a line."""
        ids = sorted(task.task_id for task in self.tasks)
        return hashlib.sha256("\n".join(ids).encode()).hexdigest()
