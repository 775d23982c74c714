"""A demo's accounts, from its book, as one object. Where the book has an account, it is this one's
figure, by the rule set that groups were decided by."""

from __future__ import annotations

import contextlib
import json
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import duckdb

from api.demo.children import Parts
from api.demo.plan import Demo
from consumers.audit import audit
from ledger.accounts.reports import extended
from ledger.book import connect
from ledger.open_log import redact

MISSING = ("sequence_holes", "lost", "quarantined")
"""Checks of the audit whose findings are facts that aren't in the book."""

STEPS = "SELECT count(DISTINCT step) AS steps FROM steps WHERE run_id = ?"
FACTS = "SELECT count(*) AS facts FROM facts"
PASS_AT_1 = """
    FROM pass_at_1 SEMI JOIN group_decisions USING (run_id, rule_set)
    WHERE run_id = ? ORDER BY valid DESC LIMIT 1
"""
QUALITY = {
    "policy_version": "policy_version",
    "rule_set": "rule_set",
    "passed": "passed",
    "valid": "valid",
    "slots": "slots",
    "coverage": "coverage",
    "value": "pass_at_1_macro",
    "pooled": "pass_at_1_pooled",
    "if_missing_failed": "macro_if_missing_failed",
    "if_missing_passed": "macro_if_missing_passed",
}
"""What is told of a row of `pass_at_1`, by name."""
LEARNING = """
    SELECT step, epoch(ended_at - min(started_at) OVER ()) AS at_s, wall_s, waiting_s,
        steps.trajectories, reward, metrics['lag_mean'] AS lag, loss
    FROM steps
    LEFT JOIN (
        SELECT batch_id, avg(mean) AS reward
        FROM (SELECT batch_id, unnest(group_ids) AS group_id FROM batch_assembled)
        JOIN group_decisions USING (group_id)
        GROUP BY batch_id
    ) USING (batch_id)
    WHERE run_id = ? ORDER BY step, ended_at
"""
TRAINER = """
    SELECT wall_s, waiting_s, loading_s, logprobs_s, forward_backward_s, optimizer_s,
        publishing_s, checkpoint_s, unattributed_s, downtime_s, rollout_union_s, exposed_s,
        overlapped_union_s
    FROM step_time_totals WHERE run_id = ?
"""
THROUGHPUT = """
    SELECT sum(attempted) AS attempted, sum(completed) AS completed, sum(rollout_s) AS rollout_s,
        3600 * sum(completed) / nullif(sum(rollout_s), 0) AS completed_per_rollout_hour,
        sum(generated_tokens) / nullif(sum(rollout_s), 0) AS generated_tokens_per_s
    FROM throughput SEMI JOIN group_decisions USING (run_id, rule_set) WHERE run_id = ?
"""
TAIL = "SELECT tail_share_of_sums AS share FROM rollout_tail_totals WHERE run_id = ?"
OCCUPANCY = """
    SELECT sum(low_occupancy_s)
            / nullif(sum(window_s) FILTER (low_occupancy_s IS NOT NULL), 0) AS share
    FROM low_occupancy WHERE run_id = ?
"""
FAILURES = """
    WITH voted AS (
        SELECT attempts.cause_stage AS stage, attempts.cause_class AS class, attempts.blame,
            count(*) FILTER (votes) AS voted
        FROM trajectories AS attempts JOIN members USING (group_id, trajectory_id)
        WHERE attempts.run_id IN (SELECT unnest(?::UUID[])) AND attempts.cause_class IS NOT NULL
        GROUP BY ALL
    )
    SELECT failed.blame, failed.class, failed.stage, sum(failures)::BIGINT AS failures,
        sum(trajectories_ended)::BIGINT AS ended, coalesce(any_value(voted), 0) AS voted
    FROM failure_counts AS failed SEMI JOIN group_decisions USING (run_id, rule_set)
    LEFT JOIN voted ON voted.class = failed.class
        AND voted.stage IS NOT DISTINCT FROM failed.stage
        AND voted.blame IS NOT DISTINCT FROM failed.blame
    WHERE run_id IN (SELECT unnest(?::UUID[]))
    GROUP BY ALL ORDER BY ALL
"""
GROUPS = """
    SELECT coalesce(drop_reason, decision) AS became, count(*) AS groups
    FROM group_decisions WHERE run_id = ? GROUP BY ALL ORDER BY ALL
"""
CONTAMINATION = """
    SELECT count(*) FILTER (known = 'at_decision') AS at_decision,
        count(*) FILTER (known <> 'at_decision') AS late_evidence
    FROM contamination WHERE run_id IN (SELECT unnest(?::UUID[]))
"""


def summary_of(demo: Demo) -> dict[str, Any]:
    """All figures of a demo that came to its end."""
    evaluations = {when: each.run_id for when, each in demo.evaluations.items()}
    runs = [demo.run_id, *evaluations.values()]
    with contextlib.closing(connect(demo.book, read_only=True)) as book:
        findings = audit(book)
        return {
            "run_id": demo.run_id,
            "folder": _shown(demo.folder),
            "held_out": demo.plan.held_out,
            "mode": "sync" if demo.plan.sync else "async",
            "log_url": _log_url(demo),
            "steps": _row(book, STEPS, demo.run_id)["steps"],
            "facts": _row(book, FACTS)["facts"],
            "pass_at_1_before": _quality(book, evaluations["before"]),
            "pass_at_1_after": _quality(book, evaluations["after"]),
            "throughput": _row(book, THROUGHPUT, demo.run_id),
            # In an asynchronous run attempts are of no step, so there is no tail of a step.
            "tail_share": _row(book, TAIL, demo.run_id).get("share"),
            "low_occupancy_share": _row(book, OCCUPANCY, demo.run_id).get("share"),
            "groups": {row["became"]: row["groups"] for row in _rows(book, GROUPS, demo.run_id)},
            "failures": _rows(book, FAILURES, runs, runs),
            "injected": injected(demo),
            "contamination": _row(book, CONTAMINATION, runs),
            "conservation_violations": sum(each.check == "conservation" for each in findings),
            "lost": sum(each.check in MISSING for each in findings),
            "duplicated": sum(each.check == "repeated_facts" for each in findings),
            "learning": _rows(book, LEARNING, demo.run_id),
            "seconds": {"demo": demo.seconds, "trainer": _row(book, TRAINER, demo.run_id)},
            "deaths": demo.deaths,
            "versions": versions(),
        }


def _shown(path: Path) -> str:
    """As short as a command here may have it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _log_url(demo: Demo) -> str:
    """As a command here takes it."""
    if demo.plan.log == "sqlite":
        return f"sqlite:///{_shown(demo.path('log.db'))}"
    return redact(Parts(demo).log_url)


def _quality(book: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    """pass@1 over tasks, with its bootstrapped interval."""
    row = extended(book, "pass_at_1", [_row(book, PASS_AT_1, run_id)])[0]
    ends = [row["bootstrap_low"], row["bootstrap_high"]]
    told = {name: row[column] for name, column in QUALITY.items()}
    return told | {"interval": None if None in ends else ends}


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


def _rows(book: duckdb.DuckDBPyConnection, query: str, *parameters: object) -> list[dict[str, Any]]:
    result = book.execute(query, list(parameters))
    names = [str(column[0]) for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _row(book: duckdb.DuckDBPyConnection, query: str, *parameters: object) -> dict[str, Any]:
    return next(iter(_rows(book, query, *parameters)), {})
