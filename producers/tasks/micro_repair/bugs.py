"""Which repositories micro_repair has, and how they are split.

Invariant: no bug of the held-out split has its combination of function, wrong operator and line in
the training split, whatever the seeds. Each such pair of function and wrong operator is held out
on one line of four, so every pair is seen in training, on other lines. Held out are repositories,
not kinds of bugs.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from producers.tasks.micro_repair.vocabulary import (
    FAMILIES,
    FUNCTIONS,
    LINES,
    family_of,
    operators_of,
)

SPLIT_SIZES = {"train": 120, "held_out": 40}
"""Tasks of each split."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A repository of four functions, one of which has a wrong operator.

    Example: `Bug((0, 3, 2, 5), 1, 4)` is add, less, multiply, equal, with `>` in less."""

    functions: tuple[int, ...]
    """(4,) indexes into FUNCTIONS, by line."""
    line: int
    """The wrong line, from 0."""
    wrong: int
    """Index of the operator there: another one of the function's family."""

    @property
    def right(self) -> int:
        """Index of the operator that repairs it."""
        return self.functions[self.line]

    @property
    def operators(self) -> tuple[int, ...]:
        """(4,) indexes of the operators in the repository, by line."""
        return (*self.functions[: self.line], self.wrong, *self.functions[self.line + 1 :])

    @property
    def family(self) -> str:
        """Name of the family of the wrong line."""
        return FAMILIES[family_of(self.right)]

    @property
    def name(self) -> str:
        """Unique among all bugs; the wrong operator by the function that it would be right for."""
        names = "-".join(FUNCTIONS[index].name for index in self.functions)
        return f"{names}.L{self.line + 1}.{FUNCTIONS[self.wrong].name}"


def held_out_line(function: int, wrong: int) -> int:
    """The line on which this pair is held out. Twelve pairs, four on each line but the first."""
    return (function - wrong) % LINES


def all_bugs(split: str) -> list[Bug]:
    """Every bug of a split, in a fixed order: 2,160 for training, 720 held out."""
    return [
        Bug(functions, line, wrong)
        for functions in itertools.permutations(range(len(FUNCTIONS)), LINES)
        for line, right in enumerate(functions)
        for wrong in operators_of(family_of(right))
        if wrong != right and (held_out_line(right, wrong) == line) == (split == "held_out")
    ]


def draw_bugs(split: str, seed: int) -> list[Bug]:
    """A split's tasks: the same for the same seed, on every machine."""
    return random.Random(f"micro_repair {split} {seed}").sample(all_bugs(split), SPLIT_SIZES[split])
