"""A producer's facts, numbered and encoded: the one place where an envelope is made.

A `FactEncoder` is one incarnation of one producer. Its sequence numbers have no hole: a fact gets
its number only once it could be encoded. Used by one thread at a time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import uuid_utils

from ledger.avro import WireType, check_size, encode, wire_types
from ledger.facts import TimeQuality
from ledger.log import Record
from ledger.tokens import CHUNK_TOKENS, MAX_CHUNKS, Tokens, digest, pack, split
from ledger.wire.checks import InvalidFact, show
from ledger.wire.columns import ColumnarFailure, encode_rows

_COLUMNAR_MIN_ROWS = 16
"""Of one kind. Below this the fixed cost of the columnar path is more than it saves."""
_OWN_FIELDS = frozenset({"producer", "incarnation", "producer_seq"})

Row = dict[str, Any]


class Draft(NamedTuple):
    """A fact as its caller gave it."""

    name: str
    """`turn_completed`."""
    fields: Mapping[str, Any]
    """Its fields; the envelope is filled in where it is missing. `tokens`, of a turn, is its
    payload and becomes a record of its own."""
    recorded_us: int
    """When the caller recorded it: occurred_at, unless `fields` says otherwise."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A draft that can't become a fact."""

    draft: Draft
    error: InvalidFact


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of some drafts."""

    tokens: list[Record] = field(default_factory=list[Record])
    """Payloads; to be appended before the facts that name them."""
    events: list[Record] = field(default_factory=list[Record])
    """Facts, in the order of their drafts."""
    refused: list[Refused] = field(default_factory=list[Refused])
    """Drafts that became neither."""


class _Prepared(NamedTuple):
    draft: Draft
    wire: WireType
    row: Row
    """The draft's fields with its envelope; the number comes last."""
    payload: list[Record]
    """Of its tokens, if it has any."""


class FactEncoder:
    """Numbers and encodes the facts of one incarnation."""

    def __init__(self, producer: str, run_id: str, incarnation: str | None = None) -> None:
        self.producer = producer
        self.run_id = run_id
        self.incarnation = incarnation or str(uuid.uuid4())
        self.next_seq = 0

    def encode(self, drafts: Sequence[Draft]) -> Encoded:
        """Encode `drafts`, as many of them as are valid."""
        encoded = Encoded()
        kept: list[_Prepared] = []
        for draft in drafts:
            try:
                kept.append(self._prepare(draft))
            except InvalidFact as error:
                encoded.refused.append(Refused(draft, error))
        values = self._encode_by_kind(kept)
        if values is None:
            self._encode_one_by_one(kept, encoded)
        else:
            for prepared, value in zip(kept, values, strict=True):
                _keep(encoded, prepared, value)
        self.next_seq += len(encoded.events)
        return encoded

    def _prepare(self, draft: Draft) -> _Prepared:
        wire = wire_types().get(draft.name)
        if wire is None or wire.topic != "events":
            raise InvalidFact(f"there is no fact named {draft.name!r}")
        _check_envelope(draft)
        unknown = draft.fields.get("time_quality") == TimeQuality.NONE
        row: Row = {
            "run_id": self.run_id,
            "occurred_at": None if unknown else draft.recorded_us,
            **draft.fields,
            "producer": self.producer,
            "incarnation": self.incarnation,
        }
        if "event_id" not in row:
            row["event_id"] = str(uuid_utils.uuid7())
        payload: list[Record] = []
        if wire.name == "turn_completed" and (tokens := row.pop("tokens", None)) is not None:
            payload, row["tokens_sha256"] = _payload(row, tokens)
        return _Prepared(draft, wire, row, payload)

    def _encode_by_kind(self, kept: Sequence[_Prepared]) -> list[bytes] | None:
        """(n,) values, or None when any of the rows can't be encoded."""
        places: dict[str, list[int]] = {}
        for i, prepared in enumerate(kept):
            prepared.row["producer_seq"] = self.next_seq + i
            places.setdefault(prepared.wire.name, []).append(i)
        values: list[bytes] = [b""] * len(kept)
        try:
            for at in places.values():
                wire = kept[at[0]].wire
                encoded = _encode_rows(wire, [kept[i].row for i in at])
                for i, value in zip(at, encoded, strict=True):
                    values[i] = check_size(wire, value)
        except (ColumnarFailure, InvalidFact):
            return None
        return values

    def _encode_one_by_one(self, kept: Sequence[_Prepared], encoded: Encoded) -> None:
        for prepared in kept:
            wire, row = prepared.wire, prepared.row
            row["producer_seq"] = self.next_seq + len(encoded.events)
            try:
                value = check_size(wire, encode(wire, wire.check.datum(row)))
            except InvalidFact as error:
                encoded.refused.append(Refused(prepared.draft, error))
            else:
                _keep(encoded, prepared, value)


def _encode_rows(wire: WireType, rows: Sequence[Row]) -> Sequence[bytes]:
    """(n,) encoded facts of one kind. Raises ColumnarFailure or InvalidFact when any is invalid."""
    if len(rows) < _COLUMNAR_MIN_ROWS:
        return [encode(wire, wire.check.datum(row)) for row in rows]
    return encode_rows(wire, rows)


def _check_envelope(draft: Draft) -> None:
    """Raise InvalidFact where a caller speaks for the recorder or could be taken for it."""
    fields = draft.fields
    if not _OWN_FIELDS.isdisjoint(fields):
        own = min(_OWN_FIELDS & fields.keys())
        raise InvalidFact(
            f"{draft.name}.{own} is the recorder's own and can't be given, got {show(fields[own])}"
        )
    # Readers find a repeated id of version 7 by its number alone, since only its recorder has it.
    if "event_id" in fields and str(fields["event_id"])[14:15] != "5":
        raise InvalidFact(
            f"{draft.name}.event_id must be derived, a UUID of version 5, or be left out,"
            f" got {show(fields['event_id'])}"
        )


def _keep(encoded: Encoded, prepared: _Prepared, value: bytes) -> None:
    row = prepared.row
    encoded.events.append(Record(str(row.get("group_id") or row["run_id"]), value))
    encoded.tokens.extend(prepared.payload)


def _payload(row: Row, tokens: object) -> tuple[list[Record], str]:
    """The records that carry a turn's tokens, and their digest."""
    if not isinstance(tokens, Tokens):
        kind = type(tokens).__name__
        raise InvalidFact(f"turn_completed.tokens must be Tokens, got {kind}")
    if len(tokens.ids) > MAX_CHUNKS * CHUNK_TOKENS:
        raise InvalidFact(
            f"turn_completed.tokens must be at most {MAX_CHUNKS * CHUNK_TOKENS}, got"
            f" {len(tokens.ids)}"
        )
    try:
        columns = pack(tokens)
    except ValueError as error:
        raise InvalidFact(f"turn_completed.tokens: {error}") from None
    wire = wire_types()["turn_tokens"]
    ids = ("run_id", "group_id", "trajectory_id", "turn_no", "segment")
    fields = {name: row[name] for name in ids if name in row}
    fields["sha256"] = digest(columns)
    parts = split(columns)
    records: list[Record] = []
    for number, part in enumerate(parts):
        packed = dict(zip(("token_ids", "loss_mask", "logprobs"), part, strict=True))
        places = {"chunk": number, "chunks": len(parts)}
        value = encode(wire, wire.check.datum({**fields, **packed, **places}))
        records.append(Record(str(fields["group_id"]), value))
    return records, fields["sha256"]


def now_us() -> int:
    """Microseconds since the epoch, by this machine's clock."""
    return time.time_ns() // 1000
