"""Dataclass -> Avro schema, as pure functions over type hints.

`str` string, `int` long, `float` double, `bool` boolean, `bytes` bytes, `datetime`
timestamp-micros (UTC), a StrEnum an enum, a dataclass a record, `list[X]` an array,
`dict[str, X]` a map, `X | None` a union with null first. There is no other union.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeGuard

from ledger.facts.base import ANY_NUMBER, Uuid

NAMESPACE = "rollbook"

Schema = dict[str, Any]
Docs = Mapping[tuple[str, str], str]
"""Documentation by (class name, field name); ("Name", "") is the class's own."""

_SCALARS: dict[object, Any] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    bytes: "bytes",
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
}


def avro_schema(cls: type, docs: Docs | None = None) -> Schema:
    """The Avro record schema of a dataclass. No fingerprint sees the `docs` in it."""
    return _record(cls, docs or {}, set())


def optional(hint: object) -> tuple[object, bool]:
    """`X | None` -> (X, True), X -> (X, False). Raises TypeError for any other union."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    if len(members) != 1 or len(typing.get_args(hint)) != 2:
        raise TypeError(f"a field's union must be `X | None`, got {hint}")
    return members[0], True


def is_record(hint: object) -> TypeGuard[type]:
    """Whether `hint` is a dataclass."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def is_enum(hint: object) -> TypeGuard[type[StrEnum]]:
    """Whether `hint` is a closed list."""
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def hints(cls: type) -> dict[str, object]:
    """Type of each field, in order, without annotations such as `Uuid`."""
    resolved = typing.get_type_hints(cls)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def full_hints(cls: type) -> dict[str, object]:
    """Type of each field, in order, with annotations."""
    resolved = typing.get_type_hints(cls, include_extras=True)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def uuid_fields(cls: type) -> frozenset[str]:
    """Names of the fields that hold a UUID."""
    return frozenset(name for name, hint in full_hints(cls).items() if optional(hint)[0] == Uuid)


def any_number_fields(cls: type) -> frozenset[str]:
    """Names of the fields whose numbers may be below 0, infinite or nan."""
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if field.metadata.keys() >= ANY_NUMBER.keys()
    )


def _record(cls: type, docs: Docs, named: set[str]) -> Schema:
    named.add(cls.__name__)
    schema: Schema = {"type": "record", "name": cls.__name__, "namespace": NAMESPACE}
    if doc := docs.get((cls.__name__, "")):
        schema["doc"] = doc
    schema["fields"] = [
        _field(cls, field, hint, docs, named)
        for field, hint in zip(dataclasses.fields(cls), hints(cls).values(), strict=True)
    ]
    return schema


def _field(
    cls: type, field: dataclasses.Field[Any], hint: object, docs: Docs, named: set[str]
) -> Schema:
    schema: Schema = {"name": field.name, "type": _type(hint, docs, named)}
    for owner in cls.__mro__:
        if doc := docs.get((owner.__name__, field.name)):
            schema["doc"] = doc
            break
    if field.default is not dataclasses.MISSING:
        default = field.default
        schema["default"] = default.value if isinstance(default, StrEnum) else default
    elif field.default_factory is not dataclasses.MISSING:
        schema["default"] = field.default_factory()
    return schema


def _type(hint: object, docs: Docs, named: set[str]) -> Any:
    inner, nullable = optional(hint)
    if nullable:
        return ["null", _type(inner, docs, named)]
    if inner in _SCALARS:
        return _SCALARS[inner]
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin is list:
        return {"type": "array", "items": _type(arguments[0], docs, named)}
    if origin is dict and arguments[0] is str:
        return {"type": "map", "values": _type(arguments[1], docs, named)}
    if isinstance(inner, type) and inner.__name__ in named:
        return f"{NAMESPACE}.{inner.__name__}"
    if is_enum(inner):
        named.add(inner.__name__)
        return {
            "type": "enum",
            "name": inner.__name__,
            "namespace": NAMESPACE,
            "symbols": [member.value for member in inner],
        }
    if is_record(inner):
        return _record(inner, docs, named)
    raise TypeError(f"no Avro type stands for {hint}")
