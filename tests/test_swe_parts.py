"""The pure parts of SWE-bench style tasks: chat templates, actions, results, protected files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from producers.tasks.swe.chat import ChatTemplate, Conversation
from producers.tasks.swe.instances import read_instances
from producers.tasks.swe.prompts import is_submission, result_message
from producers.tasks.swe.protection import patched_files, protected_patterns
from producers.tasks.swe.results import passed, read_results
from producers.tasks.swe.scaffold import REWRITTEN, BashScaffold
from producers.tasks.task import Nothing, Submit, ToolCall
from tests.swe_instances import CHATML, FORGETS_THOUGHTS, write_instances, write_tokenizer


def a_template(folder: Path, chat_template: str = CHATML) -> ChatTemplate:
    return ChatTemplate.load(str(write_tokenizer(folder, chat_template)))


def a_conversation(template: ChatTemplate) -> tuple[Conversation, list[int]]:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    conversation = Conversation(template, messages)
    return conversation, conversation.prompt()


def talk(template: ChatTemplate, turns: Sequence[tuple[str, str]]) -> tuple[str, list[bool]]:
    """The text of all tokens, and whether each reply began a new segment."""
    conversation, tokens = a_conversation(template)
    wholes: list[bool] = []
    for answer, reply in turns:
        completion = template.encode(answer)
        extension = conversation.extend(completion, template.decode(completion), reply)
        wholes.append(extension.whole)
        tokens = [*([] if extension.whole else [*tokens, *completion]), *extension.token_ids]
    return template.decode(tokens), wholes


WHOLE = (
    "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    "one<|im_end|>\n<|im_start|>user\nR1<|im_end|>\n<|im_start|>assistant\n"
    "two<|im_end|>\n<|im_start|>user\nR2<|im_end|>\n<|im_start|>assistant\n"
)


def test_a_conversation_grows_by_what_the_template_would_have_written(tmp_path: Path) -> None:
    template = a_template(tmp_path)
    text, wholes = talk(template, [("one<|im_end|>", "R1"), ("two<|im_end|>", "R2")])
    assert text == WHOLE
    assert wholes == [False, False]


def test_an_answer_that_was_cut_off_is_ended(tmp_path: Path) -> None:
    text, wholes = talk(a_template(tmp_path), [("one", "R1"), ("two<|im_end|>", "R2")])
    assert (text, wholes) == (WHOLE, [False, False])


def test_blanks_that_the_template_takes_away_stay_as_they_were_sampled(tmp_path: Path) -> None:
    trims = CHATML.replace("message.content", "message.content | trim")
    text, wholes = talk(a_template(tmp_path, trims), [(" one\n<|im_end|>", "R1"), ("two", "R2")])
    assert text == WHOLE.replace("one", " one\n")
    assert wholes == [False, False]


def test_a_template_that_forgets_thoughts_begins_a_new_segment(tmp_path: Path) -> None:
    template = a_template(tmp_path, FORGETS_THOUGHTS)
    turns = [("<think>so</think>one<|im_end|>", "R1"), ("two<|im_end|>", "R2")]
    text, wholes = talk(template, turns)
    assert text == WHOLE
    assert wholes == [True, False]


def test_an_answer_that_another_token_ended_begins_a_new_segment(tmp_path: Path) -> None:
    text, wholes = talk(a_template(tmp_path), [("one<|endoftext|>", "R1"), ("two<|im_end|>", "R2")])
    assert (text, wholes) == (WHOLE, [True, False])


def test_what_was_sampled_is_not_tokenised_again(tmp_path: Path) -> None:
    """An answer in other tokens than the tokenizer's own keeps them."""
    template = a_template(tmp_path)
    conversation, _ = a_conversation(template)
    broken = [*template.encode("é")[:1], *template.encode("<|im_end|>")]  # half a character
    extension = conversation.extend(broken, template.decode(broken), "R1")
    assert not extension.whole
    assert template.decode(extension.token_ids) == (
        "\n<|im_start|>user\nR1<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> BashScaffold:
    """Of the first instance, under a template that forgets thoughts."""
    folder = tmp_path_factory.mktemp("scaffold")
    instance = read_instances(write_instances(folder))[0]
    return BashScaffold(instance, a_template(folder / "tokenizer", FORGETS_THOUGHTS))


def read(scaffold: BashScaffold, text: str) -> Any:
    return scaffold.read(scaffold._template.encode(text))  # pyright: ignore[reportPrivateUsage]


def test_an_answer_is_one_command(scaffold: BashScaffold) -> None:
    command = "cat > a.md <<'EOF'\n```python\nx\nEOF\nls"
    action = read(scaffold, f"I look.\n\n```bash\n{command}\n```\nDone.<|im_end|>")
    assert action == ToolCall("bash", command, f"cd ~/testbed || exit 1\n{command}", 60.0)


@pytest.mark.parametrize(
    ("text", "count"),
    [("no command", 0), ("```bash\nls\n```\n```bash\nls\n```", 2), ("```sh\nls\n```", 0), ("", 0)],
)
def test_an_answer_without_one_command_costs_a_turn(
    scaffold: BashScaffold, text: str, count: int
) -> None:
    action = read(scaffold, f"{text}<|im_end|>")
    assert action == Nothing(f"an answer must have one ```bash block, got {count}")


def test_a_rewritten_history_is_told_as_a_new_segment(scaffold: BashScaffold) -> None:
    action = read(scaffold, "<think>so</think>\n\nnothing<|im_end|>")
    observation = scaffold.observe(action, None)
    assert (observation.token_ids, observation.done) == ((), False)
    assert observation.segment_reason == REWRITTEN
    assert observation.new_segment is not None
    text = scaffold._template.decode(observation.new_segment)  # pyright: ignore[reportPrivateUsage]
    assert "<think>" not in text
    assert "It had 0." in text
    assert scaffold.observe(Submit(), None).done


@pytest.mark.parametrize(
    ("exit_code", "stdout", "submits"),
    [
        (0, "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", True),
        (0, "\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\ndiff --git", True),
        (1, "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", False),
        (None, "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", False),
        (0, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", False),
        (0, "", False),
    ],
)
def test_a_command_that_succeeds_and_says_so_submits(
    exit_code: int | None, stdout: str, submits: bool
) -> None:
    assert is_submission(exit_code, stdout) == submits


def test_both_ends_of_a_long_output_are_shown() -> None:
    assert result_message(2, "short", False) == (
        "<returncode>2</returncode>\n<output>\nshort\n</output>"
    )
    shown = result_message(None, "a" * 20_000 + "b" * 20_000, True)
    assert shown.startswith("<returncode>timed out</returncode>\n<output>\naaa")
    assert "\n[30000 characters left out]\nb" in shown
    assert len(shown) < 10_200


OUTPUT = """\
PASSED tests/a.py::test_one
PASSED tests/a.py::test_two[x y]
PASSED tests/a.py::test_two[x z]
FAILED tests/a.py::test_three[p - q] - assert 1 == 2
XFAIL tests/a.py::test_four - known
ERROR tests/b.py - ImportError
SKIPPED [1] tests/a.py:9: no display
PASSED tests/a.py::test_five
FAILED tests/a.py::test_five - a teardown that failed
  PASSED tests/a.py::test_six
"""


def test_results_are_read_by_the_names_that_datasets_use() -> None:
    results = read_results(OUTPUT)
    names = [
        "tests/a.py::test_one",
        "tests/a.py::test_two[x y]",
        "tests/a.py::test_two[x",  # as SWE-bench cuts names off
        "tests/a.py::test_four",
        "tests/a.py::test_five",
        "tests/a.py::test_six",
        "tests/a.py::test_seven",
    ]
    assert passed(names, results) == names[:4]
    assert results["tests/a.py::test_three[p"] == "FAILED"
    assert results["tests/b.py"] == "ERROR"


def test_one_failure_outweighs_any_number_of_lines_that_say_passed() -> None:
    for output in ("PASSED a::b\nFAILED a::b - x\n", "FAILED a::b - x\nPASSED a::b\n"):
        assert passed(["a::b"], read_results(output)) == []


def test_test_folders_and_configuration_are_protected() -> None:
    patch = "diff --git a/lib/data[1].txt b/lib/data[1].txt\n--- /dev/null\n+++ b/lib/data[1].txt\n"
    assert patched_files(patch) == ["lib/data[1].txt"]
    patterns = protected_patterns(["lib/tests/sub/test_a.py::test_one", "check.py::x"], patch)
    assert patterns[:4] == [
        "check.py",
        "lib/data\\[1].txt",
        "lib/tests/sub/test_a.py",
        "lib/tests/*",
    ]
    assert {"conftest.py", "*/conftest.py", "*/setup.cfg", "pytest/*"} <= set(patterns)
