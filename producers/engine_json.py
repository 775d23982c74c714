"""Fields of an engine's JSON answers, read with a complaint that names what is wrong."""

from __future__ import annotations

import math
from typing import Any, cast

Json = dict[str, Any]
MESSAGE_MAX = 1000
"""Characters kept of an error's text: some of the engine's echo the whole request."""


class WrongAnswer(ValueError):
    """An answer breaks the rules; the message has the value, the rule and the field."""


def error_text(answer: object) -> str:
    """What an error's JSON body says, in any of the engine's three shapes."""
    if isinstance(answer, dict):
        body = cast(Json, answer)
        error = body.get("error")
        told = cast(Json, error).get("message") if isinstance(error, dict) else error
        answer = told or body.get("message") or body.get("detail") or body
    text = str(answer)
    return text if len(text) <= MESSAGE_MAX else text[:MESSAGE_MAX] + "…"


def mapping(value: object, place: str) -> Json:
    if not isinstance(value, dict):
        raise WrongAnswer(f"{place} must be an object, got {str(value)[:80]!r}")
    return cast(Json, value)


def sequence(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise WrongAnswer(f"{place} must be a list, got {str(value)[:80]!r}")
    return cast(list[Any], value)


def finite(value: object) -> float | None:
    """The number, or None for anything that is none or has no place on the line."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count(fields: Json, name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise WrongAnswer(f"{name} must be a count, got {value!r}")
    return value


def count_or_none(fields: Json, name: str) -> int | None:
    return None if fields.get(name) is None else count(fields, name)


def seconds(meta: Json, name: str) -> float | None:
    """None where the engine keeps no such time (without --enable-metrics), or a clock jumped."""
    value = finite(meta.get(name))
    return value if value is not None and value >= 0 else None


def total_count(parts: list[Json], name: str) -> int | None:
    counts = [count_or_none(part, name) for part in parts]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) and known else None


def total_rate(parts: list[Json], name: str) -> float | None:
    rates = [seconds(part, name) for part in parts]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) and known else None
