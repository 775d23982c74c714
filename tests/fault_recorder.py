"""A producer that `test_faults.py` kills: records numbered facts and says on stdout what it did.

    python -m tests.fault_recorder LOG_URL SPOOL_DIR RUN_ID NAME FIRST COUNT PAUSE_S

Lines: `recorded N MICROSECONDS` after every burst (then it pauses), `flushed N` after every flush:
facts FIRST to N - 1. A last line `closed` once everything is durable.
"""

from __future__ import annotations

import sys
import time
import uuid

from ledger.recorder import Recorder

BURST = 50
FLUSH_EVERY = 500
ALIVE_EVERY_S = 0.25


def main(
    url: str, spool: str, run_id: str, name: str, first: int, count: int, pause_s: float
) -> None:
    group_ids = [str(uuid.uuid5(uuid.UUID(run_id), f"group {i}")) for i in range(64)]
    recorder = Recorder(
        url, producer=name, run_id=run_id, spool_dir=spool, alive_every_s=ALIVE_EVERY_S
    )
    for number in range(first, first + count):
        recorder.turn_completed(
            group_id=group_ids[number % 64],
            slot=0,
            trajectory_id=group_ids[number % 64],
            turn_no=number,
            request_id=f"{name}/{number}",
            prompt_tokens=1000 + number % 7,
            completion_tokens=20,
            client_s=0.25,
        )
        done = number + 1
        if done % BURST == 0:
            print(f"recorded {done} {time.time_ns() // 1000}", flush=True)
            time.sleep(pause_s)
        if done % FLUSH_EVERY == 0 and recorder.flush(60.0):
            print(f"flushed {done}", flush=True)
    if recorder.close(60.0):
        print("closed", flush=True)


if __name__ == "__main__":
    url, spool, run_id, name, first, count, pause_s = sys.argv[1:]
    main(url, spool, run_id, name, int(first), int(count), float(pause_s))
