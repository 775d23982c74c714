"""Three small repositories in the shape of SWE-bench, and a tokenizer with a chat template."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

SOURCE = """def clamp(value, low, high):
    return max(low, max(value, high))


def mean(values):
    return sum(values) / len(values)
"""
FIXED_CLAMP = SOURCE.replace("max(value, high)", "min(value, high)")
FIXED_MEAN = SOURCE.replace("return sum", "return 0 if not values else sum")
NOT_FIXED = SOURCE.replace("len(values)", "max(len(values), 0)")
TEST_CLAMP = """from numbers_ import clamp


def test_inside():
    assert clamp(2, 1, 3) == 2


def test_highest():
    assert clamp(3, 1, 3) == 3
"""
TEST_MEAN = """import pytest

from numbers_ import mean


@pytest.mark.parametrize("values", [[1, 2, 3], [2]], ids=["three values", "one"])
def test_mean(values):
    assert mean(values) == 2
"""
MORE_CLAMP = {
    "tests/test_clamp.py": f"{TEST_CLAMP}\n\ndef test_above():\n    assert clamp(9, 1, 3) == 3\n"
}
MORE_MEAN = {
    "tests/test_mean.py": f"{TEST_MEAN}\n\ndef test_of_nothing():\n    assert mean([]) == 0\n"
}
CONFTEST = "import sys\n\nsys.path.insert(0, 'src')\n"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def commit(folder: Path, files: dict[str, str], message: str) -> str:
    """Write and commit files; the commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD").strip()


def a_repository(folder: Path, fixed: str, tests: dict[str, str]) -> tuple[str, str, str]:
    """A repository whose base has two bugs; its base commit, gold patch and test patch."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    files = {
        "src/numbers_.py": SOURCE,
        "tests/test_clamp.py": TEST_CLAMP,
        "tests/test_mean.py": TEST_MEAN,
        "conftest.py": CONFTEST,
        ".gitignore": "*.log\n__pycache__/\n",
        ".gitattributes": "tests export-ignore\n",
        "data/kept.log": "committed, though ignored\n",
    }
    base = commit(folder, files, "Base")
    fix = commit(folder, {"src/numbers_.py": fixed}, "Fix")
    tested = commit(folder, tests, "Tests")
    return base, git(folder, "diff", base, fix), git(folder, "diff", fix, tested)


def write_instances(folder: Path) -> Path:
    """A .jsonl of three instances; the gold patch of the last one doesn't repair anything."""
    inside, highest, above = (
        f"tests/test_clamp.py::test_{name}" for name in ("inside", "highest", "above")
    )
    mean_ids = ["tests/test_mean.py::test_mean[three", "tests/test_mean.py::test_mean[one]"]
    nothing = "tests/test_mean.py::test_of_nothing"
    rows: list[dict[str, Any]] = []
    for name, fixed, tests, fail_to_pass, pass_to_pass in (
        ("clamp", FIXED_CLAMP, MORE_CLAMP, [inside, above], [highest, *mean_ids]),
        ("mean", FIXED_MEAN, MORE_MEAN, [nothing], mean_ids),
        ("not_repaired", NOT_FIXED, MORE_MEAN, [nothing], mean_ids),
    ):
        base, patch, test_patch = a_repository(folder / "repositories" / name, fixed, tests)
        rows.append(
            {
                "instance_id": f"tiny__numbers-{name}",
                "repo": "tiny/numbers",
                "version": "1.0",
                "base_commit": base,
                "source": f"repositories/{name}",
                "problem_statement": f"{name} gives wrong results.",
                "patch": patch,
                "test_patch": test_patch,
                # As SWE-bench has them, and as SWE-smith.
                "FAIL_TO_PASS": json.dumps(fail_to_pass) if name == "clamp" else fail_to_pass,
                "PASS_TO_PASS": json.dumps(pass_to_pass) if name == "clamp" else pass_to_pass,
                "test_timeout_s": 60,
            }
        )
    path = folder / "tiny.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS_THOUGHTS = CHATML.replace(
    "{{ message.content }}",
    "{{ message.content if loop.last else message.content.split('</think>')[-1] }}",
)
"""As Qwen3's: the thoughts of earlier answers are dropped."""


def write_tokenizer(folder: Path, chat_template: str | None = CHATML) -> Path:
    """A tokenizer of bytes with the special tokens of ChatML, as a model's folder has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_smith_instance(folder: Path, templates: Path) -> Path:
    """A .json with one instance of SWE-smith's shape, and the template that is its image: a branch
    named as the instance, whose last commit removed the tests that the bug before it fails."""
    image = templates / "numbers-image" / "files" / "testbed"
    image.mkdir(parents=True)
    base = (templates / "pytest" / "template.toml").read_text()
    (templates / "numbers-image" / "template.toml").write_text(base)
    configuration = {"pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['src']\n"}
    git(image, "init", "--quiet", "--initial-branch=main")
    right = commit(image, {"src/numbers_.py": FIXED_CLAMP, **MORE_CLAMP, **configuration}, "Right")
    git(image, "switch", "--quiet", "--create", "numbers.abc-func__1")
    wrong = commit(image, {"src/numbers_.py": SOURCE}, "Bug Patch")
    git(image, "rm", "--quiet", "tests/test_clamp.py")
    git(image, "commit", "--quiet", "--message", "Remove F2P Tests")
    git(image, "switch", "--quiet", "main")
    (image / "built.so").write_bytes(b"\0\1")
    row = {
        "instance_id": "numbers.abc-func__1",
        "repo": "swesmith/numbers.abc",
        "image_name": "numbers-image",
        "problem_statement": "clamp is wrong.",
        "patch": git(image, "diff", right, wrong),
        "FAIL_TO_PASS": ["tests/test_clamp.py::test_inside", "tests/test_clamp.py::test_above"],
        "PASS_TO_PASS": ["tests/test_clamp.py::test_highest"],
    }
    path = folder / "smith.json"
    path.write_text(json.dumps([row]))
    return path
