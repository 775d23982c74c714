"""Which files of the policy's work are left out before the tests run.

Left out of its diff, in any folder:

- the files of the named tests, those that the test patch touches, and everything else in the
  folders named `test` or `tests` that they lie in
- what configures pytest or is loaded before it: conftest.py, pytest.ini, tox.ini, setup.cfg,
  pyproject.toml, sitecustomize.py, *.pth, and modules that would stand in for pytest itself

So a policy can't gain by editing tests. What isn't prevented: the code under test runs in the
process of the tests, and could forge what they print. A gold patch goes the same way, so a task
whose gold patch needs one of these files is refused by validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

CONFIGURATION = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.py",
)
SHADOWS = ("pytest/*", "_pytest/*", "*.pth")

_PATCHED = re.compile(r"^(?:---|\+\+\+|rename from|rename to) (?:[ab]/)?(\S.*)$", re.MULTILINE)


def test_files(tests: Iterable[str]) -> list[str]:
    """The files of pytest ids, sorted."""
    return sorted({test.partition("::")[0] for test in tests if "::" in test})


def patched_files(patch: str) -> list[str]:
    """The files that a diff touches, sorted."""
    found = {path.split("\t")[0] for path in _PATCHED.findall(patch)}
    return sorted(found - {"/dev/null"})


def protected_patterns(tests: Iterable[str], test_patch: str) -> list[str]:
    """Patterns for `git apply --exclude`, where `*` also stands for slashes."""
    files = sorted({*test_files(tests), *patched_files(test_patch)})
    patterns = [_literal(file) for file in files]
    folders = {folder for file in files if (folder := _test_folder(file))}
    patterns += [f"{_literal(folder)}/*" for folder in sorted(folders)]
    for name in (*CONFIGURATION, *SHADOWS):
        patterns += [name, f"*/{name}"]
    return patterns


def _test_folder(file: str) -> str | None:
    parts = PurePosixPath(file).parts[:-1]
    for count, part in enumerate(parts, start=1):
        if part in ("test", "tests"):
            return "/".join(parts[:count])
    return None


def _literal(path: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", path)
