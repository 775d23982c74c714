"""Rollouts on real parts: SGLang, the e2b SDK on the local server, real tests, a log, a book."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.avro import decode
from ledger.open_log import open_log
from ledger.tokens import TurnTokens, unpack
from producers.local_e2b.launch import LocalE2B
from tests.books import projected, rows
from tests.builders import an_id
from tests.engine_lab import KV_TOKENS, EngineLab
from tests.recorded import ROOT, facts_in, of, values_in
from tests.tcp_proxy import proxy_to

pytestmark = [pytest.mark.engine]

FAULTS = ("start_refused:p=0.05,status=500", "lost:p=0.02", "dropped_stream:p=0.02,seconds=0")
"""About 10% of the attempts meet one: each has one start and up to seven commands."""


@dataclass(frozen=True, slots=True)
class Place:
    """Everything a rollout needs."""

    log: str
    engine: str
    sandboxes: LocalE2B
    url: str
    """Of the sandboxes."""
    folder: Path

    def command(self, *options: str) -> list[str]:
        """`rollbook rollout` here."""
        line = [sys.executable, "-m", "api.cli", "rollout", "--format", "json"]
        line += ["--log", self.log, "--engine", self.engine, "--sandboxes", self.url]
        line += ["--spool", str(self.folder / "spool"), "--tasks", "micro_repair:train"]
        return [*line, *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it."""
        return process_of(self.command(*options))

    def run(self, *options: str, returns: int = 0) -> dict[str, Any]:
        """Run it to its end; the row that it printed."""
        process = self.start(*options)
        out, errors = process.communicate(timeout=240)
        assert process.returncode == returns, errors
        return json.loads(out)[0]

    def injected(self) -> list[dict[str, Any]]:
        """Every fault that the sandbox server injected."""
        return self._ask("faults")

    def alive(self) -> int:
        """Sandboxes that the server still has."""
        return self._ask("status")["used"]

    def _ask(self, what: str) -> Any:
        request = urllib.request.Request(f"{self.url}/admin/{what}", headers={"X-API-KEY": "e2b"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


ENV = {**os.environ, "E2B_API_KEY": "e2b_local"}


def process_of(line: Sequence[str]) -> subprocess.Popen[str]:
    """A process of this command line, whose outputs are kept."""
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=ROOT, env=ENV, stdout=pipe, stderr=pipe, text=True)


@contextmanager
def a_place(folder: Path, log: str, engine: str, faults: Sequence[str] = ()) -> Iterator[Place]:
    server = LocalE2B(folder / "sandboxes", slots=16, faults=faults, seed=7, unsafe=True)
    url = server.start()
    try:
        yield Place(log, engine, server, url, folder)
    finally:
        server.stop()


def wait_for(process: subprocess.Popen[str], url: str, fact: str) -> None:
    """Until the log has such a fact."""
    deadline = time.monotonic() + 120
    while not Path(url.removeprefix("sqlite:///")).exists() or not of(facts_in(url), fact):
        assert time.monotonic() < deadline, f"no {fact}"
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)


