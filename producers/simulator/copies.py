"""One simulated run as many, for benchmarks: encoded facts are copied with other ids.

    run = SimulatedRun(plan, seed=1, for_copies=True)
    block = [record for chunk in records_of(run) for record in chunk]
    for number in range(100):
        batch = as_batch(copied(block, number), first_offset, log_time_us)

Drawing and encoding a fact takes 30 us, copying it less than 1. A copy is a run of its own, with
its own groups, attempts, engines and incarnation, on the same simulated days.

Invariant: within one copy everything refers to one another as in the block, and two copies share
no id.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.avro import HEADER_BYTES
from ledger.log import Record, RecordBatch
from producers.simulator.teller import MARK

MOST_COPIES = 16**6
_MARK = MARK.encode()
_ID = HEADER_BYTES + 1
"""Where a fact's own id begins: behind the header and the length of its text."""


def copied(block: Sequence[Record], number: int) -> list[Record]:
    """(n,) the block's records as those of copy `number`.

    Ids of facts are of version 7, which begin with a time: a copy's is 65 s (the lowest of the 32
    bits that are replaced) behind that of the copy before it, as if it had been recorded later.
    Raises ValueError for a number out of range."""
    if not 0 <= number < MOST_COPIES:
        raise ValueError(f"a copy's number must be from 0 to {MOST_COPIES - 1}, got {number}")
    tag = f"{0xA0000000 + number:08x}"
    raw_tag = tag.encode()
    later = {}
    records: list[Record] = []
    for key, value in block:
        began = value[_ID : _ID + 8]
        if (time := later.get(began)) is None:
            time = later[began] = f"{int(began, 16) + number:08x}".encode()
        head, rest = value[:_ID], value[_ID + 8 :]
        records.append(Record(key.replace(MARK, tag), head + time + rest.replace(_MARK, raw_tag)))
    return records


def as_batch(
    records: Sequence[Record], first_offset: int, log_time_us: int, partition: int = 0
) -> RecordBatch:
    """Records as a log's reader would give them, all with one log time."""
    end = first_offset + len(records)
    return RecordBatch(
        topic="events",
        partition=partition,
        offsets=list(range(first_offset, end)),
        log_times_us=[log_time_us] * len(records),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        next_offset=end,
    )
