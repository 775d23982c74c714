"""Fields as a caller gives them -> the datum that is encoded, or an error that says which field.

The Avro writer alone would not do: it writes 1.5 into a long as 1, "no" into a boolean as true,
and a naive datetime as if it were local time.
"""

from __future__ import annotations

import dataclasses
import re
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

from ledger.facts.base import Excerpt, Uuid
from ledger.wire.schema import is_enum, is_record, optional

Datum = dict[str, Any]
Convert = Callable[[Any, str], Any]
"""(value, place) -> what the Avro writer gets. Raises InvalidFact."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = range(-(2**63), 2**63)


def to_micros(moment: datetime) -> int:
    """Microseconds since the epoch. Integer arithmetic: floats lose microseconds."""
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


CALENDAR_US = range(
    to_micros(datetime.min.replace(tzinfo=UTC)), to_micros(datetime.max.replace(tzinfo=UTC)) + 1
)
"""Every time that Python can hold, in microseconds since the epoch."""

CLOCKS_DIFFER_US = 10_000_000
"""A time that lies no further ahead may be another machine's present."""


class InvalidFact(ValueError):
    """A field is missing, unknown or of a wrong type; the message says value, rule and place."""


@dataclass(frozen=True, slots=True)
class FieldCheck:
    """What one field of a record takes."""

    name: str
    plain: frozenset[type]
    """A value of exactly one of these types is encoded as it is."""
    convert: Convert
    """For every other value."""
    default: Callable[[], Any] | None
    """Null: required."""


class RecordCheck:
    """What the fields of one class take. Compiled once, since it runs for every fact."""

    __slots__ = ("fields", "known", "name", "required")

    def __init__(self, cls: type, name: str) -> None:
        self.name = name
        hints = _hints(cls)
        self.fields = tuple(
            FieldCheck(
                field.name,
                _plain(hints[field.name]),
                _converter(hints[field.name]),
                _default(field),
            )
            for field in dataclasses.fields(cls)
        )
        self.known = frozenset(field.name for field in self.fields)
        self.required = frozenset(field.name for field in self.fields if field.default is None)

    def datum(self, given: Mapping[str, Any]) -> Datum:
        """The datum of the fields that a caller gave. Raises InvalidFact."""
        datum: Datum = {}
        for field in self.fields:
            if field.name in given:
                value = given[field.name]
            elif field.default is not None:
                value = field.default()
            else:
                raise InvalidFact(f"{self.name}.{field.name} is required, got none")
            if type(value) not in field.plain:
                value = field.convert(value, f"{self.name}.{field.name}")
            datum[field.name] = value
        if not given.keys() <= self.known:
            unknown = ", ".join(sorted(given.keys() - self.known))
            names = ", ".join(field.name for field in self.fields)
            raise InvalidFact(f"{self.name} has no field {unknown} (fields: {names})")
        return datum

    def explain(self, datum: Datum) -> None:
        """Raise InvalidFact for the field that keeps `datum` from being encoded, if it is one of
        those that `datum` only looked at the type of."""
        for field in self.fields:
            if datum[field.name] is not None and field.plain:
                field.convert(datum[field.name], f"{self.name}.{field.name}")


def _hints(cls: type) -> dict[str, object]:
    """Type of each field, `Uuid` told from other text."""
    resolved = typing.get_type_hints(cls, include_extras=True)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None


def _plain(hint: object) -> frozenset[type]:
    inner, nullable = optional(hint)
    if not is_enum(inner) and not any(inner is scalar for scalar in (str, int, float, bool, bytes)):
        return frozenset()
    kind = cast(type, inner)
    return frozenset({kind, type(None)} if nullable else {kind})


def _converter(hint: object) -> Convert:
    inner, nullable = optional(hint)
    convert = _not_null(inner)
    if not nullable:
        return convert
    return lambda value, place: None if value is None else convert(value, place)


def _not_null(hint: Any) -> Convert:
    if hint == Uuid:
        return _uuid
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        item = _converter(arguments[0])
        return lambda value, place: [
            item(each, f"{place}[{i}]")
            for i, each in enumerate(_expect(value, (list, tuple), place))
        ]
    if origin is dict:
        item = _converter(arguments[1])
        return lambda value, place: {
            _str(key, f"{place} key"): item(each, f"{place}[{key!r}]")
            for key, each in _expect(value, (dict,), place).items()
        }
    if is_enum(hint):
        return _enum(hint)
    if is_record(hint):
        return _nested(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    return lambda value, place: _expect(value, (hint,), place)


def _expect(value: Any, kinds: tuple[type, ...], place: str) -> Any:
    if type(value) in kinds:
        return value
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise InvalidFact(f"{place} must be {wanted}, got {show(value)} ({type(value).__name__})")


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _uuid(value: Any, place: str) -> str:
    if isinstance(value, uuid.UUID):
        return str(value)
    if not _is_uuid(_expect(value, (str,), place)):
        raise InvalidFact(f"{place} must be a lower-case UUID, got {show(value)}")
    return value


@lru_cache(maxsize=4096)  # ids of runs, groups and attempts come again and again
def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _int(value: Any, place: str) -> int:
    if _expect(value, (int,), place) not in _INT64:
        raise InvalidFact(f"{place} must fit in 64 bits, got {show(value)}")
    return value


def _float(value: Any, place: str) -> float:
    try:
        return float(_expect(value, (float, int), place))
    except OverflowError:
        raise InvalidFact(f"{place} must fit in a double, got {show(value)}") from None


def _time(value: Any, place: str) -> int:
    if type(value) is int:  # microseconds already, by a clock that reads them
        micros = value
    else:
        _expect(value, (datetime,), place)
        if value.utcoffset() is None:
            raise InvalidFact(f"{place} must have a time zone, got the naive {value.isoformat()}")
        micros = to_micros(value)
    if micros not in CALENDAR_US:  # no reader could hold it
        raise InvalidFact(f"{place} must lie in the years 1 to 9999 UTC, got {show(value)}")
    return micros


def _str(value: Any, place: str) -> str:
    try:
        _expect(value, (str,), place).encode()
    except UnicodeEncodeError as error:
        raise InvalidFact(
            f"{place} must be text that UTF-8 can carry, got {show(value)}: {error.reason}"
            f" at character {error.start}"
        ) from None
    return value


_SCALARS: dict[object, Convert] = {str: _str, int: _int, float: _float, datetime: _time}


def _enum(enum: type[StrEnum]) -> Convert:
    values = {member.value: member.value for member in enum}

    def convert(value: Any, place: str) -> str:
        try:
            return values[value]
        except (KeyError, TypeError):
            listed = ", ".join(values)
            raise InvalidFact(f"{place} must be one of {listed}, got {show(value)}") from None

    return convert


def _nested(cls: type) -> Convert:
    fields = {name: _converter(hint) for name, hint in _hints(cls).items()}

    def convert(value: Any, place: str) -> Datum:
        if cls is Excerpt and type(value) is str:
            value = Excerpt.of(value)
        _expect(value, (cls,), place)
        return {
            name: item(getattr(value, name), f"{place}.{name}") for name, item in fields.items()
        }

    return convert


def show(value: Any) -> str:
    """A value for an error's message, cut where it is long."""
    try:
        shown = repr(value)
    except Exception as error:  # such as of an integer of more than 4300 digits
        return f"what has no repr ({error})"
    return shown if len(shown) <= 80 else f"{shown[:60]}... ({len(shown)} characters)"
