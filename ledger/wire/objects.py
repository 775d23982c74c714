"""Decoded plain values -> typed objects, by the fields' type hints."""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from ledger.wire.schema import hints, is_enum, is_record, optional


def build(cls: type, datum: dict[str, Any]) -> Any:
    """A `cls` from what the Avro reader gives for it."""
    return cls(**{name: convert(datum[name]) for name, convert in _converters(cls).items()})


@cache
def _converters(cls: type) -> dict[str, Callable[[Any], Any]]:
    return {name: _converter(hint) for name, hint in hints(cls).items()}


def _converter(hint: object) -> Callable[[Any], Any]:
    inner, nullable = optional(hint)
    convert = _not_null(inner)
    return (lambda value: None if value is None else convert(value)) if nullable else convert


def _not_null(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        item = _converter(arguments[0])
        return lambda value: [item(each) for each in value]
    if is_enum(hint):
        return hint
    if is_record(hint):
        return lambda value: build(hint, value)
    return lambda value: value
