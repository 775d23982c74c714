"""Positions inside facts: where they lie in a copy of the log.

    cut.positions    of group_decided and batch_assembled: what an assembler had read
    low_water        of batch_assembled: where its successor reads from
    batch_positions  of checkpoint_saved: where the trainer reads batches on

Invariant: what a reader of the copy finds before a position, of the run that it was told of, is
what a reader of the source finds before it there. A position that no order of the copy has keeps
its text, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from consumers.copy_order import Bound
from ledger.avro import (
    HEADER_BYTES,
    decode_body,
    decode_datum,
    encode,
    too_large,
    writer_schema_of,
)
from ledger.log import Positions, Topic, TopicPartition, positions_of
from ledger.wire.checks import Datum

TELLING = frozenset({"group_decided", "batch_assembled", "checkpoint_saved"})
"""Facts that tell positions."""

Told = tuple[Datum, str]
"""A record and its field that holds positions."""


class CopiedPositions:
    """First `note` every fact of the source; then `reached` says where bounds lie in the copy, and
    `moved` tells them there."""

    def __init__(self, source_ends: Positions, target_places: Mapping[TopicPartition, int]) -> None:
        self._ends = source_ends
        self._targets = sorted(target_places)
        self._straight = len({place.partition for place in source_ends}) == 1
        self._noted: dict[Topic, dict[str | None, set[Bound]]] = {}
        self._found: dict[tuple[Topic, str | None, Bound], dict[str, int]] = {}

    def note(self, value: bytes) -> None:
        """Take up the positions that a fact tells. Raises DecodeError."""
        _, datum = decode_datum(value)
        for record, field in _told(datum):
            if self._lowest(field) or (bounds := self._bounds(record[field])) is None:
                continue
            for topic, bound in bounds.items():
                of_topic = self._noted.setdefault(topic, {})
                of_topic.setdefault(self._about(datum), set()).add(bound)

    def bounds(self, topic: Topic) -> dict[str | None, list[Bound]]:
        """The bounds of each run, each before the next. One that goes back in any partition is no
        cut that was made."""
        return {run_id: _ascending(bounds) for run_id, bounds in self._noted.get(topic, {}).items()}

    def reached(
        self, topic: Topic, run_id: str | None, bound: Bound, counts: Mapping[int, int]
    ) -> None:
        """A bound lies behind so many records of each partition of the copy."""
        self._found[topic, run_id, bound] = {
            str(place): counts.get(place.partition, 0)
            for place in self._targets
            if place.topic == topic
        }

    def moved(self, value: bytes) -> bytes | None:
        """A fact with its positions in the copy, in its writer's schema; the same object where they
        are the same, and null where the copy has none. Raises DecodeError."""
        writer = writer_schema_of(value)
        wire = replace(writer.wire, schema=writer.schema, header=value[:HEADER_BYTES])
        datum = decode_body(value[HEADER_BYTES:], writer.schema, wire)
        changed = False
        for record, field in _told(datum):
            found = self._in_copy(self._about(datum), field, record[field])
            if found is None:
                return None
            changed |= found != record[field]
            record[field] = found
        if not changed:
            return value
        again = encode(wire, datum)
        return None if too_large(wire, again) else again

    def _in_copy(
        self, run_id: str | None, field: str, told: Mapping[str, int]
    ) -> dict[str, int] | None:
        if self._lowest(field):
            topics = {place.rpartition("/")[0] for place in told}
            return {str(place): 0 for place in self._targets if place.topic in topics}
        if (bounds := self._bounds(told)) is None:
            return None
        found: dict[str, int] = {}
        for topic, bound in bounds.items():
            places = self._found.get((topic, run_id, bound))
            if places is None:
                return None
            found |= places
        return found

    def _lowest(self, field: str) -> bool:
        """Whether positions are told as the start of the copy. A low-water holds partitions back
        for reasons of their own, so that it is no bound among several; from further back a
        restart reads to the same state."""
        return field == "low_water" and not self._straight

    def _about(self, datum: Datum) -> str | None:
        """The run whose records positions bound; null: every run's. An SFT run's batches are of
        other runs' traces, and with one partition there is one order only."""
        return None if self._straight or datum.get("trace_ids") else datum["run_id"]

    def _bounds(self, told: Mapping[str, int]) -> dict[Topic, Bound] | None:
        """Told positions by topic; null for any that the source doesn't have."""
        try:
            places = positions_of(told)
        except ValueError:
            return None
        if any(at > self._ends.get(place, -1) for place, at in places.items()):
            return None
        found: dict[Topic, list[tuple[int, int]]] = {}
        for place, at in sorted(places.items()):
            found.setdefault(place.topic, []).append((place.partition, at))
        return {topic: tuple(bound) for topic, bound in found.items()}


def _told(datum: Datum) -> Iterator[Told]:
    cut: Any = datum.get("cut")
    if cut is not None:
        yield cut, "positions"
    for field in ("low_water", "batch_positions"):
        if field in datum:
            yield datum, field


def _ascending(bounds: set[Bound]) -> list[Bound]:
    kept: list[Bound] = []
    for bound in sorted(bounds, key=lambda each: (sum(at for _, at in each), each)):
        before = dict(kept[-1]) if kept else {}
        if all(at >= before.get(partition, 0) for partition, at in bound):
            kept.append(bound)
    return kept
