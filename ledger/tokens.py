"""Token payloads: what a turn added to its trajectory, packed for topic `tokens`.

They are most of a run's bytes and no account needs them, so they travel apart from the facts:
a `turn_completed` names its payload by digest, and the payload is appended first. A payload that
is too large for one record travels as several, each with a part of the tokens.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ledger.facts.base import Uuid

_Column = TypeVar("_Column", "array[int]", "array[float]")
Columns = tuple[bytes, bytes, bytes]
"""token_ids, loss_mask and logprobs of the same tokens, packed."""

CHUNK_TOKENS = 400_000
"""Most tokens of one record: 9 bytes each, and room for ids below the log's limit of 4 MiB."""
MAX_CHUNKS = 64
"""Most records of one payload."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that one turn added, prompt first."""

    ids: Sequence[int]
    """(n,) token ids."""
    loss_mask: Sequence[int]
    """(n,) 1 where the policy sampled the token, else 0."""
    logprobs: Sequence[float]
    """(n,) the engine's logprob of each sampled token; 0 where loss_mask is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """The payload of one turn."""

    run_id: Uuid
    """UUID of the run."""
    group_id: Uuid
    """UUID of the group."""
    trajectory_id: Uuid
    """UUID of the attempt."""
    turn_no: int
    """From 0 in the trajectory."""
    segment: int = 0
    """From 0; the tokens of one segment are one sequence."""
    sha256: str
    """Hex digest of token_ids, loss_mask and logprobs, one behind the other; of the whole payload,
    also in a chunk."""
    token_ids: bytes
    """(n,) little-endian int32."""
    loss_mask: bytes
    """(n,) uint8."""
    logprobs: bytes
    """(n,) little-endian float32."""
    chunk: int = 0
    """Which part of the payload this is, from 0."""
    chunks: int = 1
    """How many parts it has."""


class TokensDamaged(ValueError):
    """A payload that doesn't match its digest or whose columns differ in length."""


def pack(tokens: Tokens) -> Columns:
    """Tokens as three columns of bytes: int32, uint8, float32.

    Raises ValueError for columns of different lengths, or numbers that don't fit."""
    count = len(tokens.ids)
    if len(tokens.loss_mask) != count or len(tokens.logprobs) != count:
        raise ValueError(
            "tokens must have columns of one length, got"
            f" {count} ids, {len(tokens.loss_mask)} loss_mask, {len(tokens.logprobs)} logprobs"
        )
    try:
        ids, logprobs = array("i", tokens.ids), array("f", tokens.logprobs)
        mask = bytes(tokens.loss_mask)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"tokens must be int32, uint8 and float32 columns: {error}") from error
    return _little_endian(ids).tobytes(), mask, _little_endian(logprobs).tobytes()


def digest(columns: Columns) -> str:
    """Hex digest of packed columns."""
    return hashlib.sha256(b"".join(columns)).hexdigest()


def split(columns: Columns, chunk_tokens: int = CHUNK_TOKENS) -> list[Columns]:
    """Packed columns in parts of at most `chunk_tokens` tokens; one part when they are empty."""
    ids, mask, logprobs = columns
    starts = range(0, max(len(mask), 1), chunk_tokens)
    return [
        (
            ids[4 * at : 4 * (at + chunk_tokens)],
            mask[at : at + chunk_tokens],
            logprobs[4 * at : 4 * (at + chunk_tokens)],
        )
        for at in starts
    ]


def join(parts: Sequence[TurnTokens]) -> Columns:
    """The columns of a payload from all its records, in any order. Raises TokensDamaged."""
    parts = sorted(parts, key=lambda part: part.chunk)
    first = parts[0]
    what = f"payload of trajectory {first.trajectory_id} turn {first.turn_no}"
    numbers = [part.chunk for part in parts]
    if numbers != list(range(first.chunks)):
        raise TokensDamaged(f"{what} must have chunks 0 to {first.chunks - 1}, got {numbers}")
    columns = (
        b"".join([part.token_ids for part in parts]),
        b"".join([part.loss_mask for part in parts]),
        b"".join([part.logprobs for part in parts]),
    )
    count = len(columns[1])
    if len(columns[0]) != 4 * count or len(columns[2]) != 4 * count:
        raise TokensDamaged(
            f"{what} must have columns of one length, got {[len(column) for column in columns]}"
            " bytes"
        )
    if digest(columns) != first.sha256:
        raise TokensDamaged(f"{what} must have digest {first.sha256}, got {digest(columns)}")
    return columns


def unpack(*parts: TurnTokens) -> Tokens:
    """The tokens of a payload, from all its records. Raises TokensDamaged."""
    return unpack_columns(join(parts))


def unpack_columns(columns: Columns) -> Tokens:
    """Packed columns as numbers."""
    ids, logprobs = array("i", columns[0]), array("f", columns[2])
    return Tokens(_little_endian(ids).tolist(), list(columns[1]), _little_endian(logprobs).tolist())


def ids_of(column: bytes) -> array[int]:
    """A packed column of int32 as numbers."""
    return _little_endian(array("i", column))


def floats(column: bytes) -> array[float]:
    """A packed column of float32 as numbers."""
    return _little_endian(array("f", column))


def _little_endian(column: _Column) -> _Column:
    if sys.byteorder == "big":
        column.byteswap()
    return column
