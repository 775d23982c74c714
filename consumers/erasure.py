"""Erasing a run: which records are of it, and what other runs' records say in place of its id.

Invariant: the id is in nothing that `renamed` gives, however it is written. An alias of the same
length stands in its place, so a record keeps its framing and every other byte, whichever schema it
was written with, and two records that named the run still name the same one.
"""

from __future__ import annotations

import re
import uuid

from ledger.wire.checks import Datum


class Erasure:
    """One run to erase."""

    def __init__(self, run_id: uuid.UUID) -> None:
        self.alias = str(uuid.uuid4())
        """UUID that stands for the run from now on; nothing leads from it to the run."""
        self._run_id = run_id
        # As text of any case, with dashes or without, alone or inside a longer text.
        self._written = re.compile("-?".join(run_id.hex).encode(), re.IGNORECASE)

    def covers(self, datum: Datum) -> bool:
        """Whether a record is of the run. A foreign writer may write its id in any form."""
        return as_uuid(datum["run_id"]) == self._run_id

    def renamed(self, record: bytes) -> bytes:
        """`record` with the alias wherever it names the run; else the same object."""
        return self._written.sub(self._in_place, record)

    def _in_place(self, named: re.Match[bytes]) -> bytes:
        digits = iter(self.alias.replace("-", "").encode())
        return bytes(byte if byte == ord("-") else next(digits) for byte in named[0])


def as_uuid(text: str) -> uuid.UUID | None:
    """A UUID in any of the forms that people write it in; None for other text."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
