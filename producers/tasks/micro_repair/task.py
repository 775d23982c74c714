"""A micro_repair task: setup, gold change and verdict, each one command in the sandbox.

Invariant: a verdict comes from tests that the task has just written, whatever is in the sandbox.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from producers.tasks.micro_repair.bugs import SPLIT_SIZES, Bug, draw_bugs
from producers.tasks.micro_repair.repository import (
    FOLDER,
    RUN_TESTS,
    edit_command,
    files_of,
    source_line,
    write_command,
)
from producers.tasks.micro_repair.scaffold import GREEN, RED, TIMEOUT_S, MicroRepairScaffold
from producers.tasks.micro_repair.transitions import TURNS
from producers.tasks.micro_repair.vocabulary import FUNCTIONS, LINES, VOCABULARY
from producers.tasks.task import Caps, TaskError, TaskSet, TasksRefused, Verdict

if TYPE_CHECKING:
    from producers.sandbox import Sandbox
    from producers.tasks.task import OpenSandbox

VERSION = "1"
"""Of the files, the commands and the verdict."""
CAPS = Caps(turns=TURNS, output_tokens=1, context_tokens=5 + TURNS + 3 * (TURNS - 1), clock_s=120.0)
"""An attempt is at most 22 tokens: the prompt, a token a turn, three to see between turns."""
TRACE_LINES = 100
VERBOSE_CONTEXT = 128
"""Tokens of an attempt where some tests are verbose: one of their traces fits, and not a second."""

_SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MicroRepair:
    """One repository with one wrong operator."""

    bug: Bug
    """What is wrong in it."""

    task_id: str
    """The bug's name."""
    stratum: str
    """Family of the wrong operator."""
    checksum: str
    """Digest of the files and the version."""
    statement: str
    """What the tests say before any edit."""
    trace_lines: int = 0
    """Lines that its tests print beside their results: contexts run away with them."""
    stratum_weight: None = None
    """Strata aren't weighted."""
    repository: str = "micro_repair"
    """Generated with the project."""
    base_commit: None = None
    """The repository has no history."""
    template: None = None
    """The default one, with bash, sed and python3."""
    verifier: str = "micro_repair"
    """Its own tests."""
    verifier_version: str = VERSION
    """Version of the tests' text and its reading."""

    @classmethod
    def of(cls, bug: Bug, trace_lines: int = 0) -> MicroRepair:
        """The task for a bug."""
        files = files_of(bug, trace_lines)
        digest = hashlib.sha256(json.dumps([VERSION, files]).encode()).hexdigest()
        name = FUNCTIONS[bug.right].name
        statement = (
            f"The tests of {name} fail. Line {bug.line + 1} of functions.py is"
            f" `{source_line(bug.right, bug.wrong)}`. Make all tests pass."
        )
        return cls(bug, bug.name, bug.family, digest, statement, trace_lines)

    def scaffold(self) -> MicroRepairScaffold:
        """A scaffold for a new attempt."""
        return MicroRepairScaffold(self.bug)

    async def setup(self, sandbox: Sandbox) -> None:
        """Write the repository."""
        files = files_of(self.bug, self.trace_lines)
        result = await sandbox.run(write_command(files), timeout_s=TIMEOUT_S)
        if result.exit_code != 0:
            raise TaskError(
                f"the repository could not be written: {result.stderr.strip()!r},"
                f" exit code {result.exit_code} (task {self.task_id})"
            )

    async def apply_gold(self, sandbox: Sandbox) -> None:
        """Put the right operator in, as a policy would."""
        command = edit_command(self.bug.line, self.bug.right)
        result = await sandbox.run(command, timeout_s=TIMEOUT_S)
        if result.exit_code not in (GREEN, RED):  # whether it is right, the verifier says
            raise TaskError(
                f"the right operator could not be put in: {result.stderr.strip()!r},"
                f" exit code {result.exit_code} (task {self.task_id})"
            )

    async def verify(self, sandbox: Sandbox, open_sandbox: OpenSandbox) -> Verdict:
        """Write the tests anew and run them, in the policy's own sandbox: its commands can change
        nothing but operators. 1 if all pass, else 0."""
        files = files_of(self.bug, self.trace_lines)
        tests = write_command({"tests.py": files["tests.py"]})
        began = time.monotonic()
        result = await sandbox.run(f"{tests} && {RUN_TESTS}", timeout_s=TIMEOUT_S)
        seconds = time.monotonic() - began
        found = _SUMMARY.findall(result.stdout)
        if not found or result.exit_code not in (GREEN, RED):
            return Verdict(
                value=None,
                verify_s=seconds,
                sandbox_id=sandbox.id,
                error_type="TestsTimedOut" if result.timed_out else "TestsDidNotRun",
                error=f"exit code {result.exit_code} in ~/{FOLDER}: {result.stderr}",
            )
        passed, failed = map(int, found[-1])
        return Verdict(
            value=float(result.exit_code == GREEN and passed == LINES),
            components={"tests": passed / LINES},
            tests_passed=passed,
            tests_failed=failed,
            verify_s=seconds,
            sandbox_id=sandbox.id,
        )


def micro_repair(split: str, seed: int = 0, limit: int | None = None, verbose: int = 0) -> TaskSet:
    """The tasks of a split. `limit` takes the first ones; the tests of the first `verbose` ones
    print far more than a context has room for. Raises TasksRefused."""
    if split not in SPLIT_SIZES:
        raise TasksRefused(
            f"the split of micro_repair must be one of {', '.join(SPLIT_SIZES)}, got {split!r}"
        )
    bugs = draw_bugs(split, seed)[:limit]
    subset = f"seed={seed}" if limit is None else f"seed={seed}, first {limit}"
    subset += f", verbose={verbose}" if verbose else ""
    return TaskSet(
        dataset="micro_repair",
        split=split,
        subset=subset,
        tasks=tuple(
            MicroRepair.of(bug, TRACE_LINES if number < verbose else 0)
            for number, bug in enumerate(bugs)
        ),
        scaffold=f"micro_repair {VERSION}",
        caps=replace(CAPS, context_tokens=VERBOSE_CONTEXT) if verbose else CAPS,
        action_tokens=1,
        vocab_size=VOCABULARY,
    )
