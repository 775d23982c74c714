"""The benchmark: what recording costs, and facts a second along each way, beside peers.

    python -m benchmarks.ledger [--facts 200000] [--rounds 3] [--only consume] [--seed 1]

Starts its own Kafka in a temporary directory, and stops it. Prints one Markdown table; what it is
doing meanwhile goes to standard error. `benchmarks/README.md` says what is measured.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.measures import MEASURES
from benchmarks.report import (
    Row,
    machine,
    our_versions,
    peer_versions,
    progress,
    table,
)
from benchmarks.stage import stage


def main() -> None:
    """Measure and print. Always exits with 0: a missed target is a result, not a failure."""
    arguments = _arguments()
    names: list[str] = arguments.only or list(MEASURES)
    head = [
        f"seed {arguments.seed}, {arguments.facts:,} facts, {arguments.rounds} rounds",
        f"machine: {machine()}",
        f"ours: {our_versions()}",
        f"peers: {peer_versions()}",
    ]
    progress("\n".join(head))
    rows: list[Row] = []
    started = time.monotonic()
    with stage(arguments.seed) as on:
        for name in names:
            rows += MEASURES[name](on, arguments.facts, arguments.rounds)
            progress(table(rows))
    print("\n".join([*head, "", table(rows)]))
    missed = sum(not row.met for row in rows)
    print(f"\n{missed} targets missed; took {(time.monotonic() - started) / 60:.0f} minutes")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--facts", type=int, default=200_000, help="facts of each throughput")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts")
    parser.add_argument("--seed", type=int, default=1, help="of the facts' values")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
