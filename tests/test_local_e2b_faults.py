"""Faults by rule and seed: which request meets which, what a client sees, the account of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import (
    NotEnoughSpaceException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxUnreachableException,
    ServiceBusyException,
)

from producers.local_e2b.faults import FaultPlan, Rule, load_rules, parse_rule
from producers.local_e2b.launch import LocalE2B
from producers.local_e2b.settings import LocalE2BError, StartLatency

pytestmark = pytest.mark.sandboxes

KEY = "e2b_any"


def at(url: str) -> dict[str, Any]:
    return {"api_url": url, "sandbox_url": url, "api_key": KEY}


def test_a_rule_is_read_with_its_defaults() -> None:
    assert parse_rule("lost:p=0.05") == Rule("lost:p=0.05", "lost", p=0.05)
    text = "start_refused:after=2,times=1,status=500"
    assert parse_rule(text) == Rule(text, "start_refused", after=2, times=1, status=500)
    assert parse_rule("pool_exhausted:p=1").seconds == 5.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gone:p=1", "a fault is one of"),
        ("lost", "needs p or after"),
        ("lost:p", "must be KEY=VALUE, got 'p'"),
        ("lost:p=x", "p must be a number, got 'x'"),
        ("lost:p=2", "p is within 0..1"),
        ("lost:q=1", "got 'q'"),
        ("start_refused:p=1,status=200", "within 400..599, got 200"),
    ],
)
def test_a_bad_rule_is_refused_with_its_text(text: str, said: str) -> None:
    with pytest.raises(LocalE2BError, match=said) as refused:
        parse_rule(text)
    assert text in str(refused.value)


def test_rules_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\nkind = "lost"\nafter = 3\n[[fault]]\nkind = "disk_full"\np = 0.5\n')
    assert load_rules(file) == [
        Rule("lost:after=3", "lost", after=3),
        Rule("disk_full:p=0.5", "disk_full", p=0.5),
    ]
    file.write_text("[[fault]")
    with pytest.raises(LocalE2BError, match=r"faults\.toml"):
        load_rules(file)


def struck(seed: int, order: list[tuple[int, int]]) -> set[tuple[int, int]]:
    plan = FaultPlan([parse_rule("lost:p=0.1"), parse_rule("dropped_stream:p=0.1")], seed)
    return {(box, n) for box, n in order if plan.strike("command", box, n)}


def test_the_same_requests_meet_the_same_faults_however_they_overlap() -> None:
    one_by_one = [(box, n) for box in range(50) for n in range(20)]
    interleaved = [(box, n) for n in range(20) for box in range(50)]
    assert struck(7, one_by_one) == struck(7, interleaved)
    assert struck(7, one_by_one) != struck(8, one_by_one)
    assert 130 < len(struck(7, one_by_one)) < 250  # of 1000, each with p = 0.19


def test_a_rule_fires_after_so_many_and_no_more_than_so_often() -> None:
    plan = FaultPlan([parse_rule("lost:after=2,times=2")], 0)
    fired = [(b, n) for b in range(4) for n in range(5) if plan.strike("command", b, n)]
    assert fired == [(0, 2), (1, 2)]


def test_with_both_a_rule_fires_there_with_that_probability_and_nowhere_else() -> None:
    plan = FaultPlan([parse_rule("lost_idle:after=1,p=0.5")], 0)
    fired = [(b, n) for b in range(200) for n in range(3) if plan.strike("command", b, n)]
    assert {n for _, n in fired} == {1}
    assert 70 < len(fired) < 130


def test_a_sandbox_may_be_lost_behind_a_command_and_a_command_may_be_slow(tmp_path: Path) -> None:
    rules = ("command_slow:after=0,seconds=0.4", "lost_idle:after=1")
    server = LocalE2B(tmp_path, faults=rules, unsafe=True)
    url = server.start()
    try:
        sandbox = Sandbox.create(timeout=60, **at(url))
        began = time.monotonic()
        assert sandbox.commands.run("echo 0").stdout == "0\n"
        assert time.monotonic() - began > 0.4
        assert sandbox.commands.run("echo 1").stdout == "1\n"
        with pytest.raises(SandboxNotRunningException):
            sandbox.commands.run("echo 2")
    finally:
        server.stop()
    told = [json.loads(line) for line in server.fault_file.read_text().splitlines()]
    assert [(each["rule"], each["served"]) for each in told] == [(rules[0], 0), (rules[1], 1)]


def test_start_latency_is_drawn_by_seed_and_number() -> None:
    assert StartLatency.parse("fixed:0.5").draw(1, 2) == 0.5
    drawn = [StartLatency.parse("lognormal:2,0.8").draw(1, n) for n in range(1000)]
    assert drawn == [StartLatency(2, 0.8).draw(1, n) for n in range(1000)]
    assert 1.8 < sorted(drawn)[500] < 2.2
    assert 0.75 < sum(value < 2 * 2.718**0.8 for value in drawn) / 1000 < 0.9  # one sigma: 84%
    with pytest.raises(LocalE2BError, match="start latency must be"):
        StartLatency.parse("uniform:1")


def test_each_fault_is_seen_by_the_client_and_in_the_account(tmp_path: Path) -> None:
    rules = (
        "start_refused:after=0,status=400",
        "start_slow:after=1,seconds=0.4",
        "start_refused:after=2,times=1",
        "pool_exhausted:after=0,times=1,seconds=0.2",
        "dropped_stream:after=1,times=1",
        "lost:after=3,times=1",
        "disk_full:after=1,times=1",
    )
    server = LocalE2B(tmp_path, faults=rules, start_latency="fixed:0.1")
    url = server.start()
    try:
        with pytest.raises(SandboxException, match="400: injected: start_refused"):
            Sandbox.create(**at(url))
        began = time.monotonic()
        sandbox = Sandbox.create(timeout=60, **at(url))
        assert time.monotonic() - began > 0.5  # its latency, and the slow start's
        with pytest.raises(ServiceBusyException):
            Sandbox.create(retries=0, **at(url))
        with pytest.raises(SandboxUnreachableException):
            sandbox.commands.run("echo 0")
        with pytest.raises(Exception, match="body"):
            sandbox.commands.run("echo 1 > ran; echo 1")
        assert sandbox.is_running()
        sandbox.files.write("a", "b")
        with pytest.raises(NotEnoughSpaceException):
            sandbox.files.write("a", "c")
        assert sandbox.commands.run("cat ran").stdout == "1\n"  # its stream broke, it did not
        with pytest.raises(SandboxNotRunningException):
            sandbox.commands.run("sleep 30")
        with pytest.raises(SandboxNotFoundException):
            sandbox.get_info()
        told = httpx.get(f"{url}/admin/faults", headers={"X-API-KEY": KEY}).json()
        status = httpx.get(f"{url}/admin/status", headers={"X-API-KEY": KEY}).json()
    finally:
        server.stop()
    lost = sandbox.sandbox_id
    assert [(each["rule"], each["sandbox_id"], each["served"]) for each in told] == [
        (rules[0], None, 0),
        (rules[1], None, 1),
        (rules[2], None, 2),
        (rules[3], lost, 0),
        (rules[4], lost, 1),
        (rules[6], lost, 1),
        (rules[5], lost, 3),
    ]
    assert [json.loads(line) for line in server.fault_file.read_text().splitlines()] == told
    assert (status["counts"], status["faults"]) == ({"created": 1, "lost": 1}, 7)


def test_a_rule_that_is_bad_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(LocalE2BError, match=r"a fault is one of .*; got 'nope'"):
        LocalE2B(tmp_path, faults=("nope:p=1",)).start()
