"""Facts in simulated time, with ids derived from the seed.

Invariant: the same run id gives the same ids, so the same seed says the same facts.
"""

from __future__ import annotations

from typing import Any

import uuid_utils

from ledger.facts.lists import TimeQuality
from ledger.wire.encoder import Draft

NAMESPACE = uuid_utils.UUID("8f0a3d0e-6d5b-5c55-9d0e-2f3c5b1f7a61")
"""Of everything simulated."""


MARK = "c0b1e5ed"
"""The last 8 digits of ids that are to be copied (`copies.py`)."""


def derived(namespace: uuid_utils.UUID, name: str, *, marked: bool = False) -> str:
    """A UUID (version 5): the same for the same arguments. With `marked`, its end is `MARK`."""
    found = str(uuid_utils.uuid5(namespace, name))
    return found[: -len(MARK)] + MARK if marked else found


class Teller:
    """Makes drafts of one run's facts."""

    def __init__(
        self, run_id: str, start_us: int, source_ref: str | None, *, for_copies: bool = False
    ) -> None:
        """`start_us`: the run's zero, microseconds since the epoch. `for_copies`: ids of facts are
        left to the encoder, as of a live run, and all others end in `MARK`."""
        self.run_id = run_id
        self._run = uuid_utils.UUID(run_id)
        self._start_us = start_us
        self._source_ref = source_ref
        self._for_copies = for_copies

    def an_id(self, what: str) -> str:
        """A UUID of something in the run."""
        return derived(self._run, what, marked=self._for_copies)

    def us(self, at_s: float) -> int:
        """Seconds of the run as microseconds since the epoch."""
        return self._start_us + round(at_s * 1e6)

    def tell(self, key: str, name: str, at_s: float, fields: dict[str, Any]) -> Draft:
        """A fact that happened at `at_s` seconds of the run; `key` makes its id."""
        return self.told_at(self.us(at_s), key, name, fields)

    def told_at(self, at_us: int, key: str, name: str, fields: dict[str, Any]) -> Draft:
        """The same, in microseconds since the epoch."""
        if not self._for_copies:
            fields["event_id"] = derived(self._run, key)
            fields["time_quality"] = TimeQuality.DERIVED
            fields["source_ref"] = self._source_ref
        return Draft(name, fields, at_us)
