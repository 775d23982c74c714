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
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measured import Clock
from benchmarks.report import machine
from consumers.assembler import Assembler
from consumers.assembling.cut import Now, cut_of
from consumers.assembling.plan import context_of, looked, plan
from consumers.assembling.publish import drafts_of
from consumers.assembling.reading import feed
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings
from consumers.batches import digests_of, training_batch
from ledger.avro import decode
from ledger.batch_log import records_of
from ledger.facts import VersionSpan
from ledger.judgement import Peers, load_rules
from ledger.log import EventLog, Record, RecordBatch, TopicPartition
from ledger.open_log import open_log
from ledger.tokens import Tokens
from ledger.wire.encoder import Draft, FactEncoder, now_us

RUN = "0197f3a0-0000-7000-8000-00000000beef"
SIZE, TURNS = 8, 10
PROMPT, COMPLETION = 400, 120
"""Tokens that a turn adds."""
SETTINGS = AssemblerSettings(groups_per_batch=8, max_staleness=1_000)
EVENTS, TOKENS = TopicPartition("events", 0), TopicPartition("tokens", 0)


@dataclass(slots=True)
class Told:
    """Encoded records of groups."""

    tokens: list[Record] = field(default_factory=list[Record])
    events: list[Record] = field(default_factory=list[Record])


class Teller:
    """Encodes what one producer tells."""

    def __init__(self) -> None:
        self._encoder = FactEncoder("agent", RUN)
        ids = list(range(PROMPT + COMPLETION))
        mask = [0] * PROMPT + [1] * COMPLETION
        self._tokens = Tokens(ids, mask, [0.0] * PROMPT + [-0.5] * COMPLETION)

    def tell(self, *facts: tuple[str, dict[str, Any]]) -> Told:
        """(name, fields) of facts as records."""
        encoded = self._encoder.encode([Draft(name, fields, now_us()) for name, fields in facts])
        assert not encoded.refused, encoded.refused
        return Told(encoded.tokens, encoded.events)

    def opened(self, group_id: str) -> tuple[str, dict[str, Any]]:
        fields = {"task_id": "task", "expected_size": SIZE, "policy_version": 0}
        return "group_opened", {"group_id": group_id, **fields}

    def started(self, ids: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "trajectory_started", {**ids, "task_id": "task", "queue_s": 0.5}

    def attempt(
        self, group_id: str, slot: int, number: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """All facts of one attempt."""
        ids = {"group_id": group_id, "slot": slot, "trajectory_id": str(uuid.uuid4())}
        yield self.started(ids)
        ids_of_sandbox = {"try_no": 0, "sandbox_id": f"sandbox-{number}-{slot}", "start_s": 1.9}
        yield "sandbox_started", {**ids, **ids_of_sandbox}
        for turn_no in range(TURNS):
            logprobs = [0.0] * PROMPT + [-0.01 * (number % 97 + turn_no + slot)] * COMPLETION
            tokens = Tokens(self._tokens.ids, self._tokens.loss_mask, logprobs)
            spans = [VersionSpan(0, 0, COMPLETION)]
            usage = {"completion_tokens": COMPLETION, "version_spans": spans, "tokens": tokens}
            yield "turn_completed", {**ids, "turn_no": turn_no, "engine": "engine-0", **usage}
            call = {"turn_no": turn_no, "tool_call_no": turn_no, "name": "bash", "wall_s": 0.2}
            yield "tool_call_completed", {**ids, **call}
        yield "reward_assigned", {**ids, "value": float(slot % 2), "verifier": "tests"}
        counts = {"turns_completed": TURNS, "turns_failed": 0, "tool_calls": TURNS}
        ends = {"stop_reason": "submitted", "reward_due": True}
        yield "trajectory_finished", {**ids, **ends, **counts}

    def group(self, number: int) -> Told:
        """A whole group."""
        group_id = str(uuid.uuid4())
        facts = [self.opened(group_id)]
        for slot in range(SIZE):
            facts += self.attempt(group_id, slot, number)
        return self.tell(*facts)


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
            low_water = state.low_water.positions(dict(self.ends), state.batches.values())
            trained: list[tuple[str, dict[str, Any]]] = []
            if found.batch is not None:
                digests = digests_of(found.batch)
                columns = {
                    each: state.tokens.cached(each) for of in digests.values() for each in of
                }
                batch = training_batch(RUN, None, found.batch, columns, 0, SETTINGS)  # type: ignore[arg-type]
                records_of(batch)
                state.forget_batches(low_water)
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
    desk.read(
        teller.tell(("run_declared", {"kind": "train", "name": "b", "configuration": "{}"})).events
    )
    desk.read(teller.tell(("weights_published", {"policy_version": 0})).events)
    for _ in range(0, open_groups, 100):
        facts: list[tuple[str, dict[str, Any]]] = []
        for _ in range(100):
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
    """Bytes that an open group of SIZE attempts, each one turn before its end, takes."""
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


def latency(url: str, groups: int) -> dict[str, float]:
    """Milliseconds by the log's clock: from a group's last fact to its decision, and from the last
    decision of a batch to the batch."""
    teller, stop, ready = Teller(), threading.Event(), threading.Event()
    with open_log(url) as log:
        write(
            log,
            teller.tell(("run_declared", {"kind": "train", "name": "b", "configuration": "{}"})),
        )
        settings = AssemblerSettings(groups_per_batch=8, max_untaken_batches=10_000)
        assembler = Assembler(log, RUN, settings)
        thread = threading.Thread(
            target=lambda: assembler.run(stop, follow=True, ready=ready.set), daemon=True
        )
        thread.start()
        ready.wait(60)
        for number in range(groups):
            write(log, teller.group(number))
            time.sleep(0.05)
        while assembler.done.batches < groups // 8:
            time.sleep(0.1)
        stop.set()
        thread.join(60)
        return latencies(log)


def latencies(log: EventLog) -> dict[str, float]:
    """From the times of the records in a log."""
    finished: dict[str, int] = {}
    decided: dict[str, int] = {}
    decisions: list[float] = []
    batches: list[float] = []
    end = log.end_positions("events")
    with log.reader(log.start_positions("events")) as reader:
        while any(reader.positions[place] < end[place] for place in end):
            for batch in reader.poll(1.0):
                for at_us, value in zip(batch.log_times_us, batch.values, strict=True):
                    fact: Any = decode(value)
                    name = type(fact).__name__
                    if name == "TrajectoryFinished":
                        finished[fact.group_id] = at_us
                    elif name == "GroupDecided":
                        decided[fact.group_id] = at_us
                        decisions.append((at_us - finished[fact.group_id]) / 1000)
                    elif name == "BatchAssembled":
                        last = max(decided[each] for each in fact.group_ids)
                        batches.append((at_us - last) / 1000)
    return {
        "decision_ms_p50": statistics.median(decisions),
        "decision_ms_max": max(decisions),
        "batch_ms_p50": statistics.median(batches),
        "batch_ms_max": max(batches),
    }


def write(log: EventLog, told: Told) -> None:
    """Payloads before the facts that name them."""
    log.append("tokens", told.tokens)
    log.append("events", told.events)


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
