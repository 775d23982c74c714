"""How long after its last fact a group is decided, over a log."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from benchmarks.assembler_groups import DECLARED, RUN, Teller, write
from consumers.assembler import Assembler
from consumers.assembling.settings import AssemblerSettings
from ledger.avro import decode
from ledger.log import EventLog, reached
from ledger.open_log import open_log


def latency(url: str, groups: int) -> dict[str, float]:
    """Milliseconds by the log's clock: from a group's last fact to its decision, and from the last
    decision of a batch to the batch."""
    teller, stop, ready = Teller(), threading.Event(), threading.Event()
    with open_log(url) as log:
        write(log, teller.tell(DECLARED))
        settings = AssemblerSettings(groups_per_batch=8, max_untaken_batches=10_000)
        assembler = Assembler(log, RUN, settings)
        thread = threading.Thread(
            target=lambda: assembler.run(stop, follow=True, ready=ready.set), daemon=True
        )
        thread.start()
        assert ready.wait(60), "the assembler did not start"
        for number in range(groups):
            write(log, teller.group(number))
            time.sleep(0.05)
        while assembler.done.batches < groups // 8 and thread.is_alive():
            time.sleep(0.1)
        stop.set()
        thread.join(60)
        assert assembler.done.batches >= groups // 8, "the assembler ended early"
        return latencies(log)


def latencies(log: EventLog) -> dict[str, float]:
    """From the times of the records in a log."""
    finished: dict[str, int] = {}
    decided: dict[str, int] = {}
    decisions: list[float] = []
    batches: list[float] = []
    end = log.end_positions("events")
    with log.reader(log.start_positions("events")) as reader:
        while not reached(reader.positions, end):
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
