"""Facts that a producer records about itself, so that the books know what they can't see."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.facts.base import ANY_NUMBER, Excerpt, Fact, Uuid
from ledger.facts.lists import LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAlive(Fact):
    """A producer's pulse, appended once all before it was acknowledged. What a killed producer
    never sent, it recorded after its last pulse in the log, and within `interval_s` and the time
    that an append took."""

    accepted: int
    """Facts taken from callers so far, those still queued and those given up included."""
    last_seq: int = field(metadata=ANY_NUMBER)
    """The sequence number before this fact's own; -1: none."""
    interval_s: float
    """The next pulse comes within this many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerClosed(Fact):
    """A producer ended in good order; nothing of it is missing up to here."""

    accepted: int
    """Facts taken from callers, those given up included."""
    last_seq: int = field(metadata=ANY_NUMBER)
    """The sequence number before this fact's own; -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLost(Fact):
    """A producer had to give up facts."""

    count: int
    """How many since the last such fact for the same reason and kind."""
    reason: LossReason
    """Why."""
    first_fact: str | None = None
    """Their kind; null: unknown, or several."""
    detail: Excerpt | None = None
    """Value, rule and place of the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsErased(Fact):
    """Facts of an erased run were left out when a log was copied. One per stretch of numbers of
    an incarnation, so that they are no hole. Its run_id is an alias: what other runs' facts said
    of the erased run, they say of the alias."""

    erased_incarnation: Uuid
    """The incarnation that had recorded them."""
    first_seq: int
    """The first number left out."""
    last_seq: int
    """The last number left out."""
