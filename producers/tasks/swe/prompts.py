"""What the policy is told: the conventions of mini-SWE-agent, in our own words.

One answer is one bash command, in exactly one fenced block; every command runs in a new shell; the
policy submits by a command whose output begins with a line that says so.
"""

from __future__ import annotations

import re

SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SHOWN_CHARACTERS = 10_000
"""Longest output that is shown whole; of a longer one, both halves of this."""

SYSTEM = """You are a software engineer at work in a Linux shell.

Answer with your thoughts, then with exactly one command in a block:

```bash
ls -la
```
"""

TASK = """Solve this problem in the repository at {workdir}:

<problem>
{statement}
</problem>

- Every command runs in a new shell, in {workdir}. A change of folder or environment is forgotten.
- A command has {timeout_s:.0f} seconds and no terminal: nothing interactive.
- Change source files only. Tests and test configuration are put back before your work is tested.
- When the work is done, submit it by this command, alone; after it you can't go on:

```bash
echo {submit}
```
"""

NOT_ONE_COMMAND = """Your answer must have exactly one block that begins with ```bash.
It had {count}. Write your thoughts, then one such block. To submit, run: echo {submit}
"""

_BLOCK = re.compile(r"^```bash[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


def commands_in(text: str) -> list[str]:
    """The commands in an answer's blocks."""
    return [block.strip() for block in _BLOCK.findall(text)]


def task_message(statement: str, workdir: str, timeout_s: float) -> str:
    """The first message to the policy."""
    return TASK.format(
        statement=statement.strip(), workdir=workdir, timeout_s=timeout_s, submit=SUBMIT_LINE
    )


def format_message(count: int) -> str:
    """The answer to an answer with no command, or with several."""
    return NOT_ONE_COMMAND.format(count=count, submit=SUBMIT_LINE)


def result_message(exit_code: int | None, output: str, timed_out: bool) -> str:
    """What a command gave."""
    code = "timed out" if timed_out else exit_code
    return f"<returncode>{code}</returncode>\n<output>\n{_shown(output)}</output>"


def is_submission(exit_code: int | None, stdout: str) -> bool:
    """Whether a command's result submits the work: it succeeded and said so in its first line."""
    lines = stdout.lstrip().splitlines()
    return exit_code == 0 and bool(lines) and lines[0].strip() == SUBMIT_LINE


def _shown(output: str) -> str:
    if len(output) <= SHOWN_CHARACTERS:
        return output if not output or output.endswith("\n") else output + "\n"
    half = SHOWN_CHARACTERS // 2
    elided = len(output) - 2 * half
    return f"{output[:half]}\n[{elided} characters left out]\n{output[-half:]}"
