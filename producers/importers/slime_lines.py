"""Console lines of slime and miles: `perf 1: {...}`, `rollout 1: {...}`, `step 0: {...}`.

A line holds a Python dict as printed. The number is the rollout's, or for `step` the optimizer
step's; `perf` comes from two processes, which print different keys of one rollout.

Invariant: nothing of a line is run. What is no number is left out, and a line that can't be read
is an error with its place.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field

from producers.importers.source import BadImport, SourceFile, shown

_LINE = re.compile(r"(?<![\w/])(perf|rollout|step|eval) (\d+): (\{.*)$")
Numbers = dict[str, float]


@dataclass(slots=True)
class RolloutLines:
    """What the lines say of one rollout, or of one optimizer step."""

    number: int
    """As printed."""
    numbers: Numbers = field(default_factory=Numbers)
    """All lines together."""
    pointer: str = ""
    """The last of its lines, by number from 1."""


@dataclass(slots=True)
class ConsoleLines:
    """The lines of one file, by what they are about."""

    rollouts: dict[int, RolloutLines] = field(default_factory=dict[int, RolloutLines])
    """perf, rollout and eval lines, by the rollout's number."""
    steps: dict[int, RolloutLines] = field(default_factory=dict[int, RolloutLines])
    """step lines, by the optimizer step's number."""
    notes: list[str] = field(default_factory=list[str])
    """Numbers that were printed twice and differ, as behind a restart: the later ones count."""

    first: str = ""
    """The first metric line: while a console goes on, it stays the same."""

    def __bool__(self) -> bool:
        return bool(self.rollouts or self.steps)


def read_lines(source: SourceFile) -> ConsoleLines:
    """Every metric line of a console's output; other lines are passed over. Raises BadImport for
    one that is cut off."""
    found = ConsoleLines()
    for line_no, line in source.lines():
        match = _LINE.search(line)
        if match is None:
            continue
        kind, number, text = match[1], int(match[2]), match[3]
        found.first = found.first or match[0]
        into = found.steps if kind == "step" else found.rollouts
        lines = into.setdefault(number, RolloutLines(number))
        new = numbers_of(text, f"{source.name} line {line_no}")
        changed = sorted(
            name for name in new.keys() & lines.numbers.keys() if new[name] != lines.numbers[name]
        )
        if changed:
            found.notes.append(
                f"{source.name} line {line_no}: {kind} {number} says {changed[0]} again and"
                " otherwise; the later value counts"
            )
        lines.numbers |= new
        lines.pointer = f"/{line_no}"
    return found


def numbers_of(text: str, place: str) -> Numbers:
    """The numbers of a printed dict: ints, floats, nan, inf, and numpy's `np.float64(1.5)`.
    Raises BadImport, which names `place`, for what is no dict."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Dict):
        raise BadImport(f"{place} must hold one whole dict, got {shown(text)}")
    found: Numbers = {}
    for key, value in zip(tree.keys, tree.values, strict=True):
        number = _number(value)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and number is not None:
            found[key.value] = number
    return found


def _number(node: ast.expr) -> float | None:
    """A number as Python prints it; null for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _finite_float(node.value)  # pyright: ignore[reportArgumentType]
    if isinstance(node, ast.Name) and node.id in ("nan", "inf"):
        return math.nan if node.id == "nan" else math.inf
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return _number(node.args[0])  # np.float64(1.5), tensor(1.5): a number in its type
    return None


def _finite_float(value: int | float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
