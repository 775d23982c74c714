"""Fields of many facts -> Arrow columns, checked a column at a time.

`ledger.wire.checks` says what a field takes, value by value; this gives the same columns for valid
values, at a fraction of the cost, and raises (anything) for a column that has to be looked at value
by value. It never lets an invalid value pass.
"""
# Arrow's stubs leave type arguments out.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa

from ledger.facts.base import Excerpt, Uuid
from ledger.wire.checks import CALENDAR_US, FieldCheck, RecordCheck
from ledger.wire.schema import full_hints, is_enum, is_record, optional

Column = Callable[[Sequence[Any]], Any]
"""(n,) values as callers give them -> (n,) Arrow array."""

_NONE = type(None)
_HEX_TO_0 = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_UUID_LINE = b"00000000-0000-0000-0000-000000000000\n"


def column_of(hint: Any, check: FieldCheck, arrow: Any, place: str) -> Column:
    """How the values of one field become a column of the type `arrow`."""
    inner, nullable = optional(hint)
    plain = _plain(check, arrow, place)
    if inner == Uuid:
        return _uuids(plain, arrow)
    if inner is datetime:
        return _times(plain, arrow)
    if is_enum(inner):
        return _enums(inner, plain, arrow)
    if is_record(inner) and (inner is Excerpt or not nullable):
        return _records(inner, plain, nullable, arrow, place)
    if typing.get_origin(inner) is list and not nullable:
        (item,) = typing.get_args(inner)
        if is_record(item):
            return _lists(_records(item, _unusual, False, arrow.value_type, place), plain, arrow)
    return plain


def _plain(check: FieldCheck, arrow: Any, place: str) -> Column:
    plain, convert = check.plain, check.convert

    def column(values: Sequence[Any]) -> Any:
        if not plain.issuperset(map(type, values)):
            values = [value if type(value) in plain else convert(value, place) for value in values]
        return pa.array(values, arrow)

    return column


def _uuids(plain: Column, arrow: Any) -> Column:
    usual = {str, _NONE}

    def column(values: Sequence[Any]) -> Any:
        if not usual.issuperset(map(type, values)):
            return plain(values)
        distinct = set(values) - {None}
        # So many lines that all look like a UUID are so many UUIDs.
        lines = "".join([f"{each}\n" for each in distinct]).encode()
        if lines.translate(_HEX_TO_0) != _UUID_LINE * len(distinct):
            return plain(values)  # says which one is none
        return pa.array(values, arrow)

    return column


def _times(plain: Column, arrow: Any) -> Column:
    usual = {int, _NONE}

    def column(values: Sequence[Any]) -> Any:
        if not usual.issuperset(map(type, values)):
            return plain(values)
        times = [value for value in values if value is not None]
        if times and not (min(times) in CALENDAR_US and max(times) in CALENDAR_US):
            return plain(values)  # says which one
        return pa.array(values, arrow)

    return column


def _enums(enum: type[StrEnum], plain: Column, arrow: Any) -> Column:
    usual = {str, _NONE, enum}
    known: dict[Any, Any] = {None: None} | {member.value: member.value for member in enum}

    def column(values: Sequence[Any]) -> Any:
        if not usual.issuperset(map(type, values)):
            return plain(values)
        return pa.array([known[value] for value in values], arrow)

    return column


def _lists(items: Column, plain: Column, arrow: Any) -> Column:
    usual = {list, tuple}

    def column(values: Sequence[Any]) -> Any:
        if not usual.issuperset(map(type, values)):
            return plain(values)
        ends = pa.array([0, *accumulate(map(len, values))], pa.int32())
        return pa.ListArray.from_arrays(ends, items(list(chain.from_iterable(values))), type=arrow)

    return column


def _unusual(values: Sequence[Any]) -> Any:
    raise TypeError(f"not all of one class: {set(map(type, values))}")


def _records(cls: type, plain: Column, nullable: bool, arrow: Any, place: str) -> Column:
    check, hints = RecordCheck(cls, place), full_hints(cls)
    fields = [
        (attrgetter(each.name), column_of(hints[each.name], each, arrow.field(i).type, place))
        for i, each in enumerate(check.fields)
    ]
    # A null struct has children too, which nobody looks at.
    absent = _nothing(cls) if nullable else None

    def column(given: Sequence[Any]) -> Any:
        values = given
        if cls is Excerpt:
            values = [Excerpt.of(value) if type(value) is str else value for value in values]
        mask = None
        kinds = set(map(type, values))
        if nullable and _NONE in kinds:
            kinds.discard(_NONE)
            mask = pa.array([value is None for value in values], pa.bool_())
            values = [absent if value is None else value for value in values]
        if not kinds <= {cls}:
            return plain(given)
        children = [child(list(map(get, values))) for get, child in fields]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)

    return column


def _nothing(cls: type) -> Any:
    return Excerpt(0, "", "", "") if cls is Excerpt else None
