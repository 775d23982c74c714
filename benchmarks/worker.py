"""One measurement in a process of its own, so that none inherits another's heap or threads.

    python -m benchmarks.worker read '{"url": "kafka://127.0.0.1:9092/log", "facts": 1000}'

prints one line of JSON, a `Measured`.
"""

from __future__ import annotations

import json
import sys

from benchmarks import caller, producers, readers

WORK = {
    "call_cost": caller.call_cost,
    "record": producers.record,
    "send": producers.send,
    "project": readers.project,
    "read": readers.read,
}

if __name__ == "__main__":
    print(WORK[sys.argv[1]](**json.loads(sys.argv[2])).line())
