"""What every fact is: the envelope, the ids it is about, and text too long to carry.

A fact is an immutable record of something that happened. Its class is the single source: the
Avro schema, the book's table and the reference page are rendered from it (`ledger/rendering/`),
and the docstring under a field becomes its documentation in all three. "Audit only" in a fact's
docstring: no view shows it but `facts`, which lists them all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

from ledger.facts.lists import TimeQuality

Uuid = Annotated[str, "uuid"]
"""A UUID in its canonical lower-case form. A `uuid.UUID` is taken too."""

ANY_NUMBER = {"any_number": True}
"""Metadata of a number that may be below 0, infinite or nan. All others count, measure or place
something, and are at least 0."""

EXCERPT_CHARS = 2_000
"""Characters kept of each end of a long text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """The envelope of every fact."""

    event_id: Uuid
    """UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and
    importers, so that a second run writes nothing new."""
    run_id: Uuid
    """UUID of the run; for facts of engines that serve several runs, of the cluster's own run."""
    occurred_at: datetime | None = None
    """When it happened by the producer's clock, UTC; null when time_quality is none."""
    producer: str
    """Name of the program that recorded it."""
    incarnation: Uuid
    """UUID of this start of the producer."""
    producer_seq: int
    """From 0, without a hole, per incarnation."""
    time_quality: TimeQuality = TimeQuality.EXACT
    """How far occurred_at can be trusted."""
    source_ref: str | None = None
    """Where an importer read it; null for what was recorded as it happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFact(Fact):
    """A fact about a group, and so kept in the group's partition."""

    group_id: Uuid
    """UUID of the group: the attempts at one task that are scored together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFact(GroupFact):
    """A fact about one attempt."""

    slot: int
    """Place in the group, from 0; a refill takes the slot of the attempt it replaces."""
    trajectory_id: Uuid
    """UUID of the attempt."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text by its size, its digest and its two ends."""

    size: int
    """Characters of the whole text."""
    sha256: str
    """Hex digest of the whole text in UTF-8 (lone surrogates as backslash escapes)."""
    head: str
    """The first 2,000 characters; the whole text when it has at most 4,000."""
    tail: str
    """The last 2,000 characters; empty when head is the whole text."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Shorten `text`. A character that UTF-8 can't carry is kept as its escape."""
        encoded = text.encode("utf-8", "backslashreplace")
        size = len(text)
        if not text.isascii():
            text = encoded.decode()
        head, tail = text, ""
        if len(text) > 2 * EXCERPT_CHARS:
            head, tail = text[:EXCERPT_CHARS], text[-EXCERPT_CHARS:]
        return cls(size, hashlib.sha256(encoded).hexdigest(), head, tail)

    @property
    def whole(self) -> bool:
        """Whether head is the whole text."""
        return not self.tail
