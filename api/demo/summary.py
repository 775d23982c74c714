"""A demo's accounts, from its book: one object, and the same as tables."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import duckdb
import numpy as np

from api.demo.children import Parts
from api.demo.plan import Demo
from consumers.audit import audit
from ledger.book import connect

MISSING = ("sequence_holes", "lost", "quarantined")
"""Checks of the audit whose findings are facts that aren't in the book."""

PASS_AT_1 = """
    SELECT policy_version, passed, valid, slots, coverage, pass_at_1_macro AS value,
        macro_if_missing_failed AS if_missing_failed, macro_if_missing_passed AS if_missing_passed
    FROM pass_at_1 WHERE run_id = ? ORDER BY valid DESC LIMIT 1
"""
RATES = """
    SELECT passed / valid AS rate FROM task_outcomes WHERE run_id = ? AND valid > 0 ORDER BY task_id
"""
STEP_SECONDS = """
    SELECT sum(wall_s) AS wall, sum(waiting_s) AS waiting, sum(loading_s) AS loading,
        sum(logprobs_s) AS logprobs, sum(forward_backward_s) AS forward_backward,
        sum(optimizer_s) AS optimizer, sum(publishing_s) AS publishing,
        sum(checkpoint_s) AS checkpoint, sum(unattributed_s) AS unattributed
    FROM steps WHERE run_id = ?
"""
THROUGHPUT = """
    SELECT count(*) AS attempts, count(*) FILTER (trainable) AS completed,
        epoch(max(finished_at) - min(started_at)) AS seconds,
        3600 * count(*) FILTER (trainable) / nullif(seconds, 0) AS completed_per_hour
    FROM trajectories WHERE run_id = ? AND state = 'finished'
"""
FAILURES = """
    SELECT attempts.blame, attempts.cause_class AS class, attempts.cause_stage AS stage,
        count(*) AS attempts, count(*) FILTER (members.votes) AS voted
    FROM trajectories AS attempts LEFT JOIN members USING (group_id, trajectory_id)
    WHERE attempts.run_id IN ({runs}) AND attempts.blame IS NOT NULL
    GROUP BY ALL ORDER BY ALL
"""
GROUPS = """
    SELECT coalesce(drop_reason, decision) AS became, count(*) AS groups
    FROM group_decisions WHERE run_id = ? GROUP BY ALL ORDER BY ALL
"""
LEARNING = """
    SELECT step, epoch(ended_at - first_value(started_at) OVER (ORDER BY step)) AS at_s, wall_s,
        waiting_s, steps.trajectories,
        (SELECT avg(mean) FROM group_decisions JOIN
            (SELECT unnest(group_ids) AS group_id FROM batch_assembled
             WHERE batch_assembled.batch_id = steps.batch_id) USING (group_id)) AS reward,
        metrics['lag_mean'] AS lag, loss
    FROM steps WHERE run_id = ? ORDER BY step
"""


def summary_of(demo: Demo) -> dict[str, Any]:
    """All figures of a demo that came to its end."""
    runs = {when: each.run_id for when, each in demo.evaluations.items()}
    with contextlib.closing(connect(demo.book, read_only=True)) as book:
        findings = audit(book)
        return {
            "run_id": demo.run_id,
            "mode": "sync" if demo.plan.sync else "async",
            "log_url": Parts(demo).log_url,
            "steps": _row(book, "SELECT count(DISTINCT step) AS n FROM steps WHERE run_id = ?",
                          demo.run_id)["n"],
            "facts": _row(book, "SELECT count(*) AS n FROM facts")["n"],
            "pass_at_1_before": _quality(book, runs["before"]),
            "pass_at_1_after": _quality(book, runs["after"]),
            "throughput": _row(book, THROUGHPUT, demo.run_id),
            "groups": {row["became"]: row["groups"] for row in _rows(book, GROUPS, demo.run_id)},
            "failures": _rows(
                book,
                FAILURES.format(runs=", ".join("?" * (len(runs) + 1))),
                demo.run_id,
                *runs.values(),
            ),
            "contamination": _row(
                book,
                "SELECT count(*) FILTER (known = 'at_decision') AS at_decision,"
                " count(*) FILTER (known <> 'at_decision') AS late_evidence FROM contamination",
            ),
            "conservation_violations": sum(each.check == "conservation" for each in findings),
            "lost": sum(each.check in MISSING for each in findings),
            "duplicated": sum(each.check == "repeated_facts" for each in findings),
            "learning": _rows(book, LEARNING, demo.run_id),
            "seconds": {
                "demo": demo.seconds,
                "trainer": _row(book, STEP_SECONDS, demo.run_id),
            },
            "restarts": demo.restarts,
            "injected": injected(demo),
            "versions": versions(),
        }  # fmt: skip


def _quality(book: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    """pass@1 over tasks, with an interval by resampling tasks."""
    rates = [row["rate"] for row in _rows(book, RATES, run_id)]
    return _row(book, PASS_AT_1, run_id) | {"interval": bootstrap(rates)}


def bootstrap(rates: Sequence[float], resamples: int = 10_000) -> tuple[float, float]:
    """95% interval of the mean over tasks, from (tasks,) pass rates: percentiles of resampled
    means, with a fixed seed."""
    random = np.random.default_rng(0)
    drawn = random.choice(np.array(rates), (resamples, len(rates))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def injected(demo: Demo) -> dict[str, int]:
    """Faults that the sandbox server injected, by kind; it lists each before it strikes."""
    counts: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (demo.path("sandboxes") / "faults.jsonl").read_text().splitlines():
            kind = json.loads(line)["kind"]
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def versions() -> dict[str, str]:
    """Packages that the project names, with SGLang, as they are installed here."""
    found = {"python": platform.python_version()}
    for name in sorted(_required("rollbook") | {"rollbook", "sglang"}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _required(package: str) -> set[str]:
    try:
        required = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # run from its folder, without being installed
        required = []
    names = (re.match(r"[A-Za-z0-9._-]+", each) for each in required if "'dev'" not in each)
    return {name[0].lower() for name in names if name}


def print_summary(found: Mapping[str, Any]) -> None:
    """As one JSON object on stdout."""
    json.dump(found, sys.stdout, indent=1, default=str, ensure_ascii=False)
    sys.stdout.write("\n")


def _rows(book: duckdb.DuckDBPyConnection, query: str, *parameters: object) -> list[dict[str, Any]]:
    result = book.execute(query, list(parameters))
    names = [str(column[0]) for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _row(book: duckdb.DuckDBPyConnection, query: str, *parameters: object) -> dict[str, Any]:
    return next(iter(_rows(book, query, *parameters)), {})
