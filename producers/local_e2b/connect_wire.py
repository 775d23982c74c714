"""The Connect protocol as the e2b SDK speaks it: JSON, no compression.

A stream is a row of envelopes: 1 byte of flags (2: the last one), 4 bytes of length (big endian),
JSON. The last envelope of a stream is `{}` or `{"error": {"code", "message"}}`.
"""

from __future__ import annotations

import json
import struct
from typing import Any

STREAM_TYPE = "application/connect+json"
HEADER = struct.Struct(">BI")
COMPRESSED, LAST = 1, 2
ENVELOPE_MAX = 16 << 20

STATUS_OF_CODE = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "no_space": 507,
    "unimplemented": 501,
    "unavailable": 503,
}
"""HTTP status of an error code; `no_space` is ours and goes out as `resource_exhausted`."""


class WireError(ValueError):
    """Bytes that are no envelope of JSON; the message says what is wrong."""


def envelope(message: dict[str, Any], flags: int = 0) -> bytes:
    """One envelope. Example: `envelope({}, LAST) == b"\\x02\\0\\0\\0\\x02{}"`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(flags, len(body)) + body


def last(code: str | None = None, message: str = "") -> bytes:
    """The envelope that ends a stream, well or with an error."""
    error = {} if code is None else {"error": {"code": code, "message": message}}
    return envelope(error, LAST)


def read_envelopes(body: bytes) -> list[dict[str, Any]]:
    """The messages of a request body, without a last one. Raises WireError."""
    messages: list[dict[str, Any]] = []
    at = 0
    while at < len(body):
        if len(body) - at < HEADER.size:
            raise WireError(f"an envelope's header has 5 bytes, got {len(body) - at} (byte {at})")
        flags, size = HEADER.unpack_from(body, at)
        at += HEADER.size
        if size > ENVELOPE_MAX or len(body) - at < size:
            raise WireError(f"an envelope says {size} bytes, {len(body) - at} came (byte {at})")
        if flags & COMPRESSED:
            raise WireError(f"compressed envelopes are not read (byte {at - HEADER.size})")
        if not flags & LAST:
            messages.append(read_message(body[at : at + size]))
        at += size
    return messages


def read_message(body: bytes) -> dict[str, Any]:
    """One JSON object. Raises WireError."""
    try:
        message = json.loads(body or b"{}")
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"a message is a JSON object, got {type(message).__name__}")
    return message


def timeout_s(header: str | None) -> float | None:
    """Seconds of `connect-timeout-ms`; None where there is none. Raises WireError."""
    if not header:
        return None
    if not header.isdecimal() or len(header) > 10:
        raise WireError(f"connect-timeout-ms must be at most 10 digits, got {header!r}")
    return int(header) / 1000
