"""What a log holds of one run, and which runs it holds, read up to its present end.

Invariant: of other runs only their declarations are decoded, and a record that can't be decoded is
passed over (the projector names it).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ledger.avro import HEADER_BYTES, DecodeError, WireType, decode_datum, writer_schemas
from ledger.facts import Fact, RunDeclared
from ledger.log import EventLog, Record, RecordBatch, Topic, reached
from ledger.tokens import Tokens, TokensDamaged, TurnTokens, unpack
from ledger.wire.checks import Datum
from ledger.wire.objects import build

Found = tuple[str, bytes, WireType, Datum]
"""Key, value, class and content of a record."""


def records_of(log: EventLog, topic: Topic, run_id: str) -> Iterator[list[Found]]:
    """The records of a topic that are of a run, some at a time."""
    needle = run_id.encode()
    for batch in _batches(log, topic):
        found: list[Found] = []
        for key, value in zip(batch.keys, batch.values, strict=True):
            if needle not in value:
                continue  # decoding is most of the time
            try:
                wire, datum = decode_datum(value)
            except DecodeError:
                continue
            if datum.get("run_id") == run_id:
                found.append((key, value, wire, datum))
        yield found


def raw_records_of(log: EventLog, run_id: str) -> Iterator[list[Record]]:
    """The facts of a run as another log takes them."""
    for found in records_of(log, "events", run_id):
        if found:
            yield [Record(key, value) for key, value, _, _ in found]


def facts_of_run(log: EventLog, run_id: str) -> Iterator[Fact]:
    """The facts of a run, partition by partition in order."""
    for found in records_of(log, "events", run_id):
        for _, _, wire, datum in found:
            yield build(wire.cls, datum)


def declared_runs(log: EventLog) -> dict[str, str]:
    """Run id -> its name, by its last declaration."""
    headers = {
        header for header, writer in writer_schemas().items() if writer.wire.cls is RunDeclared
    }
    names: dict[str, str] = {}
    for batch in _batches(log, "events"):
        for value in batch.values:
            if value[:HEADER_BYTES] in headers:
                with contextlib.suppress(DecodeError):
                    _, datum = decode_datum(value)
                    names[datum["run_id"]] = datum["name"]
    return names


def tokens_of_run(log: EventLog, run_id: str) -> dict[tuple[str, int], Tokens]:
    """(trajectory id, turn number) -> what the turn added. A damaged payload is left out."""
    parts: dict[tuple[str, int], dict[int, TurnTokens]] = {}
    for found in records_of(log, "tokens", run_id):
        for _, _, wire, datum in found:
            part = build(wire.cls, datum)
            if isinstance(part, TurnTokens):
                parts.setdefault((part.trajectory_id, part.turn_no), {})[part.chunk] = part
    whole: dict[tuple[str, int], Tokens] = {}
    for key, chunks in parts.items():
        try:
            whole[key] = unpack(*chunks.values())
        except TokensDamaged:
            continue
    return whole


def _batches(log: EventLog, topic: Topic) -> Iterator[RecordBatch]:
    ends = log.end_positions(topic)
    with log.reader(log.start_positions(topic)) as reader:
        while not reached(reader.positions, ends):
            yield from reader.poll(0.2)
