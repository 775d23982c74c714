"""Tokens to commands, and what the commands printed to tokens.

Invariant: the name and the operator in an observation are read from the source line that the
command printed, and FAIL and green from the exit code of the tests. Nothing is taken from a model
of the repository.

    prompt        BOS FAIL L2 less >        the cursor is on the failing line
    L1-L4         view that line            FAIL name operator
    an operator   edit the cursor's line,   FAIL name operator; the attempt ends when all tests
                  then run the tests        pass; ERR name operator when it doesn't fit
    TEST          run the tests             as above
    SUBMIT        ends the attempt
    else          costs a turn              ERR name operator, of the cursor's line

Where the tests are verbose, a spare token stands for each line of their trace, between the status
and the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from producers.tasks.micro_repair.bugs import Bug
from producers.tasks.micro_repair.repository import (
    TRACE_WORD,
    edit_command,
    test_command,
    view_command,
)
from producers.tasks.micro_repair.vocabulary import (
    BOS,
    ERR,
    FAIL,
    FUNCTION_TOKENS,
    FUNCTIONS,
    LINE_TOKENS,
    OPERATOR_TOKENS,
    SPARE_TOKENS,
    SUBMIT,
    TEST,
    word,
)
from producers.tasks.task import Action, Nothing, Observation, Submit, ToolCall

if TYPE_CHECKING:
    from producers.sandbox import CommandResult

TIMEOUT_S = 30.0
"""Of one command, which takes about 20 ms: a hundred sandboxes may share a machine."""
GREEN = 0
"""Exit code of the tests when all passed."""
RED = 1
"""Exit code of the tests when one failed."""

_SOURCE_LINE = re.compile(r"def (\w+)\(a, b\): return a (\S+) b")
_FUNCTIONS = {f.name: token for f, token in zip(FUNCTIONS, FUNCTION_TOKENS, strict=True)}
_OPERATORS = {f.operator: token for f, token in zip(FUNCTIONS, OPERATOR_TOKENS, strict=True)}


class MicroRepairScaffold:
    """One attempt: the cursor, and what was last seen under it."""

    def __init__(self, bug: Bug) -> None:
        self._line = bug.line
        self._seen = (FUNCTION_TOKENS[bug.right], OPERATOR_TOKENS[bug.wrong])

    def prompt(self) -> list[int]:
        """BOS FAIL line name operator."""
        return [BOS, FAIL, LINE_TOKENS[self._line], *self._seen]

    def read(self, completion: Sequence[int]) -> Action:
        """The action that one token is."""
        if len(completion) != 1:
            return Nothing(f"a turn is one token, got {len(completion)}")
        (token,) = completion
        if token == SUBMIT:
            return Submit()
        if token == TEST:
            return ToolCall("test", "", test_command(self._line), TIMEOUT_S)
        if token in LINE_TOKENS:
            line = token - LINE_TOKENS.start
            return ToolCall("view", str(line + 1), view_command(line), TIMEOUT_S)
        if token in OPERATOR_TOKENS:
            arguments = f"{self._line + 1} {word(token)}"
            command = edit_command(self._line, token - OPERATOR_TOKENS.start)
            return ToolCall("edit", arguments, command, TIMEOUT_S)
        return Nothing(f"{word(token)} is no action")

    def observe(self, action: Action, result: CommandResult | None) -> Observation:
        """FAIL or ERR, then the line under the cursor."""
        if isinstance(action, Submit):
            return Observation((), done=True)
        if not isinstance(action, ToolCall) or result is None:
            return self._observation(ERR)
        seen = _read_line(result.stdout)
        if seen is not None:
            self._seen = seen
        if action.name == "view":
            if seen is None:
                return self._observation(ERR)
            self._line = int(action.arguments) - 1
            return self._observation(FAIL)  # as before: green would have ended the attempt
        if result.exit_code == GREEN:
            return Observation((), done=True)
        status = FAIL if result.exit_code == RED else ERR
        return self._observation(status, _trace(result.stdout))

    def _observation(self, status: int, trace: Sequence[int] = ()) -> Observation:
        return Observation((status, *trace, *self._seen), done=False)


def _trace(stdout: str) -> list[int]:
    """A token for each line that verbose tests printed beside their results."""
    lines = [line for line in stdout.splitlines() if line.startswith(f"{TRACE_WORD} ")]
    return [SPARE_TOKENS[number % len(SPARE_TOKENS)] for number in range(len(lines))]


def _read_line(stdout: str) -> tuple[int, int] | None:
    """Tokens of the name and the operator in the last line printed; None: it is no source line."""
    lines = stdout.splitlines()
    found = _SOURCE_LINE.fullmatch(lines[-1]) if lines else None
    if found is None or found[1] not in _FUNCTIONS or found[2] not in _OPERATORS:
        return None
    return _FUNCTIONS[found[1]], _OPERATORS[found[2]]
