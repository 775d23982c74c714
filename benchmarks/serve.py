"""A served book under load: clients ask reports while facts arrive.

    python -m benchmarks.serve --facts 100000 --rate 5000 --clients 64 --seconds 60

Real parts: `rollbook serve` on an SQLite log, a process that appends facts at a rate, and clients
that ask one report a second each. All on one machine, so the feeder and the clients take their
share of it. Prints quantiles of the time to an answer, how old answers were, and how far the book
was behind its log.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from benchmarks.report import machine, our_versions, progress
from benchmarks.stage import fill
from benchmarks.workload import RUN, Maker
from ledger.open_log import open_log
from ledger.wire.encoder import FactEncoder

REPORTS = (
    "/v1/runs",
    f"/v1/steps?run_id={RUN}",
    f"/v1/trajectories?run_id={RUN}",
    f"/v1/groups?run_id={RUN}",
    f"/v1/conservation?run_id={RUN}",
    *(
        f"/v1/accounts/{name}?run_id={RUN}"
        for name in ("step-time", "throughput", "failures", "contamination", "waste", "policy-lag")
    ),
)
BATCH_S = 0.1
"""The feeder appends this often."""
WARM_S = 10.0
"""Not measured: every report is computed for the first time."""


@dataclass(slots=True)
class Seen:
    """What clients and the watcher saw."""

    seconds: list[float] = field(default_factory=list[float])
    """Of each answer."""
    by_path: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    ages: list[float] = field(default_factory=list[float])
    behind: list[int] = field(default_factory=list[int])
    """Records, once a second."""
    statuses: Counter[str] = field(default_factory=Counter[str])


def feed(url: str, facts: int, rate: float, seed: int) -> None:
    """Append facts, `rate` a second."""
    drafts = Maker(seed).run(facts)
    encoder = FactEncoder("feeder", RUN)
    step = max(1, int(rate * BATCH_S))
    with open_log(url) as log:
        began = time.monotonic()
        for number in itertools.count():
            some = list(itertools.islice(drafts, step))
            if not some:
                return
            log.append("events", encoder.encode(some).events)
            time.sleep(max(0.0, began + (number + 1) * BATCH_S - time.monotonic()))


async def client(
    session: aiohttp.ClientSession, number: int, clients: int, until: float, seen: Seen
) -> None:
    """One report a second."""
    await asyncio.sleep(number / clients)
    measured_from = time.monotonic() + WARM_S
    for turn in itertools.count(number):
        began = time.monotonic()
        if began >= until:
            return
        path = REPORTS[turn % len(REPORTS)]
        try:
            async with session.get(path) as answer:
                await answer.read()
                status, age = str(answer.status), float(answer.headers.get("Age", 0))
        except (aiohttp.ClientError, TimeoutError) as error:
            status, age = type(error).__name__, 0.0
        took = time.monotonic() - began
        seen.statuses[status] += 1
        if began >= measured_from:
            seen.seconds.append(took)
            seen.by_path.setdefault(path, []).append(took)
            seen.ages.append(age)
        await asyncio.sleep(max(0.0, 1.0 - took))


async def watch(session: aiohttp.ClientSession, until: float, seen: Seen) -> None:
    """How far the book is behind."""
    while time.monotonic() < until:
        async with session.get("/readyz") as answer:
            seen.behind.append((await answer.json())["behind"])
        await asyncio.sleep(1.0)


async def load(base: str, token: str, clients: int, seconds: float) -> Seen:
    """Ask for a while."""
    seen = Seen()
    until = time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base, headers=headers, connector=connector) as session:
        asking = [client(session, n, clients, until, seen) for n in range(clients)]
        await asyncio.gather(watch(session, until, seen), *asking)
    return seen


async def alone(base: str, token: str, pid: int, count: int = 300) -> float:
    """CPU seconds of the server for an answer that it has, while nothing else happens."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(base, headers=headers) as session:
        for path in REPORTS:  # computed once, so that they are there
            async with session.get(path) as answer:
                await answer.read()
        cpu = cpu_s(pid)
        for turn in range(count):
            async with session.get(REPORTS[turn % len(REPORTS)]) as answer:
                await answer.read()
    return (cpu_s(pid) - cpu) / count


def serve(url: str, book: Path) -> tuple[subprocess.Popen[str], str, str]:
    """Start the server; gives it, its address and its token."""
    config = book.with_name("serve.toml")
    config.write_text("[serve]\nport = 0\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "serve", "--log", url, "--book", str(book),
         "--config", str(config), "--no-quack"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = ""
    for line in process.stderr or ():
        said += line
        if line.startswith("token"):
            break
    found = re.search(r" at (http://\S+), described", said)
    if found is None:
        raise RuntimeError(f"the server did not start: {said}")
    return process, found[1], Path(f"{book}.token").read_text().strip()


def records(url: str) -> int:
    """How many a log has."""
    with open_log(url) as log:
        return sum(log.end_positions("events").values())


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], q: float) -> float:
    """By rank."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=int, default=100_000, help="In the book before.")
    parser.add_argument("--rate", type=float, default=5_000.0, help="Facts a second.")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-serve-") as folder:
        url, book = f"sqlite:///{folder}/log.db", Path(folder) / "book.duckdb"
        progress(f"{asked.facts} facts into the log")
        fill(url, Maker(asked.seed).run(asked.facts))
        process, base, token = serve(url, book)
        try:
            time.sleep(5.0)
            answer_s = asyncio.run(alone(base, token, process.pid))
            fed = int(asked.rate * asked.seconds)
            feeder = multiprocessing.get_context("spawn").Process(
                target=feed, args=(url, fed, asked.rate, asked.seed + 1)
            )
            feeder.start()
            progress(f"{asked.clients} clients, {asked.rate:g} facts/s, {asked.seconds:g} s")
            cpu, began, had = cpu_s(process.pid), time.monotonic(), records(url)
            seen = asyncio.run(load(base, token, asked.clients, asked.seconds))
            took = time.monotonic() - began
            cores = (cpu_s(process.pid) - cpu) / took
            arrived = (records(url) - had) / took
            feeder.terminate()
            feeder.join()
        finally:
            process.terminate()
            errors = [line for line in process.stderr or () if "lock" in line.lower()]
            process.wait()
    told = {
        "facts_arrived_per_s": round(arrived),
        "cpu_ms_of_a_kept_answer": round(1e3 * answer_s, 2),
        "answers": len(seen.seconds),
        "statuses": dict(seen.statuses),
        "p50_ms": round(1e3 * quantile(seen.seconds, 0.5), 1),
        "p90_ms": round(1e3 * quantile(seen.seconds, 0.9), 1),
        "p99_ms": round(1e3 * quantile(seen.seconds, 0.99), 1),
        "max_ms": round(1e3 * max(seen.seconds), 1),
        "age_p50_s": quantile(seen.ages, 0.5),
        "age_max_s": max(seen.ages),
        "behind_median": int(quantile([float(n) for n in seen.behind], 0.5)),
        "behind_max": max(seen.behind),
        "behind_end": seen.behind[-1],
        "server_cores": round(cores, 2),
        "lock_errors": len(errors),
        "load_average": os.getloadavg()[0],
        "p99_ms_by_report": {
            path.partition("?")[0]: round(1e3 * quantile(took, 0.99), 1)
            for path, took in sorted(seen.by_path.items())
        },
    }
    print(machine())
    print(our_versions())
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
