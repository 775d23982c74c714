"""The 32 tokens of micro_repair, and the functions and operators that they stand for.

    0 BOS   1 FAIL   2 OK   3 ERR   4 TEST   5 SUBMIT
    6-9     lines 1 to 4            10-15  names of functions      16-21  operators
    22-31   spare: no action; verbose tests' traces are told in them

Invariant: operator i is the right one for function i; the first three are one family and the last
three the other. An operator of the other family doesn't fit a line.
"""

from __future__ import annotations

from dataclasses import dataclass

BOS, FAIL, OK, ERR, TEST, SUBMIT = range(6)
LINES = 4
LINE_TOKENS = range(6, 6 + LINES)
FUNCTION_TOKENS = range(10, 16)
OPERATOR_TOKENS = range(16, 22)
VOCABULARY = 32
SPARE_TOKENS = range(22, VOCABULARY)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of two integers that is one operator."""

    name: str
    """Its name."""
    operator: str
    """The operator that makes it right, in Python."""
    meaning: str
    """What the README says of it."""
    cases: tuple[tuple[int, int, int | bool], ...]
    """Two arguments and the result; each wrong operator of the family fails one of them."""


FUNCTIONS = (
    Function("add", "+", "the sum", ((5, 3, 8), (2, 2, 4))),
    Function("subtract", "-", "the first less the second", ((5, 3, 2), (2, 2, 0))),
    Function("multiply", "*", "the product", ((5, 3, 15), (2, 1, 2))),
    Function("less", "<", "whether the first is the smaller one", ((1, 2, True), (2, 2, False))),
    Function("greater", ">", "whether the first is the larger one", ((2, 1, True), (2, 2, False))),
    Function("equal", "==", "whether both are the same", ((2, 2, True), (1, 2, False))),
)
FAMILIES = ("arithmetic", "comparison")
FAMILY_SIZE = 3


def family_of(index: int) -> int:
    """0 or 1: the family of a function or an operator, by its index."""
    return index // FAMILY_SIZE


def operators_of(family: int) -> range:
    """Indexes of a family's operators."""
    return range(family * FAMILY_SIZE, (family + 1) * FAMILY_SIZE)


def word(token: int) -> str:
    """A token for people."""
    if token in LINE_TOKENS:
        return f"L{token - LINE_TOKENS.start + 1}"
    if token in FUNCTION_TOKENS:
        return FUNCTIONS[token - FUNCTION_TOKENS.start].name
    if token in OPERATOR_TOKENS:
        return FUNCTIONS[token - OPERATOR_TOKENS.start].operator
    words = {BOS: "BOS", FAIL: "FAIL", OK: "OK", ERR: "ERR", TEST: "TEST", SUBMIT: "SUBMIT"}
    return words.get(token, f"<{token}>")
