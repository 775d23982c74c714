"""The order in which a topic of several partitions is copied: by time, and so that positions that
facts tell stay positions.

    partitions ─▶ lanes, one for each run and partition ─▶ the earliest that may go ─▶ copy

A bound is a position in every partition of one topic, behind everything that somebody of a run had
read: a cut, or where a trainer reads on. In a copy with other partitions it can be told again only
if all records of that run before it come before all those behind it.

Invariants:

1. Records of one lane keep their order, so those of one key do.
2. When a bound is reached, every record of its run before it was handed out, and none behind it.
3. The times handed out never step back, and none is later than the record's own: whoever waited
   for time to pass since a record waited long enough in the copy, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ledger.log import Record

Bound = tuple[tuple[int, int], ...]
"""(partition, offset of the next record unread), sorted."""


class Arrived(NamedTuple):
    """A record of one partition."""

    offset: int
    log_time_us: int
    run_id: str | None
    """A run that has bounds; null: any other's, and for one partition everybody's."""
    record: Record


class Stream(Protocol):
    """The records of one partition, as they are read."""

    @property
    def position(self) -> int:
        """Behind the last record that was read."""
        ...

    @property
    def ended(self) -> bool: ...

    def read(self) -> Sequence[Arrived]:
        """Further records; there may be none yet."""
        ...


class CopyOrder:
    """Iterates over the (time, record) of one topic. Records are held while others have to come
    first: as many as an assembler's partitions had drifted apart."""

    def __init__(
        self,
        streams: Mapping[int, Stream],
        bounds: Mapping[str | None, Sequence[Bound]],
        reached: Callable[[str | None, Bound], None],
    ) -> None:
        """`bounds` by run, each before the next; those under null are about every run. `reached`
        is called for each in its place."""
        self._streams = streams
        self._bounds = {run_id: deque(each) for run_id, each in bounds.items() if each}
        self._reached = reached
        self._lanes: dict[tuple[int, str | None], deque[Arrived]] = {}

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        while True:
            heads = self._heads()
            if not heads:
                break
            free = next((each for each in heads if self._may_go(*each)), None)
            if free is not None:
                yield heads[0][1].log_time_us, self._lanes[free[0]].popleft().record
            elif not self._read_on():
                self._give_up()
        for run_id in list(self._bounds):
            while self._reach(run_id):
                pass

    def _heads(self) -> list[tuple[tuple[int, str | None], Arrived]]:
        """The first record of every lane, by time. Of each partition at least one is looked at."""
        for partition, stream in self._streams.items():
            while not stream.ended and not self._holds(partition):
                self._read(partition)
        heads = [(lane, held[0]) for lane, held in self._lanes.items() if held]
        if len(heads) > 1:
            heads.sort(key=lambda each: (each[1].log_time_us, each[0][0], each[1].offset))
        return heads

    def _holds(self, partition: int) -> bool:
        return any(held for lane, held in self._lanes.items() if lane[0] == partition)

    def _read(self, partition: int) -> None:
        for each in self._streams[partition].read():
            self._lanes.setdefault((partition, each.run_id), deque()).append(each)

    def _may_go(self, lane: tuple[int, str | None], head: Arrived) -> bool:
        """Whether no bound of the record's run lies before it that others have to reach first."""
        partition, run_id = lane
        for about in {run_id, None}:
            while (bounds := self._bounds.get(about)) and head.offset >= dict(bounds[0]).get(
                partition, head.offset + 1
            ):
                if not self._reach(about):
                    return False
        return True

    def _reach(self, run_id: str | None) -> bool:
        """Go past the next bound of a run if everything before it was handed out."""
        bounds = self._bounds.get(run_id)
        if not bounds or any(self._next(each, run_id) < at for each, at in bounds[0]):
            return False
        self._reached(run_id, bounds.popleft())
        return True

    def _next(self, partition: int, run_id: str | None) -> int:
        """The offset of the next record of a run in a partition, or one that isn't behind it."""
        heads = [
            held[0].offset
            for lane, held in self._lanes.items()
            if held and lane[0] == partition and run_id in (None, lane[1])
        ]
        return min(heads, default=self._streams[partition].position)

    def _read_on(self) -> bool:
        """Read what bounds wait for; whether there was anything to read."""
        waiting = {
            partition
            for bounds in self._bounds.values()
            if bounds
            for partition, at in bounds[0]
            if not self._streams[partition].ended and self._streams[partition].position < at
        }
        for partition in waiting:
            self._read(partition)
        return bool(waiting)

    def _give_up(self) -> None:
        """Nothing may go. Bounds of one run never keep each other waiting, so it is one about every
        run that contradicts those of another: no order has both."""
        self._bounds[None].popleft()
