"""The assembler: groups and facts a second as the number of open groups grows, memory, latency.

    python -m benchmarks.assembler [--groups 80] [--open 100 1000 10000 100000] [--log URL]

Throughput is CPU time of one process from encoded records to encoded decisions, batches and their
payloads packed, and reading them back: everything but the log. Groups of 8 attempts of 10 turns
go through while so many others stay open. Latency is measured over a log, by the log's clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.assembler_groups import DECLARED, RUN, SIZE, TURNS, Teller
from benchmarks.assembler_latency import latency
from benchmarks.measured import Clock
from benchmarks.report import machine
from consumers.assembling.cut import Now, cut_of
from consumers.assembling.plan import context_of, looked, plan
from consumers.assembling.publish import drafts_of
from consumers.assembling.reading import feed
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings
from consumers.batches import digests_of, training_batch
from ledger.avro import decode
from ledger.batch_log import records_of
from ledger.judgement import Peers, load_rules
from ledger.log import Positions, Record, RecordBatch, TopicPartition
from ledger.wire.encoder import FactEncoder, now_us

SETTINGS = AssemblerSettings(groups_per_batch=8, max_staleness=1_000)
EVENTS, TOKENS = TopicPartition("events", 0), TopicPartition("tokens", 0)


class Desk:
    """The assembler between two logs that cost nothing."""

    def __init__(self) -> None:
        self.state = RunState(RUN, SETTINGS, Peers())
        self.rules = load_rules(SETTINGS.rules)
        self.encoder = FactEncoder("assembler", RUN)
        self.ends = {EVENTS: 0, TOKENS: 0}
        self.facts = 0
        self.batches = 0

    def read(self, records: Sequence[Record], place: TopicPartition = EVENTS) -> None:
        """Fold encoded records."""
        first = self.ends[place]
        self.ends[place] = last = first + len(records)
        self.facts += len(records) if place is EVENTS else 0
        feed(
            self.state,
            RecordBatch(
                place.topic,
                place.partition,
                list(range(first, last)),
                [now_us()] * len(records),
                [record.key for record in records],
                [record.value for record in records],
                last,
            ),
        )

    def decide(self, teller: Teller) -> None:
        """Decide, pack and read back, until there is nothing more to decide."""
        state = self.state
        while True:
            now = Now(state.clock.us, settled=False)
            found = plan(state, context_of(state, self.rules, now, frozenset()), state.due(now))
            looked(state, found)
            if not found:
                return
            cut = cut_of(self.ends, now, state.versions.newest, SETTINGS)
            low_water = Positions()
            trained: list[tuple[str, dict[str, Any]]] = []
            if found.batch is not None:
                low_water = state.low_water.positions(self.ends, state.batches.values())
                state.forget_batches(low_water)
                digests = digests_of(found.batch)
                columns = {
                    each: state.tokens.cached(each) for of in digests.values() for each in of
                }
                batch = training_batch(RUN, None, found.batch, columns, 0, SETTINGS)  # type: ignore[arg-type]
                records_of(batch)
                self.batches += 1
                step = {"step": batch.step, "batch_id": batch.batch_id, "wall_s": 1.0}
                times = {"started_at": now.time, "phases": []}
                trained.append(("step_completed", step | times))
            drafts = drafts_of(state, found, self.rules, cut, low_water)
            self.read(self.encoder.encode(drafts).events)
            self.read(teller.tell(*trained).events)


def through(open_groups: int, groups: int) -> dict[str, float]:
    """Groups that go through while `open_groups` others stay open."""
    teller, desk = Teller(), Desk()
    desk.read(teller.tell(DECLARED).events)
    desk.read(teller.tell(("weights_published", {"policy_version": 0})).events)
    for first in range(0, open_groups, 100):
        facts: list[tuple[str, dict[str, Any]]] = []
        for _ in range(first, min(first + 100, open_groups)):
            group_id = str(uuid.uuid4())
            ids = {"group_id": group_id, "slot": 0, "trajectory_id": str(uuid.uuid4())}
            facts += [teller.opened(group_id), teller.started(ids)]
        desk.read(teller.tell(*facts).events)
    desk.decide(teller)
    stories = [teller.group(number) for number in range(groups)]
    desk.facts = 0
    gc.collect()
    with Clock() as clock:
        for told in stories:
            desk.read(told.tokens, TOKENS)
            desk.read(told.events)
            desk.decide(teller)
    gc.unfreeze()
    assert len(desk.state.groups) == open_groups + groups % SETTINGS.groups_per_batch
    return {
        "open_groups": open_groups,
        "groups_per_cpu_s": groups / clock.cpu_s,
        "facts_per_cpu_s": desk.facts / clock.cpu_s,
        "payloads_per_cpu_s": groups * SIZE * TURNS / clock.cpu_s,
    }


def memory(groups: int = 400) -> dict[str, float]:
    """Bytes that an open group of SIZE attempts, each one fact before its end, takes."""
    import tracemalloc

    teller, desk = Teller(), Desk()
    desk.state.tokens = type(desk.state.tokens)(None, cache_bytes=0)
    stories = [teller.group(number) for number in range(groups)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for told in stories:
        desk.read(told.tokens, TOKENS)
        desk.read([record for record in told.events if decode_name(record) != "TrajectoryFinished"])
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {"bytes_per_open_group": used / groups, "turns_per_group": SIZE * TURNS}


def decode_name(record: Record) -> str:
    """Class of a fact."""
    return type(decode(record.value)).__name__


def main() -> None:
    """Measure and print one JSON object a line. A missed target is a result, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assembler", description=__doc__)
    parser.add_argument("--groups", type=int, default=80, help="groups that go through")
    parser.add_argument("--open", type=int, nargs="*", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts")
    parser.add_argument("--log", help="a log for the latency (default: SQLite, in a new folder)")
    arguments = parser.parse_args()
    print(f"machine: {machine()}", file=sys.stderr)
    rates: list[float] = []
    for open_groups in arguments.open:
        rounds = [through(open_groups, arguments.groups) for _ in range(arguments.rounds)]
        best = max(rounds, key=lambda each: each["facts_per_cpu_s"])
        rates.append(best["facts_per_cpu_s"])
        print(json.dumps(best), flush=True)
    if rates:
        print(
            json.dumps({"slowest_to_fastest": min(rates) / max(rates), "target": 0.8}), flush=True
        )
    print(json.dumps(memory()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.log or f"sqlite:///{Path(folder) / 'log.db'}"
        print(json.dumps(latency(url, 80)), flush=True)


if __name__ == "__main__":
    main()
