"""A SWE-bench style task: setup, gold patch, and a verdict from tests in a sandbox of their own.

    policy's sandbox ──diff──▶ fresh sandbox at the base ─▶ diff without protected files
                                                         ─▶ tests as the task has them ─▶ run, read

Invariants:

1. What the policy did reaches its verdict only as a diff.
2. The value is 1 if every named test passes in the fresh sandbox, else 0: also where no diff could
   be had, or no test ran. A task whose gold patch was validated has tests that run, so the work
   is at fault, and a policy gains nothing by breaking the tests' process.
3. The value is null only where something failed that no diff can bring about: the setup of the
   fresh sandbox, or the test patch, which is applied before the diff.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from producers.sandbox_errors import SandboxError
from producers.tasks.swe.chat import ChatTemplate
from producers.tasks.swe.commands import (
    ARCHIVE,
    DIFF,
    DIFF_NOT_APPLIED,
    DIFF_TOO_LARGE,
    GOLD,
    RESULTS,
    TEST_PATCH,
    apply_command,
    diff_command,
    gold_command,
    results_command,
    setup_command,
    test_command,
)
from producers.tasks.swe.instances import Instance
from producers.tasks.swe.results import passed, read_results
from producers.tasks.swe.scaffold import BashScaffold
from producers.tasks.swe.sources import archive_of, check_source
from producers.tasks.task import TaskError, Verdict

if TYPE_CHECKING:
    from producers.sandbox import CommandResult, Sandbox
    from producers.tasks.task import OpenSandbox

VERSION = "1"
"""Of the verifier: another one may give another verdict."""
STEP_TIMEOUT_S = 300.0
"""Of a step that handles files: a large repository takes a while."""


@dataclass(frozen=True, slots=True)
class SweTask:
    """One instance, with the chat template that its policy is spoken to by."""

    instance: Instance
    """The row."""
    chat: ChatTemplate
    """The model's chat template."""
    source_digest: str | None
    """Digest of what is uploaded; null: the image has it."""
    verifier: str = "pytest"
    """The named tests."""
    verifier_version: str = VERSION
    """Version of how the tests are run and read."""
    stratum_weight: None = None
    """Strata aren't weighted."""

    @classmethod
    def of(cls, instance: Instance, chat: ChatTemplate) -> SweTask:
        """The task of an instance. Raises TasksRefused when what is to be uploaded isn't there."""
        digest = None
        if instance.source is not None:
            place = f"instance {instance.instance_id}"
            digest = check_source(instance.source, instance.base_commit, place)
        return cls(instance, chat, digest)

    @property
    def task_id(self) -> str:
        """The instance's id."""
        return self.instance.instance_id

    @property
    def stratum(self) -> str | None:
        """As the row says; its repository, where it says nothing."""
        return self.instance.stratum

    @property
    def checksum(self) -> str:
        """Digest of the statement, the tests and the repository."""
        one = self.instance
        parts = [VERSION, one.statement, one.test_patch, one.tests, one.test_command]
        place = [one.image, one.base_commit, one.tests_removed, self.source_digest, one.workdir]
        return hashlib.sha256(json.dumps([*parts, *place]).encode()).hexdigest()

    @property
    def repository(self) -> str | None:
        """Its name."""
        return self.instance.repo

    @property
    def base_commit(self) -> str | None:
        """The commit that the attempt starts from."""
        return self.instance.base_commit

    @property
    def statement(self) -> str:
        """The problem statement."""
        return self.instance.statement

    @property
    def template(self) -> str | None:
        """The image; None: the default template."""
        return self.instance.image

    def scaffold(self) -> BashScaffold:
        """A scaffold for a new attempt."""
        return BashScaffold(self.instance, self.chat)

    async def setup(self, sandbox: Sandbox) -> None:
        """Make the base, without history."""
        await self._make_base(sandbox, history=False)

    async def _make_base(self, sandbox: Sandbox, *, history: bool) -> None:
        one = self.instance
        if one.source is not None:
            archive = await asyncio.to_thread(archive_of, one.source, one.base_commit)
            await sandbox.write(ARCHIVE, archive)
        command = setup_command(one, history=history)
        result = await sandbox.run(command, timeout_s=STEP_TIMEOUT_S)
        self._require(result, "the repository could not be set up")

    async def apply_gold(self, sandbox: Sandbox) -> None:
        """Apply the gold patch, where a policy would work."""
        await sandbox.write(GOLD, self.instance.patch)
        result = await sandbox.run(gold_command(self.instance), timeout_s=STEP_TIMEOUT_S)
        self._require(result, "the gold patch does not apply")

    async def verify(self, sandbox: Sandbox, open_sandbox: OpenSandbox) -> Verdict:
        """Carry the diff over and run the named tests. Waiting for the other sandbox is not in
        the seconds that it took."""
        began = time.monotonic()
        diff = await self._take_diff(sandbox)
        seconds = time.monotonic() - began
        if isinstance(diff, Verdict):
            return replace(diff, verify_s=seconds)
        async with open_sandbox(self.template) as fresh:
            began = time.monotonic()
            try:
                await self._make_base(fresh, history=True)
                verdict = await self._test(diff, fresh)
            except TaskError as error:
                verdict = Verdict(None, error_type=type(error).__name__, error=str(error))
            seconds += time.monotonic() - began
            return replace(verdict, isolated=True, sandbox_id=fresh.id, verify_s=seconds)

    async def _take_diff(self, sandbox: Sandbox) -> bytes | Verdict:
        taken = await sandbox.run(diff_command(self.instance), timeout_s=STEP_TIMEOUT_S)
        if taken.exit_code == 0:
            diff = await _read(sandbox, DIFF)
            if diff is not None:
                return diff
        error_type = "DiffTooLarge" if taken.exit_code == DIFF_TOO_LARGE else "NoDiff"
        return replace(self._failed(error_type, taken.stderr), sandbox_id=sandbox.id)

    async def _test(self, diff: bytes, fresh: Sandbox) -> Verdict:
        await fresh.write(DIFF, diff)
        await fresh.write(TEST_PATCH, self.instance.test_patch)
        applied = await fresh.run(apply_command(self.instance), timeout_s=STEP_TIMEOUT_S)
        if applied.exit_code == DIFF_NOT_APPLIED:
            return self._failed("DiffNotApplied", applied.stderr)
        self._require(applied, "the tests could not be put in place")
        # From here on the policy's code runs: whatever fails in the sandbox may be its doing.
        limit_s = self.instance.test_timeout_s
        ran = await fresh.run(test_command(self.instance), timeout_s=limit_s)
        collected = await fresh.run(results_command(), timeout_s=STEP_TIMEOUT_S)
        lines = await _read(fresh, RESULTS) or b""
        return self._scored(read_results(lines.decode(errors="replace")), ran, collected.stdout)

    def _scored(self, results: dict[str, str], ran: CommandResult, log: str) -> Verdict:
        one = self.instance
        right = len(passed(one.tests, results))
        wrong = len(one.tests) - right
        parts = {"fail_to_pass": one.fail_to_pass, "pass_to_pass": one.pass_to_pass}
        error_type = "TestsTimedOut" if ran.timed_out else None if results else "NoResults"
        return Verdict(
            value=float(wrong == 0 and not ran.timed_out),
            components={
                name: len(passed(tests, results)) / len(tests)
                for name, tests in parts.items()
                if tests
            },
            tests_passed=right,
            tests_failed=wrong,
            error_type=error_type,
            error=log if error_type else None,
        )

    def _failed(self, error_type: str, error: str) -> Verdict:
        """No test could run, by what the policy left behind."""
        return Verdict(
            value=0.0,
            tests_passed=0,
            tests_failed=len(self.instance.tests),
            error_type=error_type,
            error=error,
        )

    def _require(self, result: CommandResult, what: str) -> None:
        if result.exit_code != 0:
            raise TaskError(
                f"{what}: {(result.stderr or result.stdout).strip()},"
                f" exit code {result.exit_code} (task {self.task_id})"
            )


async def _read(sandbox: Sandbox, path: str) -> bytes | None:
    """None: there is no such file, which the policy may have seen to."""
    try:
        return await sandbox.read(path)
    except SandboxError as error:
        if error.error_type != "FileNotFoundException":
            raise
        return None
