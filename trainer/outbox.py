"""Facts that the trainer owes the log, kept until the log has them.

Invariant: a fact is held from the step that it tells of until a flush has made it durable, and a
checkpoint carries all that are held. Its id and content are fixed when it is made. So a trainer
that is killed anywhere hands in the same fact again when it resumes, and readers count it once.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ledger.facts import PhaseSpan
from ledger.recorder import Recorder
from ledger.wire.checks import to_micros

_IDS = uuid.UUID("6d0f2c1e-52b5-5c0b-8f0a-0c6a1f5d7e42")
"""Namespace of the trainer's facts."""

FLUSH_S = 30.0

HeldFact = dict[str, Any]
"""`{"name": ..., "fields": {...}}`, as JSON can hold it: times are microseconds."""


class Outbox:
    """Of one life of a trainer; used by one thread."""

    def __init__(self, recorder: Recorder, held: Iterable[HeldFact] = ()) -> None:
        """`held` are from the checkpoint that training goes on from."""
        self._recorder = recorder
        self._held = list(held)
        self._handed_in = 0

    @property
    def held(self) -> list[HeldFact]:
        """All that may not be in the log yet, in order."""
        return list(self._held)

    def hold(self, name: str, about: object, happened: datetime, **fields: Any) -> None:
        """A fact that only this life can tell: `about` tells it from others of its name."""
        self._add(name, (self._recorder.incarnation, about), happened, "exact", fields)

    def derive(self, name: str, about: object, source: datetime, **fields: Any) -> None:
        """A fact that any life would tell in the same words from the same source."""
        self._add(name, (about,), source, "derived", fields)

    def send(self, timeout_s: float = FLUSH_S) -> bool:
        """Hands in what is held; True once all of it is durable."""
        for fact in self._held[self._handed_in :]:
            getattr(self._recorder, fact["name"])(**_given(fact["fields"]))
        self._handed_in = len(self._held)
        if not self._recorder.flush(timeout_s):
            return False
        self._held, self._handed_in = [], 0
        return True

    def _add(
        self, name: str, about: tuple[object, ...], at: datetime, quality: str, given: Any
    ) -> None:
        parts = (self._recorder.run_id, name, *about)
        envelope = {
            "event_id": str(uuid.uuid5(_IDS, "/".join(map(str, parts)))),
            "occurred_at": at,
            "time_quality": quality,
        }
        fields = {field: _plain(value) for field, value in (envelope | given).items()}
        self._held.append({"name": name, "fields": fields})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, list):
        items: list[Any] = value
        return [_plain(item) for item in items]
    return dataclasses.asdict(value) if isinstance(value, PhaseSpan) else value


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields as the recorder takes them."""
    if "phases" not in fields:
        return fields
    return fields | {"phases": [PhaseSpan(**span) for span in fields["phases"]]}
