"""Where verified token payloads lie: group and digest -> offset in topic `tokens`.

Invariant: what the index has was whole, matched its digest and can be trained on. A payload that
matches its digest and can't (nan, a mask that is no mask, an id out of range) is known to be bad:
no repetition can make it better, so nobody waits for it.

The payloads themselves stay in the log, but for a bounded cache of what was read last: they are
most of a run's bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ledger.batches import finite
from ledger.tokens import Columns, TokensDamaged, TurnTokens, ids_of, join

CACHE_BYTES = 256 * 1024 * 1024
"""Most bytes of payloads kept in memory."""


@dataclass(slots=True)
class GroupTokens:
    """Payloads of one group. All lie in one partition, that of the group."""

    partition: int
    first_offset: int
    """Of its first payload."""
    offsets: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Digest -> offsets of its records, in order of their chunks; empty when it is bad."""
    parts: dict[str, dict[int, tuple[int, TurnTokens]]] = field(
        default_factory=dict[str, dict[int, tuple[int, TurnTokens]]]
    )
    """Digest -> chunk -> (offset, record), while chunks are missing."""


class TokenIndex:
    """Payloads of all groups that are not done with."""

    def __init__(self, vocabulary_size: int | None, cache_bytes: int = CACHE_BYTES) -> None:
        self._vocabulary_size = vocabulary_size
        self._groups: dict[str, GroupTokens] = {}
        self._cache: OrderedDict[str, Columns] = OrderedDict()
        self._cache_left = cache_bytes

    def add(self, partition: int, offset: int, payload: TurnTokens) -> str | None:
        """Take up a record; why it can never be trained on, or null."""
        group = self._groups.get(payload.group_id)
        if group is None:
            group = self._groups[payload.group_id] = GroupTokens(partition, offset)
        sha256 = payload.sha256
        if sha256 in group.offsets:
            return None
        parts = group.parts.setdefault(sha256, {})
        parts.setdefault(payload.chunk, (offset, payload))
        if len(parts) < payload.chunks:
            return None
        del group.parts[sha256]
        try:
            columns = join([part for _, part in parts.values()])
        except TokensDamaged as error:
            return str(error)  # sent again, it may be whole
        problem = self._problem(payload, columns)
        if problem is None:
            group.offsets[sha256] = tuple(parts[chunk][0] for chunk in sorted(parts))
            self._remember(sha256, columns)
        else:
            group.offsets[sha256] = ()
        return problem

    def known(self, group_id: str, sha256: str) -> bool:
        """Whether nothing more is to come for this digest."""
        group = self._groups.get(group_id)
        return group is not None and sha256 in group.offsets

    def verified(self, group_id: str, sha256: str) -> bool:
        """Whether the payload has arrived, matched its digest and can be trained on."""
        group = self._groups.get(group_id)
        return group is not None and bool(group.offsets.get(sha256))

    def places(self, group_id: str, sha256: str) -> tuple[int, tuple[int, ...]]:
        """Partition and offsets of a verified payload's records. Raises KeyError."""
        group = self._groups[group_id]
        return group.partition, group.offsets[sha256]

    def cached(self, sha256: str) -> Columns | None:
        """The payload itself, if it was read lately."""
        return self._cache.get(sha256)

    def first_offset(self, group_id: str) -> tuple[int, int] | None:
        """Partition and offset of a group's first payload; null: it has none."""
        group = self._groups.get(group_id)
        return None if group is None else (group.partition, group.first_offset)

    def forget(self, group_id: str) -> None:
        """A group is done with."""
        self._groups.pop(group_id, None)

    def _problem(self, payload: TurnTokens, columns: Columns) -> str | None:
        ids, mask = ids_of(columns[0]), columns[1]
        where = f"trajectory {payload.trajectory_id} turn {payload.turn_no}"
        if ids and min(ids) < 0:
            return f"token ids must be at least 0, got {min(ids)} ({where})"
        if ids and self._vocabulary_size is not None and max(ids) >= self._vocabulary_size:
            return f"token ids must be below {self._vocabulary_size}, got {max(ids)} ({where})"
        if mask and max(mask) > 1:
            return f"a loss mask must be 0 or 1, got {max(mask)} ({where})"
        if not finite(columns[2]):
            return f"logprobs must be finite numbers ({where})"
        return None

    def _remember(self, sha256: str, columns: Columns) -> None:
        if sha256 in self._cache:
            return
        self._cache[sha256] = columns
        self._cache_left -= sum(map(len, columns))
        while self._cache_left < 0:
            _, dropped = self._cache.popitem(last=False)
            self._cache_left += sum(map(len, dropped))
