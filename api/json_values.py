"""Values of DuckDB as JSON."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any


def plain(value: Any) -> Any:
    """What JSON can hold of a value of DuckDB: times in ISO 8601, intervals in seconds."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return plain(float(value))
        case bytes() | bytearray():
            return bytes(value).hex()
        case _:
            return str(value)


def to_json(value: Any) -> bytes:
    """A value as JSON in UTF-8."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "backslashreplace"
    )
