"""What a demo's accounts must say, whatever happened to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.books import rows

DOCS = Path(__file__).parent.parent / "docs"


def check_accounts(found: dict[str, Any]) -> None:
    """It learned, every fact is there once, the books balance, and no failure of others voted."""
    assert shape(found) == shape(json.loads((DOCS / "demo.json").read_text())), "docs are stale"
    before, after = found["pass_at_1_before"], found["pass_at_1_after"]
    assert before["value"] < 0.3
    assert after["value"] > before["value"] + 0.1
    assert (after["slots"], after["policy_version"] > 0) == (60, True)
    for name in ("conservation_violations", "lost", "duplicated"):
        assert found[name] == 0, name
    assert found["contamination"] == {"at_decision": 0, "late_evidence": 0}
    assert not [
        row for row in found["failures"] if row["blame"] == "infrastructure" and row["voted"]
    ]


def check_steps(folder: Path, found: dict[str, Any], steps: int) -> None:
    """Each batch up to so many was trained on, or refused, and a refused last one was made up for:
    behind a pause, groups wait that are too old by the time that it is their batch's turn."""
    told = rows(
        folder / "book.duckdb",
        "SELECT DISTINCT step, done.batch_id IS NOT NULL, refused.batch_id IS NOT NULL"
        " FROM batch_assembled"
        " LEFT JOIN (SELECT batch_id FROM step_completed) AS done USING (batch_id)"
        " LEFT JOIN (SELECT batch_id FROM batch_refused) AS refused USING (batch_id)"
        " WHERE step <= (SELECT max(step) FROM step_completed) ORDER BY ALL",
    )
    assert [step for step, _, _ in told] == list(range(1, len(told) + 1))
    assert len(told) >= steps
    assert all(done != refused for _, done, refused in told), told
    assert found["steps"] == sum(done for _, done, _ in told) > steps // 2


def shape(found: dict[str, Any]) -> dict[str, list[str]]:
    """Names of what a demo tells, with those inside of objects, and of the rows of tables."""
    named = ("pass_at_1_before", "pass_at_1_after", "throughput", "contamination")
    inside = {name: list(found[name]) for name in named}
    rows = {name: list(found[name][0]) for name in ("learning", "failures")}
    return {"": list(found), **inside, **rows, "trainer": list(found["seconds"]["trainer"])}


def check_faults(folder: Path) -> None:
    """Every sandbox that was refused or lost on purpose is a failure in the book, by its class."""
    lines = (folder / "sandboxes" / "faults.jsonl").read_text().splitlines()
    faults = [json.loads(line) for line in lines]
    lost = {each["sandbox_id"] for each in faults if each["kind"] == "lost_idle"}
    refused = sum(each["kind"] == "start_refused" for each in faults)
    assert lost
    assert refused
    book = folder / "book.duckdb"
    told = rows(
        book,
        "SELECT sandbox_id::VARCHAR, stage, error_type FROM sandbox_failed",
    )
    assert {sandbox for sandbox, _, _ in told if sandbox} >= lost
    assert sum(stage == "sandbox_start" for _, stage, _ in told) == refused
    voted = rows(
        book,
        "SELECT count(*) FROM members JOIN sandbox_failed USING (group_id, trajectory_id)"
        " WHERE votes AND stage <> 'sandbox_start'",
    )
    assert voted == [(0,)]
