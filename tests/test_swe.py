"""SWE-bench style tasks end to end: tokens to commands in a sandbox, verdicts of real tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from producers.sandbox import Sandbox
from producers.sandbox_pool import Sandboxes
from producers.sandboxes.settings import SandboxSettings
from producers.tasks.swe.chat import ChatTemplate
from producers.tasks.swe.instances import read_instances
from producers.tasks.swe.task import SweTask
from producers.tasks.task import ToolCall, Verdict
from producers.tasks.validation import UNRECORDED
from tests.swe_instances import write_instances, write_smith_instance, write_tokenizer
from tests.task_sandboxes import local_sandboxes, verdict_on, with_sandboxes, write_template

pytestmark = pytest.mark.sandboxes

FIX_CLAMP = "sed -i 's/max(value, high)/min(value, high)/' src/numbers_.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the instances, the tokenizer and the templates."""
    return tmp_path_factory.mktemp("swe")


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatTemplate:
    """A real chat template."""
    return ChatTemplate.load(str(write_tokenizer(folder / "tokenizer")))


@pytest.fixture(scope="module")
def tasks(folder: Path, chat: ChatTemplate) -> dict[str, SweTask]:
    """The instances by the last part of their names; `func__1` is the one of SWE-smith's shape."""
    write_template(folder / "templates")
    files = (write_instances(folder), write_smith_instance(folder, folder / "templates"))
    found = [SweTask.of(one, chat) for file in files for one in read_instances(file)]
    return {task.task_id.split("-")[-1]: task for task in found}


@pytest.fixture(scope="module")
def settings(folder: Path, tasks: dict[str, SweTask]) -> Iterator[SandboxSettings]:
    """A real server of sandboxes."""
    with local_sandboxes(folder / "server", folder / "templates") as settings:
        yield settings


async def attempt(
    sandboxes: Sandboxes, task: SweTask, commands: Sequence[str]
) -> tuple[str, Verdict]:
    """A scripted policy's conversation, as its tokens say it, and the verdict on its work."""
    async with sandboxes.open(UNRECORDED) as sandbox:
        await task.setup(sandbox)
        scaffold = task.scaffold()
        tokens = scaffold.prompt()
        for command in commands:
            answer = f"I think that this helps.\n\n```bash\n{command}\n```<|im_end|>"
            tokens += (completion := task.chat.encode(answer))
            action = scaffold.read(completion)
            assert isinstance(action, ToolCall)
            result = await sandbox.run(action.command, timeout_s=action.timeout_s)
            observation = scaffold.observe(action, result)
            tokens += observation.token_ids
            if observation.done:
                break
        verdict = await task.verify(sandbox, partial(sandboxes.instead_of, sandbox, UNRECORDED))
        return task.chat.decode(tokens), verdict


def verdicts(
    settings: SandboxSettings, task: SweTask, scripts: Sequence[Sequence[str]]
) -> list[Verdict]:
    """The verdicts on what each script's commands leave in the repository."""

    async def work(script: Sequence[str], sandbox: Sandbox) -> None:
        for command in script:
            result = await sandbox.run(f"cd {task.instance.workdir}\n{command}", timeout_s=30)
            assert result.exit_code == 0, result.stderr

    async def run(sandboxes: Sandboxes) -> list[Verdict]:
        attempts = (verdict_on(sandboxes, task, partial(work, script)) for script in scripts)
        return await asyncio.gather(*attempts)

    return with_sandboxes(settings, run)


