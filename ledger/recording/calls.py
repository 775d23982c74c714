"""One call per fact: `recorder.turn_completed(turn_no=3, ...)`.

The calls are made here from the fact classes; their types for editors and checkers are in
`calls.pyi`, rendered from the same classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.facts import FACTS, Fact

OWN_FACTS = ("producer_alive", "producer_closed", "producer_lost", "facts_erased")
"""What a recorder or a copied log says of itself; no call of their users."""


class RecordCalls:
    """A method per fact, which takes the fact's fields as keywords and never raises."""

    def _put(self, name: str, fields: dict[str, Any]) -> None:
        raise NotImplementedError


def _call(name: str, cls: type[Fact]) -> Callable[..., None]:
    def call(self: RecordCalls, /, *misplaced: object, **fields: Any) -> None:
        if misplaced:  # refused later by name: a call of the loop must not raise
            fields["positional"] = misplaced
        self._put(name, fields)  # pyright: ignore[reportPrivateUsage]

    call.__name__, call.__qualname__, call.__doc__ = name, f"RecordCalls.{name}", cls.__doc__
    return call


for _name, _cls in FACTS.items():
    if _name not in OWN_FACTS:
        setattr(RecordCalls, _name, _call(_name, _cls))
