"""Token payloads of a batch: from memory where they were read lately, else from the log.

Invariant: what is handed out has the digest that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from consumers.assembling.token_index import TokenIndex
from ledger.avro import decode
from ledger.log import EventLog, LogError, LogUnavailable, TopicPartition
from ledger.tokens import Columns, TurnTokens, join

NEAR = 2_000
"""Records that are read over, rather than the reader moved."""


class PayloadLost(LogError):
    """A payload that was verified is not in the log any more."""

    def __init__(self, group_id: str, detail: str) -> None:
        super().__init__(f"{detail} (group {group_id})")
        self.group_id = group_id
        """Whose payload it was."""


class _Wanted(NamedTuple):
    group_id: str
    sha256: str


def fetch(
    log: EventLog, index: TokenIndex, digests: Mapping[str, Iterable[str]]
) -> dict[str, Columns]:
    """Digest -> columns, for the digests of each group. Raises PayloadLost, LogUnavailable."""
    found: dict[str, Columns] = {}
    missing: dict[TopicPartition, dict[int, _Wanted]] = {}
    for group_id, of_group in digests.items():
        for sha256 in of_group:
            if (columns := index.cached(sha256)) is not None:
                found[sha256] = columns
                continue
            partition, offsets = index.places(group_id, sha256)
            place = missing.setdefault(TopicPartition("tokens", partition), {})
            place.update(dict.fromkeys(offsets, _Wanted(group_id, sha256)))
    for place, wanted in missing.items():
        parts: dict[_Wanted, list[TurnTokens]] = {}
        start = log.start_positions("tokens")[place]
        for stretch in _stretches(sorted(wanted)):
            if stretch[0] < start:
                at = f"{place} offset {stretch[0]}, which starts at {start} now"
                raise PayloadLost(wanted[stretch[0]].group_id, f"payload was removed from {at}")
            for offset, value in _read(log, place, stretch):
                payload = cast(TurnTokens, decode(value))
                parts.setdefault(wanted[offset], []).append(payload)
        for each in set(wanted.values()):
            if each not in parts:
                raise PayloadLost(
                    each.group_id, f"payload {each.sha256} is not in {place} any more"
                )
            found[each.sha256] = join(parts[each])
    return found


def _stretches(offsets: Sequence[int]) -> list[list[int]]:
    """Sorted offsets, apart where too much lies between them."""
    found: list[list[int]] = []
    for offset in offsets:
        if found and offset - found[-1][-1] <= NEAR:
            found[-1].append(offset)
        else:
            found.append([offset])
    return found


def _read(log: EventLog, place: TopicPartition, offsets: Sequence[int]) -> list[tuple[int, bytes]]:
    """(offset, value) of those records that are there."""
    wanted, values = set(offsets), list[tuple[int, bytes]]()
    with log.reader({place: offsets[0]}) as reader:
        silent = 0
        while reader.positions[place] <= offsets[-1]:
            batches = reader.poll(1.0)
            silent = 0 if batches else silent + 1
            if silent > 10:
                raise LogUnavailable(f"{place} can't be read at offset {reader.positions[place]}")
            for batch in batches:
                values += [
                    (offset, value)
                    for offset, value in zip(batch.offsets, batch.values, strict=True)
                    if offset in wanted
                ]
    return values
