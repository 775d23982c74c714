"""What a repository does to actions, without running it.

For what would take too many runs: the pass rate of a policy, and traces for SFT. A test runs both
this and the real repository on the same actions and compares every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from producers.tasks.micro_repair.bugs import Bug
from producers.tasks.micro_repair.vocabulary import (
    BOS,
    ERR,
    FAIL,
    FUNCTION_TOKENS,
    LINE_TOKENS,
    OPERATOR_TOKENS,
    SUBMIT,
    TEST,
    VOCABULARY,
    family_of,
)

TURNS = 5
"""Most turns of an attempt."""


@dataclass(frozen=True, slots=True)
class State:
    """A repository and the cursor on it."""

    functions: tuple[int, ...]
    """(4,) indexes of the functions by line."""
    operators: tuple[int, ...]
    """(4,) indexes of their operators."""
    line: int
    """The cursor, from 0."""
    status: int = FAIL
    """FAIL or ERR: what the last action gave."""
    done: bool = False
    """Whether the attempt has ended."""

    @property
    def green(self) -> bool:
        """Whether all tests pass."""
        return self.operators == self.functions

    @property
    def observation(self) -> tuple[int, ...]:
        """(3,) tokens, or none when it has ended."""
        if self.done:
            return ()
        name = FUNCTION_TOKENS[self.functions[self.line]]
        return (self.status, name, OPERATOR_TOKENS[self.operators[self.line]])


def start(bug: Bug) -> State:
    """Before the first turn."""
    return State(bug.functions, bug.operators, bug.line)


def step(state: State, token: int) -> State:
    """After one more turn."""
    if token == SUBMIT:
        return replace(state, done=True)
    if token == TEST:
        return replace(state, status=FAIL, done=state.green)
    if token in LINE_TOKENS:
        return replace(state, line=token - LINE_TOKENS.start, status=FAIL)
    if token in OPERATOR_TOKENS:
        operator = token - OPERATOR_TOKENS.start
        if family_of(operator) == family_of(state.functions[state.line]):
            operators = list(state.operators)
            operators[state.line] = operator
            edited = replace(state, operators=tuple(operators), status=FAIL)
            return replace(edited, done=edited.green)
    return replace(state, status=ERR)


@dataclass(frozen=True, slots=True)
class Trace:
    """All tokens of one attempt."""

    ids: tuple[int, ...]
    """(n,) prompt, then a token and its observation for each turn."""
    loss_mask: tuple[int, ...]
    """(n,) 1 where the policy acted."""
    passed: bool
    """Whether all tests pass at the end."""


def trace(bug: Bug, actions: Sequence[int]) -> Trace:
    """The attempt that takes these actions, as far as it gets before it ends."""
    state = start(bug)
    ids = [BOS, FAIL, LINE_TOKENS[bug.line], *state.observation[1:]]
    mask = [0] * len(ids)
    for turn, token in enumerate(actions[:TURNS]):
        if state.done:
            break
        state = step(state, token)
        # What follows the last turn is in no prompt.
        seen = state.observation if turn + 1 < min(TURNS, len(actions)) else ()
        ids += [token, *seen]
        mask += [1] + [0] * len(seen)
    return Trace(tuple(ids), tuple(mask), state.green)


def repair(bug: Bug) -> tuple[int, ...]:
    """Actions of an expert: the right operator, on the line where the cursor already is."""
    return (OPERATOR_TOKENS[bug.right],)


def careful_repair(bug: Bug) -> tuple[int, ...]:
    """Actions of an expert that looks first: at the next line, and back, and at the tests."""
    other = LINE_TOKENS[(bug.line + 1) % len(bug.functions)]
    return (other, LINE_TOKENS[bug.line], TEST, *repair(bug))


def random_pass_rate(bug: Bug) -> Fraction:
    """Exact chance that a policy passes which takes each of the 32 tokens alike."""

    @cache
    def passes(state: State, turns: int) -> Fraction:
        if state.done or not turns:
            return Fraction(state.green)
        after = (replace(step(state, token), status=FAIL) for token in range(VOCABULARY))
        return sum((passes(state, turns - 1) for state in after), Fraction()) / VOCABULARY

    return passes(start(bug), TURNS)
