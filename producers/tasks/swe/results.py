"""What the tests said, from the lines that `pytest -rA` prints at its end.

    PASSED tests/test_a.py::test_one
    FAILED tests/test_a.py::test_two[x - y] - assert 1 == 2

Other runners fit by printing such lines. Invariant: a test that is named twice has the worse of
its results, so a line that is printed too much can't turn a failure into a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

STATUSES = ("FAILED", "ERROR", "SKIPPED", "XPASS", "XFAIL", "PASSED")
"""From the worst to the best."""
PASSING = ("PASSED", "XFAIL")
"""As the SWE-bench harness counts."""

_LINE = re.compile(rf"^({'|'.join(STATUSES)}) (\S.*)$", re.MULTILINE)


def read_results(output: str) -> dict[str, str]:
    """Status by test. A test is also known by its id up to the first blank, which is how SWE-bench
    names parametrised tests, and up to ` - `, behind which a message may stand."""
    found: dict[str, str] = {}
    for status, rest in _LINE.findall(output.replace("\r\n", "\n")):
        for name in {rest, rest.split(" - ")[0], rest.split()[0]}:
            before = found.get(name, status)
            found[name] = min(before, status, key=STATUSES.index)
    return found


def passed(tests: Iterable[str], results: Mapping[str, str]) -> list[str]:
    """Those of the named tests that passed; one that wasn't reported did not."""
    return [test for test in tests if results.get(test) in PASSING]