def test_every_attempt_is_in_the_book_whatever_the_sandboxes_did(
    tmp_path: Path, sqlite_url: str, engine_lab: EngineLab
) -> None:
    """64 trajectories at concurrency 16, 10% of which meet an injected fault."""
    with a_place(tmp_path, sqlite_url, engine_lab.url, FAULTS) as place:
        row = place.run("--groups", "8", "--group-size", "8", "--concurrency", "16")
        assert (row["groups"], row["attempts"]) == (8, 64)
        faults = place.injected()
        assert place.alive() == 0
    book = tmp_path / "book.duckdb"
    assert projected(sqlite_url, book).quarantined == 0
    attempts = rows(
        book,
        "SELECT state, stop_reason, reward, reward_due, turns, turns_declared, tool_calls,"
        " tool_calls_declared, error_type, ended_in_stage FROM trajectories",
    )
    assert len(attempts) == 64
    for (
        state,
        reason,
        reward,
        due,
        turns,
        declared,
        calls,
        calls_declared,
        error,
        stage,
    ) in attempts:
        assert (state, turns, calls) == ("finished", declared, calls_declared)
        if reason == "error":
            assert error
            assert stage in ("sandbox_start", "setup", "tool", "verify")
        else:
            assert reason in ("submitted", "turn_cap")
            assert due
            assert reward in (0.0, 1.0)
            assert error is None
    check_faults_are_told(book, faults)
    check_logprobs(sqlite_url, engine_lab)
    assert rows(book, "SELECT count(*) FROM sandboxes WHERE state = 'running'") == [(0,)]
    samples = rows(book, "SELECT engine, kv_capacity_tokens FROM engine_sampled")
    assert set(samples) == {(engine_lab.url, KV_TOKENS)}
    ((used, limit),) = rows(
        book,
        "SELECT max(pool.used), any_value(pool.limit) FROM (SELECT unnest(pools) AS pool"
        " FROM pool_sampled) WHERE pool.name = 'sandbox_slots'",
    )
    assert 1 <= used <= limit == 16


def check_faults_are_told(book: Path, faults: list[dict[str, Any]]) -> None:
    """Each sandbox that a fault struck is one sandbox_failed fact, and there are no others. A
    second fault may strike what was sent to clean up behind the first one."""
    assert {fault["kind"] for fault in faults} == {"start_refused", "lost", "dropped_stream"}
    told = rows(book, "SELECT sandbox_id::VARCHAR, error_type, stage FROM sandbox_failed")
    kinds: dict[str | None, set[str]] = {}
    for fault in faults:
        kinds.setdefault(fault["sandbox_id"], set()).add(fault["kind"])
    started = Counter(sandbox for sandbox, _, _ in told if sandbox is not None)
    assert started == Counter(kinds.keys() - {None})
    refused = [fault for fault in faults if fault["kind"] == "start_refused"]
    assert len(told) - started.total() == len(refused)
    for sandbox, error, stage in told:
        possible = {
            "start_refused": {"SandboxException"},
            "lost": {"SandboxNotRunningException"},
            "dropped_stream": {"SandboxUnreachableException"},
        }
        assert error in set().union(*(possible[kind] for kind in kinds[sandbox]))
        assert (stage == "sandbox_start") == (kinds[sandbox] == {"start_refused"})


def check_logprobs(url: str, engine: EngineLab) -> None:
    """What was recorded is what the engine says of the same tokens."""
    with open_log(url) as log:
        payloads = [decode(value) for value in values_in(log, "tokens")]
    sequences: dict[str, list[TurnTokens]] = {}
    for payload in payloads:
        assert isinstance(payload, TurnTokens)
        sequences.setdefault(payload.trajectory_id, []).append(payload)
    assert len(sequences) >= 50
    for turns in list(sequences.values())[:12]:
        turns.sort(key=lambda turn: turn.turn_no)
        unpacked = [unpack(turn) for turn in turns]
        ids = [token for turn in unpacked for token in turn.ids]
        mask = [bit for turn in unpacked for bit in turn.loss_mask]
        logprobs = [value for turn in unpacked for value in turn.logprobs]
        scored = [0.0, *engine.score(ids)]
        for sampled, recorded, due in zip(mask, logprobs, scored, strict=True):
            assert not sampled or recorded == pytest.approx(due, abs=1e-4)


@pytest.mark.parametrize(
    ("caps", "reason"),
    [
        (("--turn-cap", "1"), "turn_cap"),
        (("--context-cap", "6"), "context_cap"),
        (("--clock-cap", "0.001"), "clock_cap"),
    ],
)
def test_each_cap_has_a_stop_reason_of_its_own_and_is_verified_all_the_same(
    tmp_path: Path, sqlite_url: str, engine_url: str, caps: tuple[str, str], reason: str
) -> None:
    with a_place(tmp_path, sqlite_url, engine_url) as place:
        row = place.run("--groups", "1", *caps)
    assert row["stop_reasons"].get(reason, 0) + row["stop_reasons"].get("submitted", 0) == 8
    assert row["stop_reasons"][reason] >= 4
    assert row["scored"] == 8


