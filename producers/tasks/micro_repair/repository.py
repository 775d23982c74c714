"""The files of a repository, and the commands that view, edit and test it.

Invariant: line n of `functions.py` is function n, so an edit of a line is an edit of a function.

    $ sh edit 2 '<' && python3 -I -S tests.py
    PASSED add
    PASSED less
    ...

`tests.py` executes the source itself: an import would take a stale `__pycache__` for the new
source, since an edit within the same second changes neither its size nor the time that Python
compares. `python3 -I -S` and no unittest: a run takes 12 ms instead of 50. `sh edit` refuses an
operator that doesn't fit: a comparison becomes another comparison, never arithmetic.
"""

from __future__ import annotations

import shlex

from producers.tasks.micro_repair.bugs import Bug
from producers.tasks.micro_repair.vocabulary import FUNCTIONS

FOLDER = "repository"
"""Where it lies in the sandbox, from the home folder."""
RUN_TESTS = "python3 -I -S tests.py"
TRACE_WORD = "TRACE"
"""Begins each line that verbose tests print beside their results."""

EDIT = r"""# usage: sh edit LINE OPERATOR
# Puts another operator of the same kind into a line of functions.py; exit code 2 if it doesn't fit.
case $2 in
    '+' | '-' | '*') kind='[-+*]' ;;
    '<' | '>' | '==') kind='(<|>|==)' ;;
    *) echo "edit: no such operator: $2" >&2; exit 2 ;;
esac
edited=$(sed -i -E "$1s/ $kind / $2 /w /dev/stdout" functions.py)
if [ -z "$edited" ]; then
    echo "edit: $2 does not fit line $1" >&2
    exit 2
fi
"""

TESTS = '''"""Tests of functions.py: python3 -I -S tests.py"""

import sys

CASES = {
%s
}

TRACE_LINES = %d

functions = {}
passed = failed = 0
for number in range(TRACE_LINES):
    print("TRACE", number)
try:
    with open("functions.py") as source:
        exec(source.read(), functions)
except Exception as error:
    print(f"ERROR functions.py: {error!r}")
for name, cases in CASES.items():
    for a, b, expected in cases:
        try:
            got = functions[name](a, b)
        except Exception as error:
            got = error
        if repr(got) != repr(expected):
            print(f"FAILED {name}: {name}({a}, {b}) is {got!r}, expected {expected!r}")
            failed += 1
            break
    else:
        print(f"PASSED {name}")
        passed += 1
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
'''

README = """# Small functions

functions.py has four functions of two integers:

%s

Run the tests with `python3 -I -S tests.py`.
Put another operator into a line with `sh edit LINE OPERATOR`.
"""


def source_line(function: int, operator: int) -> str:
    """A line of functions.py, by the indexes of its function and its operator."""
    return f"def {FUNCTIONS[function].name}(a, b): return a {FUNCTIONS[operator].operator} b"


def files_of(bug: Bug, trace_lines: int = 0) -> dict[str, str]:
    """The repository's files by name. `trace_lines`: so many more lines its tests print."""
    functions = [FUNCTIONS[index] for index in bug.functions]
    source = map(source_line, bug.functions, bug.operators)
    return {
        "functions.py": "".join(f"{line}\n" for line in source),
        "tests.py": TESTS
        % ("\n".join(f'    "{f.name}": {f.cases},' for f in functions), trace_lines),
        "README.md": README % "\n".join(f"- `{f.name}`: {f.meaning}" for f in functions),
        "edit": EDIT,
    }


def write_command(files: dict[str, str]) -> str:
    """Writes files into the repository, in one command, by builtins of the shell."""
    writes = [f"printf %s {shlex.quote(text)} > {name}" for name, text in files.items()]
    return " && ".join([f"mkdir -p ~/{FOLDER}", f"cd ~/{FOLDER}", *writes])


def view_command(line: int) -> str:
    """Prints a line, counted from 0."""
    return f"cd ~/{FOLDER} && sed -n {line + 1}p functions.py"


def edit_command(line: int, operator: int) -> str:
    """Edits a line, runs the tests if that succeeded, and prints the line, which comes last."""
    edit = f"sh edit {line + 1} {shlex.quote(FUNCTIONS[operator].operator)}"
    return _then_view(f"{edit} && {RUN_TESTS}", line)


def test_command(line: int) -> str:
    """Runs the tests and prints the line under the cursor, which comes last."""
    return _then_view(RUN_TESTS, line)


def _then_view(command: str, line: int) -> str:
    return (
        f"cd ~/{FOLDER} || exit 2; {command}; code=$?; sed -n {line + 1}p functions.py; exit $code"
    )
