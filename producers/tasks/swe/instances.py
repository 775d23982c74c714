"""Rows of SWE-bench and SWE-smith datasets, checked field by field.

    instance_id         unique in the file
    problem_statement   what the policy is told
    patch               the gold patch; in SWE-smith the patch that made the bug
    test_patch          applied before the tests run; may be missing
    FAIL_TO_PASS        pytest ids, a list or (SWE-bench) a list in JSON in a string
    PASS_TO_PASS        likewise; may be empty
    base_commit         a commit or, in SWE-smith, missing: the branch named as the instance
    repo, version       for people
    image_name          the sandbox template that has the repository; or
    source              a git repository or a folder here, from the file's own folder
    workdir             where the repository lies in the sandbox; /testbed in images
    test_command        what runs the tests; `{files}` becomes the files of the named tests
    test_timeout_s      most seconds that it may take; 1,800 when missing
    stratum             part of the dataset; the repo when missing

Other fields are let be. An error says the value, the rule, and the line and field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producers.tasks.task import TasksRefused

PYTEST = "python3 -m pytest -rA --color=no -p no:cacheprovider {files}"
TEST_TIMEOUT_S = 1800.0
IMAGE_WORKDIR = "/testbed"
UPLOAD_WORKDIR = "~/testbed"


@dataclass(frozen=True, slots=True)
class Instance:
    """One problem instance."""

    instance_id: str
    """Unique in its dataset."""
    repo: str | None
    """Name of the repository, for people."""
    base_commit: str | None
    """Commit or branch that the attempt starts from; null: a folder as it is."""
    statement: str
    """The problem statement."""
    patch: str
    """A diff; the gold patch, or what made the bug."""
    reversed_patch: bool
    """Whether the gold change is `patch` taken back, as in SWE-smith."""
    test_patch: str
    """A diff that brings the tests; may be empty."""
    tests_removed: bool
    """Whether the base's last commit removed the failing tests' files, as in SWE-smith."""
    fail_to_pass: tuple[str, ...]
    """Tests that fail at the base and pass with the gold patch; at least one."""
    pass_to_pass: tuple[str, ...]
    """Tests that pass before and after."""
    image: str | None
    """Sandbox template that has the repository; null: it is uploaded from `source`."""
    source: Path | None
    """Git repository or folder on this machine."""
    workdir: str
    """Where the repository lies in the sandbox."""
    test_command: str
    """Runs the tests; `{files}` stands for their files."""
    test_timeout_s: float
    """Most seconds that it may take."""
    stratum: str | None
    """Part of the dataset."""

    @property
    def tests(self) -> tuple[str, ...]:
        """All named tests."""
        return (*self.fail_to_pass, *self.pass_to_pass)


def read_instances(path: Path) -> list[Instance]:
    """The instances of a file: one JSON object a line (.jsonl), or a list of them (.json). Raises
    TasksRefused, also for a file without any."""
    instances: list[Instance] = []
    places: dict[str, str] = {}
    for place, row in _rows(path):
        instance = read_instance(row, place, path.parent)
        if (first := places.get(instance.instance_id)) is not None:
            raise TasksRefused(
                f"instance_id must be unique, got {instance.instance_id} again ({place}; {first})"
            )
        places[instance.instance_id] = place
        instances.append(instance)
    if not instances:
        raise TasksRefused(f"a task file must have at least one instance, got none ({path})")
    return instances


def read_instance(row: Any, place: str, folder: Path) -> Instance:
    """The instance in a row. `folder` is where a relative `source` starts. Raises TasksRefused."""
    if not isinstance(row, Mapping):
        raise TasksRefused(f"an instance must be an object, got {type(row).__name__} ({place})")
    fields = _Fields(row, place)  # pyright: ignore[reportUnknownArgumentType]
    instance_id = fields.text("instance_id")
    image = fields.optional("template") or fields.optional("image_name")
    source = fields.optional("source")
    if (image is None) == (source is None):
        raise fields.refused("image_name", "give either image_name or source, and not both")
    smith = any("swesmith" in (fields.optional(name) or "") for name in ("repo", "image_name"))
    base_commit = fields.optional("base_commit") or (instance_id if smith else None)
    if image is not None and base_commit is None:
        raise fields.refused("base_commit", "must be the commit in the image to start from")
    workdir = fields.optional("workdir") or (UPLOAD_WORKDIR if source else IMAGE_WORKDIR)
    if not re.fullmatch(r"(~?/)?[\w.][\w./-]*", workdir):
        raise fields.refused("workdir", "must be a plain path")
    command = fields.optional("test_command") or fields.optional("test_cmd") or PYTEST
    fail_to_pass = fields.tests("FAIL_TO_PASS", command)
    if not fail_to_pass:
        raise fields.refused("FAIL_TO_PASS", "must name at least one test")
    return Instance(
        instance_id=instance_id,
        repo=fields.optional("repo"),
        base_commit=base_commit,
        statement=fields.text("problem_statement"),
        patch=fields.text("patch"),
        reversed_patch=smith,
        test_patch=fields.optional("test_patch") or "",
        tests_removed=smith and fields.optional("base_commit") is None,
        fail_to_pass=fail_to_pass,
        pass_to_pass=fields.tests("PASS_TO_PASS", command),
        image=image,
        source=folder / source if source else None,
        workdir=workdir,
        test_command=command,
        test_timeout_s=fields.seconds("test_timeout_s", TEST_TIMEOUT_S),
        stratum=fields.optional("stratum") or fields.optional("repo"),
    )


class _Fields:
    """A row's fields by their types."""

    def __init__(self, row: Mapping[str, Any], place: str) -> None:
        self._row = row
        self._place = place

    def refused(self, name: str, rule: str) -> TasksRefused:
        value = json.dumps(self._row[name])[:80] if name in self._row else "nothing"
        which = self._row.get("instance_id")
        instance = f", instance {which}" if isinstance(which, str) else ""
        return TasksRefused(f"{name}: {rule}, got {value} ({self._place}{instance})")

    def optional(self, name: str) -> str | None:
        value = self._row.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise self.refused(name, "must be a string")
        return value

    def text(self, name: str) -> str:
        value = self.optional(name)
        if value is None or not value.strip():
            raise self.refused(name, "must be a string with text in it")
        return value

    def seconds(self, name: str, default: float) -> float:
        value = self._row.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise self.refused(name, "must be a positive number of seconds")
        return float(value)

    def tests(self, name: str, command: str) -> tuple[str, ...]:
        value: Any = self._row.get(name, [])
        if isinstance(value, str):  # as SWE-bench has it
            try:
                value = json.loads(value or "[]")
            except ValueError:
                raise self.refused(name, "must be a list, or one in JSON") from None
        if not isinstance(value, list) or not all(isinstance(test, str) for test in value):  # pyright: ignore[reportUnknownVariableType]
            raise self.refused(name, "must be a list of strings")
        tests: tuple[str, ...] = tuple(value)  # pyright: ignore[reportUnknownArgumentType]
        for test in tests:
            if "{files}" in command and not re.match(r"[^:\s]+::\S", test):
                raise self.refused(name, f"must be pytest ids as file::test, not {test!r}")
        return tests


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Each row with its place."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TasksRefused(f"a task file must be readable: {error} ({path})") from None
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield (place := f"{path}, line {number}"), _json(line, place)
        return
    rows = _json(text, str(path))
    if not isinstance(rows, list):
        raise TasksRefused(f"a .json task file must be a list, got {type(rows).__name__} ({path})")
    for number, row in enumerate(rows):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        yield f"{path}, row {number}", row


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TasksRefused(f"must be JSON: {error} ({place})") from None
