"""The demo, shortened: every part of the loop real, killed and interrupted, and its accounts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.books import rows
from tests.demos import SHORT, DemoProcess, is_alive
from tests.recorded import eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.trainer,
    pytest.mark.sandboxes,
    pytest.mark.fault,
    pytest.mark.timeout(1800),
]
DOCS = Path(__file__).parent.parent / "docs"
PARTS = ("engine", "sandboxes", "projector", "assembler", "trainer", "rollout")


class Start(Protocol):
    def __call__(self, folder: Path, *options: str) -> DemoProcess: ...


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts demos, and ends those that a failing test leaves."""
    started: list[DemoProcess] = []

    def start(folder: Path, *options: str) -> DemoProcess:
        started.append(DemoProcess(folder, *options))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_demo_that_is_interrupted_goes_on_and_learns(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "demo"
    demo = start(folder, *SHORT)
    demo.wait_for(lambda: demo.steps() >= 2)
    pids = list(demo.pids().values())
    assert len(pids) == 6
    assert demo.interrupt() < 30, "10 s on a machine of its own"
    assert not any(map(is_alive, pids))
    assert "to go on: rollbook demo --resume --dir" in demo.said()
    found = start(folder, "--resume").result()
    check_accounts(found)
    assert found["steps"] == 6
    assert found["deaths"] == {}


@pytest.mark.kafka
@pytest.mark.long
def test_on_kafka_it_learns_the_same_with_the_broker_and_the_assembler_killed(
    tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "demo"
    demo = start(folder, *SHORT, "--log", "kafka")
    demo.wait_for(lambda: demo.steps() >= 1)
    demo.kill("kafka")
    demo.wait_for(lambda: demo.steps() >= 3)
    demo.kill("assembler")
    found = demo.result()
    check_accounts(found)
    check_faults(folder)
    assert found["steps"] == 6
    assert {"kafka", "assembler"} <= found["deaths"].keys()


@pytest.mark.long
@pytest.mark.parametrize("part", [*PARTS, "evaluation"])
def test_any_part_may_be_killed(part: str, tmp_path: Path, start: Start) -> None:
    demo = start(tmp_path / "demo", *SHORT)
    if part != "evaluation":
        demo.wait_for(lambda: demo.steps() >= 2)
    demo.kill(part)
    found = demo.result()
    check_accounts(found)
    assert found["deaths"][part] >= 1


@pytest.mark.long
def test_parts_die_with_a_demo_that_is_killed_and_it_goes_on(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "demo"
    demo = start(folder, *SHORT)
    demo.wait_for(lambda: demo.steps() >= 2)
    pids = list(demo.pids().values())
    demo.kill_supervisor()
    eventually(lambda: not any(map(is_alive, pids)), 10.0)
    check_accounts(start(folder, "--resume").result())


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
