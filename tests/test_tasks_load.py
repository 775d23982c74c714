"""Loading tasks: by name or file, and an error with value, rule and place for every slip."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from producers.tasks.load import load_tasks
from producers.tasks.swe.instances import read_instances
from producers.tasks.task import TasksRefused
from tests.swe_instances import CHATML, write_instances, write_tokenizer

ROW: dict[str, Any] = {
    "instance_id": "a__b-1",
    "base_commit": "abc",
    "image_name": "image",
    "problem_statement": "It fails.",
    "patch": "diff",
    "FAIL_TO_PASS": ["tests/test_a.py::test_one"],
    "PASS_TO_PASS": [],
}


def test_generated_tasks_are_named_by_split_and_seed() -> None:
    assert len(load_tasks("micro_repair:train").tasks) == 120
    assert len(load_tasks("micro_repair:held_out?seed=3").tasks) == 40
    assert load_tasks("micro_repair:held_out?seed=3&limit=5").subset == "seed=3, first 5"


def test_a_file_of_instances_is_a_task_set(tmp_path: Path) -> None:
    path = write_instances(tmp_path)
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    tasks = load_tasks(f"{path}?tokenizer={tokenizer}&split=test&limit=2")
    assert (tasks.dataset, tasks.split, tasks.subset) == ("tiny", "test", "limit=2")
    assert [task.task_id for task in tasks.tasks] == ["tiny__numbers-clamp", "tiny__numbers-mean"]
    assert (tasks.scaffold, tasks.stop_token_ids) == ("bash 1", (258, 256))
    assert (tasks.tokenizer, tasks.vocab_size, tasks.action_tokens) == (str(tokenizer), None, None)
    one = load_tasks(f"{path}?ids=tiny__numbers-mean&dataset=numbers", tokenizer=str(tokenizer))
    assert (one.dataset, len(one.tasks)) == ("numbers", 1)
    assert one.subset_sha256 == ("d999152282e9d7f08a6a10ee81392c4cdbf0a8267757dc17397dd54f79a498f4")


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("micro_repair:test", "the split of micro_repair must be one of train, held_out"),
        ("micro_repair:train?seed=x", "seed must be a whole number, got 'x'"),
        ("micro_repair:train?limit=0", "limit must be at least 1, got 0"),
        ("micro_repair:train?split=a", "option split must be one of limit, seed"),
        ("micro_repair:train?seed", "options must be name=value, each once, got 'seed'"),
        ("micro_repair:train?seed=1&seed=2", "options must be name=value, each once"),
        ("swe_bench_lite", "tasks must be micro_repair:train, micro_repair:held_out, or a .jsonl"),
        ("no/such.jsonl", "the task file must exist: no/such.jsonl"),
    ],
)
def test_a_spec_that_names_nothing_is_refused(spec: str, error: str) -> None:
    with pytest.raises(TasksRefused, match=re.escape(error)):
        load_tasks(spec)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"instance_id": None}, "instance_id: must be a string with text in it, got null"),
        ({"problem_statement": " "}, "problem_statement: must be a string with text in it"),
        ({"patch": 7}, "patch: must be a string, got 7"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS: must name at least one test, got []"),
        ({"FAIL_TO_PASS": "[]"}, 'FAIL_TO_PASS: must name at least one test, got "[]"'),
        ({"FAIL_TO_PASS": "tests"}, "FAIL_TO_PASS: must be a list, or one in JSON"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS: must be a list of strings, got [1]"),
        ({"FAIL_TO_PASS": ["test_one (a.B)"]}, "must be pytest ids as file::test"),
        ({"PASS_TO_PASS": {"a": 1}}, "PASS_TO_PASS: must be a list of strings"),
        ({"image_name": None}, "image_name: give either image_name or source, and not both"),
        ({"source": "here"}, "image_name: give either image_name or source, and not both"),
        ({"base_commit": None}, "base_commit: must be the commit in the image to start from"),
        ({"workdir": "/a;b"}, "workdir: must be a plain path"),
        ({"test_timeout_s": 0}, "test_timeout_s: must be a positive number of seconds, got 0"),
        ({"test_timeout_s": True}, "test_timeout_s: must be a positive number of seconds"),
    ],
)
def test_a_bad_instance_is_refused_by_its_field_and_line(
    tmp_path: Path, change: dict[str, Any], error: str
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps(ROW | {"instance_id": "x"} | change))
    with pytest.raises(TasksRefused) as refused:
        read_instances(path)
    assert error in str(refused.value)
    assert "tasks.jsonl, line 3" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.jsonl", "", "a task file must have at least one instance, got none"),
        ("a.json", "[]", "a task file must have at least one instance, got none"),
        ("a.json", "{}", "a .json task file must be a list, got dict"),
        ("a.jsonl", "{", "must be JSON: Expecting property name"),
        ("a.jsonl", "[1]", "an instance must be an object, got list"),
        (
            "a.jsonl",
            f"{json.dumps(ROW)}\n{json.dumps(ROW)}",
            "instance_id must be unique, got a__b",
        ),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, name: str, text: str, error: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TasksRefused, match=re.escape(error)):
        read_instances(tmp_path / name)


def test_instances_of_swe_smith_lack_a_commit_and_have_the_bug_as_their_patch(
    tmp_path: Path,
) -> None:
    smith = ROW | {"image_name": "jyangballin/swesmith.x86_64.a", "base_commit": None}
    (tmp_path / "a.json").write_text(json.dumps([ROW, smith | {"instance_id": "a.b.c__1"}]))
    bench, smith_instance = read_instances(tmp_path / "a.json")
    assert (bench.base_commit, bench.reversed_patch, bench.tests_removed) == ("abc", False, False)
    assert smith_instance.base_commit == "a.b.c__1"
    assert (smith_instance.reversed_patch, smith_instance.tests_removed) == (True, True)


def a_spec(tmp_path: Path, chat_template: str | None = CHATML, **change: Any) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ROW | change))
    return f"{path}?tokenizer={write_tokenizer(tmp_path / 'tokenizer', chat_template)}"


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TasksRefused, match="must have a chat template, and has none"):
        load_tasks(a_spec(tmp_path, chat_template=None))


def test_a_chat_template_that_takes_no_system_message_is_refused(tmp_path: Path) -> None:
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    with pytest.raises(TasksRefused, match="must take system, user and assistant: no system"):
        load_tasks(a_spec(tmp_path, chat_template=picky + CHATML))


def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    with pytest.raises(TasksRefused, match="add \\?tokenizer=FOLDER"):
        load_tasks(spec.partition("?")[0])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TasksRefused, match="no tokenizer could be loaded"):
        load_tasks(f"{spec.partition('?')[0]}?tokenizer={tmp_path / 'empty'}")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"source": "nowhere"}, "source must be a folder, got .*nowhere .instance a__b-1"),
        ({"source": "."}, "base_commit abc must be in .* .instance a__b-1"),
    ],
)
def test_a_repository_that_is_not_there_is_refused(
    tmp_path: Path, change: dict[str, Any], error: str
) -> None:
    with pytest.raises(TasksRefused, match=error):
        load_tasks(a_spec(tmp_path, image_name=None, **change))


def test_ids_that_are_not_in_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TasksRefused, match="ids must be in the file, and x, y is not"):
        load_tasks(a_spec(tmp_path) + "&ids=x,a__b-1,y")