def test_a_policy_that_repairs_the_bug_is_rewarded(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    commands = ["cat src/numbers_.py", FIX_CLAMP, SUBMIT]
    text, verdict = with_sandboxes(settings, lambda boxes: attempt(boxes, tasks["clamp"], commands))
    assert (verdict.value, verdict.tests_passed, verdict.tests_failed) == (1.0, 5, 0)
    assert verdict.components == {"fail_to_pass": 1.0, "pass_to_pass": 1.0}
    assert verdict.isolated
    assert verdict.error_type is None
    assert "<|im_end|>\n<|im_start|>user\n<returncode>0</returncode>\n<output>\ndef clamp(" in text
    assert text.endswith(f"```bash\n{SUBMIT}\n```")


def test_a_policy_that_does_not_is_not(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    _, verdict = with_sandboxes(
        settings, lambda boxes: attempt(boxes, tasks["clamp"], ["ls", SUBMIT])
    )
    assert (verdict.value, verdict.tests_passed, verdict.tests_failed) == (0.0, 3, 2)
    assert verdict.components == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}


def test_a_repair_that_breaks_another_test_is_not_rewarded(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    broken = "sed -i 's/ len(values)/ 7/' src/numbers_.py"
    (verdict,) = verdicts(settings, tasks["clamp"], [[FIX_CLAMP, broken]])
    assert verdict.value == 0.0
    assert verdict.components == {"fail_to_pass": 1.0, "pass_to_pass": pytest.approx(1 / 3)}


def test_all_that_was_changed_comes_along(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    committed = [FIX_CLAMP, "git -c user.name=p -c user.email=p@p commit -qam repaired"]
    moved = [
        "mkdir src/deep && mv src/numbers_.py src/deep/impl.py && head -c 300 /dev/urandom > blob",
        "sed -i 's/max(value, high)/min(value, high)/' src/deep/impl.py",
        "echo 'from deep.impl import clamp, mean' > src/numbers_.py",
    ]
    found = verdicts(settings, tasks["clamp"], [committed, moved])
    assert [verdict.value for verdict in found] == [1.0, 1.0]


CHEATS = {
    "tests": "printf 'def test_inside(): pass\ndef test_above(): pass\n' > tests/test_clamp.py",
    "conftest": "printf 'import pytest\n@pytest.hookimpl(wrapper=True)\n"
    'def pytest_runtest_makereport():\n    report = yield\n    report.outcome = "passed"\n'
    "    return report\n' | tee -a conftest.py > tests/conftest.py",
    "configuration": "printf '[pytest]\naddopts = --collect-only\n' > pytest.ini",
    "a pytest of its own": "echo 'print(\"PASSED tests/test_clamp.py::test_above\")' > pytest.py",
    "no tests": "rm -r tests",
    "renamed tests": "git mv tests/test_clamp.py tests/kept.py",
}


def test_a_policy_that_edits_tests_gains_nothing(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    found = verdicts(settings, tasks["clamp"], [[cheat] for cheat in CHEATS.values()])
    for name, verdict in zip(CHEATS, found, strict=True):
        assert (name, verdict.tests_passed, verdict.value) == (name, 3, 0.0)


def test_a_policy_that_edits_tests_and_repairs_the_bug_is_rewarded(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    (verdict,) = verdicts(settings, tasks["clamp"], [[*list(CHEATS.values())[:4], FIX_CLAMP]])
    assert verdict.value == 1.0


BREAKS = {
    "NoDiff": ["rm -rf .git", "echo 'exit 0' > ~/.bash_profile"],
    "DiffNotApplied": ["mv tests tests_; echo > tests"],
    "NoResults": [
        "echo 'import os; os._exit(0)' > src/numbers_.py",
        "echo 'import os; os._exit(127)' > src/numbers_.py",
        "echo 'import os; os.remove(\"/home/user/.rollbook.log\")' > src/numbers_.py",
    ],
}


def test_work_that_keeps_the_tests_from_running_fails_them(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    scripts = [([command], reason) for reason, commands in BREAKS.items() for command in commands]
    found = verdicts(settings, tasks["clamp"], [script for script, _ in scripts])
    for verdict, (script, reason) in zip(found, scripts, strict=True):
        seen = (script, verdict.value, verdict.tests_failed, verdict.error_type)
        assert seen == (script, 0.0, 5, reason)


def test_work_that_hangs_fails_the_tests(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    task = tasks["clamp"]
    task = replace(task, instance=replace(task.instance, test_timeout_s=3.0))
    (verdict,) = verdicts(settings, task, [["echo 'while True: pass' > src/numbers_.py"]])
    assert (verdict.value, verdict.error_type) == (0.0, "TestsTimedOut")


def test_a_test_patch_that_does_not_apply_gives_no_reward(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    task = tasks["clamp"]
    stale = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    task = replace(task, instance=replace(task.instance, test_patch=stale))
    (verdict,) = verdicts(settings, task, [[FIX_CLAMP]])
    assert (verdict.value, verdict.error_type) == (None, "TaskError")
    assert "the tests could not be put in place: error: x: No such file" in (verdict.error or "")


def test_no_history_tells_the_policy_what_the_bug_is(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    async def objects(task: SweTask, sandboxes: Sandboxes) -> str:
        async with sandboxes.open(UNRECORDED, task.template) as sandbox:
            await task.setup(sandbox)
            command = f"""cd {task.instance.workdir}
git cat-file --batch-all-objects --batch-check='%(objecttype)' | grep -c commit
git log --all --format=%s; git status --short"""
            return (await sandbox.run(command, timeout_s=30)).stdout

    for name in ("clamp", "func__1"):
        found = with_sandboxes(settings, partial(objects, tasks[name]))
        assert (name, found) == (name, "1\nBase\n")


def test_an_instance_of_swe_smith_starts_from_its_branch_and_gets_its_tests_back(
    settings: SandboxSettings, tasks: dict[str, SweTask]
) -> None:
    task = tasks["func__1"]

    async def run(sandboxes: Sandboxes) -> tuple[Verdict, Verdict]:
        async def nothing(sandbox: Sandbox) -> None:
            pass

        empty = await verdict_on(sandboxes, task, nothing)
        return empty, await verdict_on(sandboxes, task, task.apply_gold)

    empty, gold = with_sandboxes(settings, run)
    assert (empty.value, empty.tests_passed, empty.tests_failed) == (0.0, 1, 2)
    assert (gold.value, gold.tests_passed, gold.tests_failed) == (1.0, 3, 0)


def test_a_task_says_what_it_is(tasks: dict[str, SweTask]) -> None:
    clamp, mean, smith = tasks["clamp"], tasks["mean"], tasks["func__1"]
    assert clamp.task_id == "tiny__numbers-clamp"
    assert clamp.repository == clamp.stratum == "tiny/numbers"
    assert clamp.statement == "clamp gives wrong results."
    assert (clamp.template, smith.template) == (None, "numbers-image")
    assert len({clamp.checksum, mean.checksum, smith.checksum}) == 3
    other = replace(clamp, instance=replace(clamp.instance, test_patch=""))
    assert other.checksum != clamp.checksum
