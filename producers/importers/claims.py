"""What foreign files say of themselves, held against what the ledger computes. Pure.

Invariant: a difference is either named with its reason or unexplained; a figure that a file doesn't
give is shown and compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLOSE = 1e-9
"""Relative difference that adding floats in another order explains."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of a foreign file."""

    what: str
    """Its name, with its unit."""
    foreign: Any
    """What the files say; null: nothing."""
    sql: str
    """One value from a book's views, the same figure; `$run` is the run's id."""
    place: str
    """Where the files say it."""
    because: str | None = None
    """Why the two must differ; null: they must not."""
    places: int | None = None
    """Decimals that the foreign figure was rounded to; null: it was not."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A claim and the ledger's answer."""

    claim: Claim
    ledger: Any
    """What the ledger computes; null: nothing."""

    @property
    def difference(self) -> float | None:
        """Ledger minus foreign; null where either is no number."""
        foreign = self.claim.foreign
        if not _is_number(foreign) or not _is_number(self.ledger):
            return None
        return self.ledger - foreign

    @property
    def agrees(self) -> bool:
        """Whether the two say the same, within the rounding of floats."""
        foreign, ledger = self.claim.foreign, self.ledger
        if _is_number(foreign) and _is_number(ledger):
            if self.claim.places is not None:
                return abs(ledger - foreign) <= 0.5000001 * 10**-self.claim.places
            return math.isclose(foreign, ledger, rel_tol=CLOSE, abs_tol=CLOSE)
        return foreign == ledger

    @property
    def verdict(self) -> str:
        """agrees, not stated, or what of a difference."""
        if self.claim.foreign is None:
            return "not stated"
        if self.agrees:
            return "agrees"
        return f"differs: {self.claim.because}" if self.claim.because else "differs"

    @property
    def unexplained(self) -> bool:
        """Whether it is a finding."""
        return self.claim.foreign is not None and not self.agrees and self.claim.because is None


def reconcile(claims: list[Claim], compute: Callable[[str], Any]) -> list[Compared]:
    """Every claim with the ledger's answer; `compute` gives the one value of a query."""
    return [Compared(claim, compute(claim.sql)) for claim in claims]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