def test_an_evaluation_names_what_it_evaluates(
    tmp_path: Path, sqlite_url: str, engine_url: str
) -> None:
    trained = an_id("trained run")
    with a_place(tmp_path, sqlite_url, engine_url) as place:
        options = ("--kind", "eval", "--parent", trained, "--parent-version", "7")
        place.run("--groups", "1", "--group-size", "2", "--sample-every", "0.05", *options)
    facts = facts_in(sqlite_url)
    (run,) = of(facts, "RunDeclared")
    assert (run.kind, run.parent_run_id, run.parent_policy_version) == ("eval", trained, 7)
    samples = of(facts, "PoolSampled")
    assert len(samples) >= 2
    assert {fact.in_queue for fact in samples} == {None}


def test_sigterm_ends_what_is_in_flight_as_cancelled_and_leaves_nothing_behind(
    tmp_path: Path, sqlite_url: str, engine_url: str
) -> None:
    with a_place(tmp_path, sqlite_url, engine_url) as place:
        process = place.start("--groups", "1000", "--concurrency", "8")
        wait_for(process, sqlite_url, "TrajectoryFinished")
        process.send_signal(signal.SIGTERM)
        for impatient in (signal.SIGTERM, signal.SIGINT):  # changes nothing: the end takes its time
            time.sleep(0.1)
            if process.poll() is None:
                process.send_signal(impatient)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 1, errors
        assert json.loads(out)[0]["stop_reasons"]["cancelled"] > 0
        assert place.alive() == 0
    facts = facts_in(sqlite_url)
    started = {fact.trajectory_id for fact in of(facts, "TrajectoryStarted")}
    finished = Counter(fact.trajectory_id for fact in of(facts, "TrajectoryFinished"))
    assert started == set(finished)
    assert set(finished.values()) == {1}
    assert of(facts, "ProducerClosed")


def test_attempts_go_on_at_another_engine_when_theirs_dies(
    tmp_path: Path, sqlite_url: str, engine_url: str
) -> None:
    with (
        a_place(tmp_path, sqlite_url, engine_url) as place,
        proxy_to(engine_url) as dying,
        proxy_to(engine_url) as living,
    ):
        line = place.command("--groups", "6", "--engine", dying.url, "--engine", living.url)
        at = line.index(engine_url)
        del line[at - 1 : at + 1]
        process = process_of(line)
        wait_for(process, sqlite_url, "TrajectoryFinished")
        dying.cut()
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    row = json.loads(out)[0]
    assert (row["attempts"], row["scored"], row["errors"]) == (48, 48, {})
    facts = facts_in(sqlite_url)
    failed = of(facts, "TurnFailed")
    assert failed
    assert {fact.engine for fact in failed} == {dying.url}
    assert {fact.engine for fact in of(facts, "TurnCompleted")} == {dying.url, living.url}


def test_a_rollout_kills_the_sandboxes_of_one_that_was_killed(
    tmp_path: Path, sqlite_url: str, engine_url: str
) -> None:
    with a_place(tmp_path, sqlite_url, engine_url) as place:
        process = place.start("--groups", "1000", "--concurrency", "8")
        wait_for(process, sqlite_url, "TrajectoryFinished")
        process.kill()
        process.communicate()
        assert place.alive() > 0
        place.run("--groups", "1", "--group-size", "2")
        assert place.alive() == 0
    assert {fact.reason for fact in of(facts_in(sqlite_url), "SandboxStopped")} >= {"swept"}


