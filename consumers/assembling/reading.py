"""Records of the log -> the run's state. What isn't of the run is passed over as early as it can.

Invariant: a record that can't be read never stops the assembler and never counts; the projector
keeps it in quarantine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from consumers.assembling.run_state import RunState
from ledger.avro import DecodeError, decode_datum, writer_schema_of
from ledger.facts import Fact
from ledger.log import RecordBatch
from ledger.tokens import TurnTokens
from ledger.wire.objects import build

OF_ANY_RUN = frozenset({"producer_alive", "producer_closed"})
"""One producer may record for several runs; its pulse is of one of them."""

PASSED_OVER = frozenset(
    {"engine_sampled", "pool_sampled", "weights_applied", "checkpoint_saved", "task_declared"}
)
"""Facts of the run that decide nothing."""

_SHARED = ("run_id", "group_id", "trajectory_id", "task_id", "producer", "incarnation")
"""Texts that many facts have in common: kept in memory once."""


def feed(state: RunState, batch: RecordBatch, each: Callable[[Fact], None] | None = None) -> None:
    """Fold the records of one partition; `each` is called with every fact that was taken."""
    needle = state.run_id.encode()
    columns = zip(batch.offsets, batch.log_times_us, batch.values, strict=True)
    for offset, log_time_us, value in columns:
        try:
            name = writer_schema_of(value).wire.name
            if name in PASSED_OVER or (needle not in value and name not in OF_ANY_RUN):
                if batch.topic == "events":
                    state.clock.read(log_time_us)
                continue
            wire, datum = decode_datum(value)
        except DecodeError as error:
            state.problems.append(f"{error} ({batch.topic}/{batch.partition} offset {offset})")
            continue
        if wire.topic != batch.topic:
            continue
        for shared in _SHARED:
            if shared in datum:
                datum[shared] = sys.intern(datum[shared])
        found = build(wire.cls, datum)
        if isinstance(found, TurnTokens):
            state.take_tokens(batch.partition, offset, log_time_us, found)
        elif isinstance(found, Fact):
            state.take_event(batch.partition, offset, log_time_us, found)
            if each is not None:
                each(found)
