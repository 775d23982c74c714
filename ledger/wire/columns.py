"""Many facts of one kind at once: rows <-> Avro bytes by way of Arrow columns.

The fast path of both directions; `ledger.avro` with fastavro is the reference, gives the errors,
and takes over, record by record, whenever this path fails in any way. Both give the same bytes and
the same values (`tests/test_columns.py`). One record costs about a fifth of what it costs alone.
"""
# Arrow's stubs leave type arguments out.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import operator
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro  # pyright: ignore[reportMissingTypeStubs]

from ledger.avro import WireType
from ledger.wire.checks import CALENDAR_US, RecordCheck
from ledger.wire.column_values import Column, column_of
from ledger.wire.schema import avro_schema, full_hints

# pyruhvro decodes a record that is longer than its schema without a word. So every body gets one
# more field behind it, a number that nobody who writes a record can know. Its sign makes it ten
# bytes long on the wire.
_END = "end_of_record"
_END_VALUE = -(2**62) - secrets.randbits(62)

_Result = TypeVar("_Result")

_serialize = cast("Callable[..., list[pa.BinaryArray]]", pyruhvro.serialize_record_batch)
_deserialize = cast("Callable[..., pa.RecordBatch]", pyruhvro.deserialize_array)
_arrow_schema = cast("Callable[[str], pa.Schema]", pyruhvro.avro_to_arrow_schema)


_uses_threads = False
_lost_threads = False
"""pyruhvro encodes with threads that it keeps. A child of fork hasn't got them, and would wait for
them for ever; decoding takes none."""


def _note_fork() -> None:
    global _lost_threads
    _lost_threads = _uses_threads


os.register_at_fork(after_in_child=_note_fork)

# The first array makes Arrow look for pandas. A thread that imports while its process forks leaves
# a lock behind that no thread of the child gets past, so it does that here.
pa.array([0])


def _varint(value: int) -> bytes:
    """An Avro long: zigzag, then seven bits to the byte, lowest first."""
    zigzag = (value << 1) ^ (value >> 63)
    groups = [zigzag >> shift & 0x7F for shift in range(0, max(zigzag.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


_END_BYTES = _varint(_END_VALUE)


class ColumnarFailure(Exception):
    """The fast path can't take these records; do them one by one."""


@cache
def _encode_schema(cls: type) -> tuple[str, pa.Schema]:
    text = json.dumps(avro_schema(cls))
    return text, _arrow_schema(text)


def arrow_schema(cls: type) -> pa.Schema:
    """The columns that `decode_bodies` gives for a class."""
    return _encode_schema(cls)[1]


@cache
def _decode_schema(cls: type) -> str:
    schema = avro_schema(cls)
    schema["fields"] = [*schema["fields"], {"name": _END, "type": "long"}]
    return json.dumps(schema)


def encode_rows(wire: WireType, rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """(n,) rows of fields, as callers give them -> (n,) encoded facts.

    Raises ColumnarFailure when any row is invalid; `ledger.avro` then says which and why."""
    global _uses_threads
    if _lost_threads:
        raise ColumnarFailure("pyruhvro can't encode in a child of fork")
    _uses_threads = True
    return _guarded(lambda: _encode(wire, rows))


def _encode(wire: WireType, rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    text, schema = _encode_schema(wire.cls)
    given = _given(wire, rows)
    if missing := wire.check.required - given.keys():
        raise ColumnarFailure(f"no row has the required field {min(missing)}")
    arrays = [
        column(given[name]) if name in given else pa.repeat(default, len(rows))
        for name, column, default in _columns(wire.cls, wire.name)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    header = wire.header
    return [
        header + (body or b"") for part in _serialize(batch, text, 1) for body in part.to_pylist()
    ]


def _given(wire: WireType, rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """The columns of the fields that any row has; most rows of a kind have the same ones."""
    names = rows[0].keys()
    if not all(row.keys() == names for row in rows):
        names = dict.fromkeys(name for row in rows for name in row).keys()
        usual = {
            field.name: field.default()
            for field in wire.check.fields
            if field.name in names and field.default is not None
        }
        rows = [{**usual, **row} for row in rows]
    if not names <= wire.check.known:
        raise ColumnarFailure("a row has an unknown field")
    columns = zip(*map(operator.itemgetter(*names), rows), strict=True)
    return dict(zip(names, columns, strict=True))


@cache
def _columns(cls: type, name: str) -> list[tuple[str, Column, Any]]:
    """Name, column and default of each field; no default (None): required."""
    check, hints, schema = RecordCheck(cls, ""), full_hints(cls), arrow_schema(cls)
    return [
        (
            field.name,
            column_of(hints[field.name], field, arrow.type, f"{name}.{field.name}"),
            None if field.default is None else pa.scalar(field.default(), arrow.type),
        )
        for field, arrow in zip(check.fields, schema, strict=True)
    ]


def _check(column: Any, field: str) -> None:
    """Raise ColumnarFailure for what Arrow holds and the reference refuses or reads otherwise."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        bounds: Any = pc.min_max(column.cast(pa.int64())).as_py()
        first, last = bounds["min"], bounds["max"]
        if first is not None and not (first in CALENDAR_US and last in CALENDAR_US):
            raise ColumnarFailure(f"a time of {field} lies outside of the years 1 to 9999")
    elif pa.types.is_map(kind):
        rows = pc.list_parent_indices(pa.ListArray.from_arrays(column.offsets, column.keys))
        pairs = pa.table({"row": rows, "key": column.keys})
        if pairs.group_by(["row", "key"]).aggregate([]).num_rows < len(pairs):
            raise ColumnarFailure(f"a key of {field} occurs twice")
        _check(column.items, field)
    elif pa.types.is_struct(kind) or pa.types.is_list(kind):
        parts = column.flatten()
        for part in parts if isinstance(parts, list) else [parts]:
            _check(part, field)


def decode_bodies(wire: WireType, bodies: Sequence[bytes]) -> pa.RecordBatch:
    """(n,) bodies without their headers, written with the current schema -> (n,) columns.

    Times come as naive microseconds in UTC. Raises ColumnarFailure when any record is truncated,
    damaged or has trailing bytes."""
    end = _END_BYTES
    ended = [body + end for body in bodies]
    batch = _guarded(lambda: _deserialize(ended, _decode_schema(wire.cls)))
    _guarded(lambda: batch.validate(full=True))  # pyruhvro takes any bytes for UTF-8
    ends = batch.column(batch.num_columns - 1)
    if pc.unique(ends).to_pylist() != [_END_VALUE]:
        raise ColumnarFailure("a record doesn't end where its schema ends")
    batch = batch.select(list(range(batch.num_columns - 1)))
    for column, field in zip(batch.columns, batch.schema.names, strict=True):
        _check(column, field)
    return batch


def _guarded(call: Callable[[], _Result]) -> _Result:
    """What `call` gives. Raises ColumnarFailure for any error of it."""
    try:
        return call()
    except BaseException as error:
        # Garbage makes the Rust code panic, and a panic is no Exception.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ColumnarFailure(str(error)) from error
        raise