def test_a_rollout_without_sandboxes_ends_before_it_has_used_its_tasks_up(
    tmp_path: Path, sqlite_url: str, engine_url: str
) -> None:
    with a_place(tmp_path, sqlite_url, engine_url) as place:
        process = place.start("--groups", "1000", "--concurrency", "8")
        wait_for(process, sqlite_url, "TrajectoryFinished")
        place.sandboxes.kill()
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "fewer than 16 attempts in a row may fail, got 16; the last in sandbox_start" in errors
    facts = facts_in(sqlite_url)
    finished = Counter(fact.trajectory_id for fact in of(facts, "TrajectoryFinished"))
    assert {fact.trajectory_id for fact in of(facts, "TrajectoryStarted")} == set(finished)
    assert json.loads(out)[0]["attempts"] == len(finished)


def test_facts_that_the_log_never_took_are_told_with_their_place(
    tmp_path: Path, engine_url: str
) -> None:
    with a_place(tmp_path, f"sqlite:///{tmp_path}/missing/log.db", engine_url) as place:
        process = place.start("--groups", "1", "--group-size", "2")
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert f"{tmp_path / 'spool'}" in errors
    assert "rollbook drain" in errors


def test_slots_are_refilled_as_the_assembler_asks(
    tmp_path: Path, sqlite_url: str, engine_url: str
) -> None:
    run = an_id("refilled run")
    with a_place(tmp_path, sqlite_url, engine_url, ["lost:p=0.08"]) as place:
        rollout = place.start("--groups", "4", "--run-id", run, "--until-decided")
        wait_for(rollout, sqlite_url, "GroupOpened")
        line = [sys.executable, "-m", "api.cli", "assemble", "--run", run, "--log", sqlite_url]
        line += ["--follow", "--set", "on_infra_failure=refill", "--set", "max_refills=2"]
        assembler = process_of(line)
        out, errors = rollout.communicate(timeout=280)
        assembler.send_signal(signal.SIGTERM)
        _, said = assembler.communicate(timeout=30)
    assert rollout.returncode == 0, errors + said
    facts = facts_in(sqlite_url)
    asked = {fact.trajectory_id: fact.slot for fact in of(facts, "RefillRequested")}
    started = {fact.trajectory_id: fact for fact in of(facts, "TrajectoryStarted")}
    answered = {fact.replaces: fact.slot for fact in started.values() if fact.replaces}
    assert asked
    assert answered == asked
    assert json.loads(out)[0]["attempts"] == 32 + len(asked)
    decided = of(facts, "GroupDecided")
    assert len({fact.group_id for fact in decided}) == 4
    for fact in decided:
        assert {member.slot for member in fact.members} == set(range(8))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--engine", "http://127.0.0.1:9"), "http://127.0.0.1:9 must be a running SGLang server"),
        (("--engine", "nowhere"), "an engine must be an http or https URL, got 'nowhere'"),
        (("--sandboxes", "http://127.0.0.1:9"), "http://127.0.0.1:9"),
        (("--tasks", "micro_repair:test"), "test"),
        (("--tasks", "nothing.jsonl?tokenizer=none"), "nothing.jsonl"),
        (("--concurrency", "0"), "concurrency"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_trajectory(
    tmp_path: Path, sqlite_url: str, engine_url: str, options: tuple[str, str], told: str
) -> None:
    with a_place(tmp_path, sqlite_url, engine_url) as place:
        line = [part for part in place.command() if part != "micro_repair:train"]
        index = line.index("--tasks")
        line[index : index + 1] = (
            [] if options[0] == "--tasks" else ["--tasks", "micro_repair:train"]
        )
        if options[0] in ("--engine", "--sandboxes"):
            at = line.index(options[0])
            del line[at : at + 2]
        process = process_of([*line, *options])
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert told in errors
    assert "Traceback" not in errors
    log = Path(sqlite_url.removeprefix("sqlite:///"))
    assert not log.exists() or not of(facts_in(sqlite_url), "TrajectoryStarted")
