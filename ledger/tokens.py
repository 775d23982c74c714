"""Token payloads: what a turn added to its trajectory, packed for topic `tokens`.

They are most of a run's bytes and no account needs them, so they travel apart from the facts:
a `turn_completed` names its payload by digest, and the payload is appended first.
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
    """Hex digest of token_ids, loss_mask and logprobs, one behind the other."""
    token_ids: bytes
    """(n,) little-endian int32."""
    loss_mask: bytes
    """(n,) uint8."""
    logprobs: bytes
    """(n,) little-endian float32."""


class TokensDamaged(ValueError):
    """A payload that doesn't match its digest or whose columns differ in length."""


def pack(tokens: Tokens) -> tuple[bytes, bytes, bytes]:
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


def digest(columns: tuple[bytes, bytes, bytes]) -> str:
    """Hex digest of packed columns."""
    return hashlib.sha256(b"".join(columns)).hexdigest()


def unpack(payload: TurnTokens) -> Tokens:
    """The tokens of a payload. Raises TokensDamaged."""
    columns = (payload.token_ids, payload.loss_mask, payload.logprobs)
    count = len(payload.loss_mask)
    if len(payload.token_ids) != 4 * count or len(payload.logprobs) != 4 * count:
        raise TokensDamaged(
            f"payload of trajectory {payload.trajectory_id} turn {payload.turn_no} must have"
            f" columns of one length, got {[len(column) for column in columns]} bytes"
        )
    if digest(columns) != payload.sha256:
        raise TokensDamaged(
            f"payload of trajectory {payload.trajectory_id} turn {payload.turn_no} must have"
            f" digest {payload.sha256}, got {digest(columns)}"
        )
    ids, logprobs = array("i", payload.token_ids), array("f", payload.logprobs)
    return Tokens(
        _little_endian(ids).tolist(), list(payload.loss_mask), _little_endian(logprobs).tolist()
    )


def _little_endian(column: _Column) -> _Column:
    if sys.byteorder == "big":
        column.byteswap()
    return column
