"""Where a restart has to read from, and how it finds that place.

Reading from the low-water positions to the end gives the same state as reading everything, as far
as decisions still depend on it. What holds a position back:

- a group that is open or queued: its first fact and its first payload;
- a batch that isn't taken: its `batch_assembled`;
- a batch of which any group's decision would be read again: its `batch_assembled` too, or those
  groups would be taken for queued, and be trained on twice;
- facts with a long effect: versions that were orphaned lately, tasks whose verifier is broken;
- the last minutes of all partitions: attempts of other groups are evidence for judgement.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from ledger.avro import DecodeError, decode, writer_schema_of
from ledger.facts import BatchAssembled
from ledger.log import EventLog, Positions, TopicPartition, positions_of

EVIDENCE_US = 120 * 1_000_000
"""How far back other groups' facts matter to judgement."""
FIRST_WINDOW_US = 60 * 1_000_000
"""The newest batch is looked for this far back from the log's end, then in windows that grow."""
WINDOW_GROWTH = 4


@dataclass(slots=True)
class Assembled:
    """A batch that was assembled."""

    fact: BatchAssembled
    place: TopicPartition
    offset: int
    """Of its `batch_assembled`."""
    decisions: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """Partition -> offset of the last decision about one of its groups, as far as they were
    read."""
    taken: bool = False
    """Whether the trainer has trained on it, or refused it."""

    def decided_at(self, partition: int, offset: int) -> None:
        """A decision about one of its groups lies there."""
        place = TopicPartition("events", partition)
        self.decisions[place] = max(offset, self.decisions.get(place, 0))


class LowWater:
    """What holds each partition back."""

    def __init__(self) -> None:
        self._groups: dict[TopicPartition, OrderedDict[str, int]] = {}
        self._pinned: dict[object, tuple[TopicPartition, int]] = {}
        self._recent: deque[tuple[int, Positions]] = deque()

    def hold(self, group_id: str, place: TopicPartition, offset: int) -> None:
        """A group needs everything from its first record on."""
        self._groups.setdefault(place, OrderedDict()).setdefault(group_id, offset)

    def release(self, group_id: str, partition: int) -> None:
        """A group needs nothing any more."""
        for topic in ("events", "tokens"):
            held = self._groups.get(TopicPartition(topic, partition))
            if held is not None:
                held.pop(group_id, None)

    def pin(self, what: object, place: TopicPartition, offset: int) -> None:
        """A fact of long effect has to be read again."""
        self._pinned.setdefault(what, (place, offset))

    def unpin(self, what: object) -> None:
        """It doesn't matter any more."""
        self._pinned.pop(what, None)

    def passed(self, now_us: int, positions: Positions) -> None:
        """Everything before `positions` was read at this time of the log's clock."""
        self._recent.append((now_us, positions))
        while len(self._recent) > 1 and self._recent[1][0] <= now_us - EVIDENCE_US:
            self._recent.popleft()

    def positions(self, read: Positions, batches: Iterable[Assembled]) -> Positions:
        """Where a restart has to read from, when everything before `read` was read."""
        low = dict(read)
        if self._recent:
            low |= {place: self._recent[0][1].get(place, 0) for place in low}
        # Groups come in the order of their first record, so the first held is the lowest.
        for place, held in self._groups.items():
            if held:
                low[place] = min(low[place], next(iter(held.values())))
        for place, offset in self._pinned.values():
            low[place] = min(low[place], offset)
        known = list(batches)
        for batch in known:
            if not batch.taken:
                low[batch.place] = min(low[batch.place], batch.offset)
        while any(_lowered(low, batch) for batch in known):
            pass
        return low

    def forgotten(self, low: Mapping[TopicPartition, int], batch: Assembled) -> bool:
        """Whether nothing of a batch would be read again."""
        return batch.taken and all(at < low[place] for place, at in batch.decisions.items())


def _lowered(low: Positions, batch: Assembled) -> bool:
    """Hold back to a batch that has a decision behind the low-water; whether that changed it."""
    if batch.offset >= low[batch.place]:
        return False
    if all(at < low[place] for place, at in batch.decisions.items()):
        return False
    low[batch.place] = batch.offset
    return True


def find_low_water(
    log: EventLog, run_id: str, now_us: int
) -> tuple[Positions, BatchAssembled | None]:
    """Where to read a run's facts and payloads from, and its newest batch.

    The newest batch says it; with none, from the log's start. Looks back from `now_us`
    (microseconds since the epoch) in windows that grow, so it reads a few times what was written
    since that batch. Raises LogUnavailable."""
    start = log.start_positions("events")
    upto = log.end_positions("events")
    window_us = FIRST_WINDOW_US
    while any(upto[place] > start[place] for place in upto):
        at = log.positions_at("events", max(0, now_us - window_us))
        since = {place: max(start[place], min(at[place], upto[place])) for place in upto}
        if (found := _newest_batch(log, run_id, since, upto)) is not None:
            # Payloads may have been archived and removed since; facts never are.
            low, first = positions_of(found.low_water), log.start_positions("tokens")
            return start | low | {at: max(low.get(at, 0), first[at]) for at in first}, found
        upto, window_us = since, window_us * WINDOW_GROWTH
    return start | log.start_positions("tokens"), None


def _newest_batch(
    log: EventLog, run_id: str, since: Positions, upto: Positions
) -> BatchAssembled | None:
    """The last one between two positions. All batches of a run lie in one partition."""
    newest: BatchAssembled | None = None
    places = {place: at for place, at in since.items() if at < upto[place]}
    if not places:
        return None
    with log.reader(places) as reader:
        while any(reader.positions[place] < upto[place] for place in places):
            for batch in reader.poll(1.0):
                for value in batch.values:
                    newest = _batch_of(value, run_id) or newest
    return newest


def _batch_of(value: bytes, run_id: str) -> BatchAssembled | None:
    try:
        if writer_schema_of(value).wire.name == "batch_assembled" and run_id.encode() in value:
            fact = cast(BatchAssembled, decode(value))
            return fact if fact.run_id == run_id else None
    except DecodeError:
        pass
    return None
