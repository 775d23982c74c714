"""A foreign configuration, fit for a fact: no secrets, no long texts."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from producers.importers.source import digest_of

SECRET = re.compile(r"key|token(?!s)|secret|passw|credential|auth|cookie", re.IGNORECASE)
"""Names whose text values are left out."""
MAX_TEXT = 500
MAX_BYTES = 100_000
"""Of a whole configuration; a larger one is kept as its digest."""


def configuration_of(value: Any) -> str:
    """Canonical JSON for run_declared.configuration. Texts of secret-looking names become "***",
    long ones their size and digest."""
    text = json.dumps(_scrubbed("", value), sort_keys=True, separators=(",", ":"))
    if len(text) > MAX_BYTES:
        return json.dumps(_digest(text))
    return text


def _scrubbed(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast(dict[str, Any], value)
        return {str(key): _scrubbed(str(key), item) for key, item in pairs.items()}
    if isinstance(value, list):
        return [_scrubbed(name, item) for item in cast(list[Any], value)]
    if isinstance(value, str):
        if value and SECRET.search(name):
            return "***"
        return value if len(value) <= MAX_TEXT else _digest(value)
    if isinstance(value, float) and value - value != 0:  # nan and infinity are no JSON
        return str(value)
    return value if isinstance(value, int | float | None) else str(value)  # YAML has dates


def _digest(text: str) -> dict[str, Any]:
    return {"size": len(text), "sha256": digest_of(text)}
