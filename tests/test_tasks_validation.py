"""Validation: gold passes, empty fails, verdicts repeat; what a failed sandbox leaves unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from producers.sandboxes.settings import SandboxSettings
from producers.tasks.micro_repair.task import micro_repair
from producers.tasks.swe.chat import ChatTemplate
from producers.tasks.swe.instances import read_instances
from producers.tasks.swe.task import SweTask
from producers.tasks.task import Task, Verdict
from producers.tasks.validation import UNRECORDED, Validation, conclude, validate
from tests.recorded import Make, facts_in, of
from tests.swe_instances import write_instances, write_tokenizer
from tests.task_sandboxes import local_sandboxes, with_sandboxes, write_template

pytestmark = pytest.mark.sandboxes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a template with pytest."""
    folder = tmp_path_factory.mktemp("validation")
    write_template(folder / "templates")
    return folder


@pytest.fixture(scope="module")
def settings(folder: Path) -> Iterator[SandboxSettings]:
    """A real server of sandboxes."""
    with local_sandboxes(folder / "server", folder / "templates") as settings:
        yield settings


@pytest.fixture(scope="module")
def instances(folder: Path) -> dict[str, SweTask]:
    """Three instances; the gold patch of the last one repairs nothing."""
    chat = ChatTemplate.load(str(write_tokenizer(folder / "tokenizer")))
    found = [SweTask.of(one, chat) for one in read_instances(write_instances(folder))]
    return {task.task_id.split("-")[-1]: task for task in found}


def validated(settings: SandboxSettings, task: Task, repeats: int = 1) -> Validation:
    return with_sandboxes(settings, lambda boxes: validate(task, boxes, UNRECORDED, repeats))


def test_a_gold_patch_that_repairs_nothing_is_refused(
    settings: SandboxSettings, instances: dict[str, SweTask], make: Make, sqlite_url: str
) -> None:
    recorder = make(sqlite_url)

    async def run(sandboxes: Any) -> None:
        for task in instances.values():
            await validate(task, sandboxes, recorder.bind())

    with_sandboxes(settings, run)
    assert recorder.close()
    facts = facts_in(sqlite_url)
    assert [
        (fact.task_id, fact.valid, fact.gold_passes, fact.empty_fails, fact.repeats, fact.flaky)
        for fact in of(facts, "TaskValidated")
    ] == [
        ("tiny__numbers-clamp", True, True, True, 1, None),
        ("tiny__numbers-mean", True, True, True, 1, None),
        ("tiny__numbers-not_repaired", False, False, True, 1, None),
    ]
    first = of(facts, "TaskValidated")[0]
    assert first.task_checksum == instances["clamp"].checksum
    assert first.gold_s > 0
    assert first.empty_s > 0
    assert not of(facts, "ProducerLost")  # sandboxes of no attempt are no facts


def test_a_task_is_tried_as_often_as_asked(settings: SandboxSettings) -> None:
    for task in micro_repair("held_out", limit=2).tasks:
        found = validated(settings, task, repeats=3)
        assert (found.valid, found.gold_passes, found.empty_fails) == (True, True, True)
        assert (found.repeats, found.flaky, found.error_type) == (3, False, None)


def test_a_gold_patch_that_does_not_apply_is_refused(
    settings: SandboxSettings, instances: dict[str, SweTask]
) -> None:
    task = instances["clamp"]
    task = replace(task, instance=replace(task.instance, patch="no diff\n"))
    found = validated(settings, task)
    assert (found.valid, found.gold_passes, found.empty_fails) == (False, None, True)
    assert found.error_type == "TaskError"
    assert "the gold patch does not apply" in (found.error or "")


def test_a_sandbox_that_fails_says_nothing_about_a_task(folder: Path) -> None:
    (task,) = micro_repair("train", limit=1).tasks
    faults = ["start_refused:p=1,status=507"]
    with local_sandboxes(folder / "faulty", folder / "templates", faults) as settings:
        found = validated(replace(settings, start_tries=1), task)
    assert (found.valid, found.gold_passes, found.empty_fails, found.flaky) == (
        False,
        None,
        None,
        None,
    )
    assert found.error_type == "SandboxException"


def test_repeats_must_be_positive(settings: SandboxSettings) -> None:
    (task,) = micro_repair("train", limit=1).tasks
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        validated(settings, task, repeats=0)


UNKNOWN = None
"""A try without a verdict."""


@pytest.mark.parametrize(
    ("gold", "empty", "valid", "gold_passes", "empty_fails", "flaky"),
    [
        ([1.0], [0.0], True, True, True, None),
        ([1.0, 1.0], [0.0, 0.0], True, True, True, False),
        ([1.0, 0.0], [0.0, 0.0], False, False, True, True),
        ([1.0, 1.0], [0.0, 1.0], False, True, False, True),
        ([0.5], [0.0], False, False, True, None),
        ([1.0], [1.0], False, True, False, None),
        ([UNKNOWN], [0.0], False, None, True, None),
        ([1.0, UNKNOWN], [0.0, 0.0], False, None, True, None),
        ([0.0, UNKNOWN], [0.0, 0.0], False, False, True, None),
        ([1.0, 0.0, UNKNOWN], [0.0] * 3, False, False, True, True),
        ([UNKNOWN, UNKNOWN], [UNKNOWN, UNKNOWN], False, None, None, None),
    ],
)
def test_a_task_is_valid_if_every_try_agrees(
    gold: list[float | None],
    empty: list[float | None],
    valid: bool,
    gold_passes: bool | None,
    empty_fails: bool | None,
    flaky: bool | None,
) -> None:
    found = conclude([_verdict(value) for value in gold], [_verdict(value) for value in empty])
    assert (found.valid, found.gold_passes, found.empty_fails) == (valid, gold_passes, empty_fails)
    assert found.flaky == flaky
    assert (found.error_type is None) == (None not in (*gold, *empty))


def _verdict(value: float | None) -> Verdict:
    return Verdict(value, error_type=None if value is not None else "Gone")
