"""Commands and files against a backend that misbehaves on the wire."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ledger.facts.lists import Stage
from producers.sandbox import CommandResult, Sandbox, SandboxError
from producers.sandbox_pool import Sandboxes
from tests.e2b_faults import (
    END,
    ENDED,
    KEY,
    STARTED,
    Answer,
    FaultyE2B,
    broken_off,
    drops,
    ended,
    frame,
    hangs,
    late,
    loses_sandbox,
    printed,
    status,
    stream,
)
from tests.recorded import IDS, Make, facts_in, of

SOON_S = 30.0
"""Far less than any wait that is not bounded."""


class Lab:
    """A faulty server, and a recorded trajectory against it."""

    def __init__(self, make: Make, url: str) -> None:
        self.server = FaultyE2B()
        self._recorder = make(url)
        self._url = url

    def play(
        self, scene: Callable[[Sandbox], Awaitable[Any]], **settings: Any
    ) -> tuple[Any, list[Any]]:
        """What `scene` returned or raised as SandboxError, and the facts."""

        async def main() -> Any:
            async with self.server as server, Sandboxes(server.settings(**settings)) as sandboxes:
                try:
                    async with sandboxes.open(self._recorder.bind(**IDS)) as sandbox:
                        return await scene(sandbox)
                except SandboxError as error:
                    return error

        began = time.monotonic()
        outcome = asyncio.run(main())
        assert time.monotonic() - began < SOON_S
        assert self.server.up == {}
        assert self._recorder.close()
        return outcome, facts_in(self._url)


@pytest.fixture
def lab(make: Make, sqlite_url: str) -> Lab:
    return Lab(make, sqlite_url)


def is_killer(command: str) -> bool:
    return "kill -KILL" in command


async def run(sandbox: Sandbox) -> CommandResult:
    return await sandbox.run("pytest -q", timeout_s=20.0)


def test_outputs_and_the_exit_code_are_what_the_stream_says(lab: Lab) -> None:
    lab.server.will(
        "run", stream(STARTED, printed("a"), printed("b", "stderr"), printed("c"), ended(3), END)
    )
    result, facts = lab.play(run)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "ac", "b")
    assert (result.timed_out, result.sandbox_s) == (False, None)
    assert result.wall_s < SOON_S
    assert of(facts, "SandboxFailed") == []
    (stopped,) = of(facts, "SandboxStopped")
    assert (stopped.sandbox_id, stopped.reason) == ("i1", "finished")


def test_a_character_that_two_events_share_arrives_whole(lab: Lab) -> None:
    halves = [
        frame({"event": {"data": {"stdout": base64.b64encode(half).decode()}}})
        for half in (b"\xc3", b"\xa4")
    ]
    lab.server.will("run", stream(STARTED, *halves, ENDED, END))
    result, _ = lab.play(run)
    assert (result.stdout, result.stdout_size) == ("ä", 1)


WAS_NOT_FOUND = status(502, {"message": "The sandbox was not found"})


@pytest.mark.parametrize(
    ("answer", "error_type", "http_status", "lost", "in_command"),
    [
        (stream(STARTED, dropped=True), "SandboxUnreachableException", None, False, True),
        (stream(STARTED, END), "Exception", None, False, True),
        (stream(STARTED, broken_off("unavailable")),
         "SandboxUnreachableException", None, False, True),
        (stream(STARTED, broken_off("internal")), "SandboxException", None, False, True),
        (stream(STARTED, broken_off("resource_exhausted")), "RateLimitException", 429, False, True),
        (stream(STARTED, broken_off("canceled")), "TimeoutException", None, False, True),
        (stream(STARTED, b"\0\0\0\0\3{x}"), "SandboxException", None, False, True),
        (stream(END), "StopAsyncIteration", None, False, None),
        (stream(printed("no start")), "SandboxException", None, False, None),
        (drops, "SandboxUnreachableException", None, False, None),
        (status(401), "AuthenticationException", None, False, False),
        (status(404), "NotFoundException", 404, False, False),
        (status(429), "RateLimitException", 429, False, False),
        (status(500), "SandboxException", None, False, None),
        (status(502), "SandboxUnreachableException", None, False, None),
        (status(200, "<html>"), "SandboxException", None, False, None),
        (loses_sandbox(WAS_NOT_FOUND), "SandboxNotRunningException", None, True, False),
        (loses_sandbox(stream(STARTED, printed("x"), dropped=True)),
         "SandboxNotRunningException", None, True, True),
        (loses_sandbox(stream(STARTED, broken_off("unavailable"))),
         "SandboxNotRunningException", None, True, True),
    ],
)  # fmt: skip
def test_what_a_broken_command_is_called_and_whether_the_sandbox_can_be_used_on(
    lab: Lab,
    answer: Answer,
    error_type: str,
    http_status: int | None,
    lost: bool,
    in_command: bool | None,
) -> None:
    lab.server.will("run", answer)
    error, facts = lab.play(run)
    assert isinstance(error, SandboxError)
    found = (error.error_type, error.http_status, error.lost, error.in_command)
    assert found == (error_type, http_status, lost, in_command)
    assert (error.stage, error.sandbox_id) == (Stage.TOOL, "i1")
    (failed,) = of(facts, "SandboxFailed")
    assert (failed.error_type, failed.http_status, failed.in_command) == (
        error_type,
        http_status,
        in_command,
    )
    # Its processes were looked for, or nothing can be reached, or nothing can have run.
    killed = any(is_killer(command) for command in lab.server.commands)
    assert killed or lost or in_command is False


def test_a_sandbox_that_can_not_kill_what_it_lost_sight_of_is_lost(lab: Lab) -> None:
    lab.server.will("run", stream(STARTED, dropped=True), status(500), status(500))
    error, _ = lab.play(run)
    assert (error.error_type, error.lost, error.in_command) == (
        "SandboxUnreachableException",
        True,
        True,
    )


# Deadlines, on every version of Python


def test_a_time_limit_holds_when_the_stream_stalls_and_is_a_result(lab: Lab) -> None:
    lab.server.will("run", stream(STARTED, printed("so far"), hangs=True))
    result, facts = lab.play(lambda sandbox: sandbox.run("sleep 60", timeout_s=0.5))
    assert (result.exit_code, result.timed_out, result.stdout) == (None, True, "so far")
    assert result.wall_s >= 0.5
    assert [is_killer(command) for command in lab.server.commands] == [False, True]
    assert of(facts, "SandboxFailed") == []


def test_the_backends_own_limit_comes_later_than_ours(lab: Lab) -> None:
    sent: list[str] = []

    async def look(_: FaultyE2B, request: Any, writer: Any) -> bool:
        sent.append(request.headers["connect-timeout-ms"])
        return True

    lab.server.will("run", look)
    lab.play(lambda sandbox: sandbox.run("true", timeout_s=2.0))
    assert sent == ["32000"]


def test_a_time_limit_with_processes_that_can_not_be_killed_is_a_lost_sandbox(lab: Lab) -> None:
    lab.server.will("run", stream(STARTED, hangs=True), hangs, hangs)
    error, _ = lab.play(
        lambda sandbox: sandbox.run("sleep 60", timeout_s=0.2), request_timeout_s=0.5
    )
    assert (error.error_type, error.lost, error.in_command) == ("NoAnswer", True, True)


def test_a_stream_that_never_opens_is_no_time_limit_of_the_command(lab: Lab) -> None:
    lab.server.will("run", hangs)
    error, _ = lab.play(lambda sandbox: sandbox.run("true", timeout_s=0.1), request_timeout_s=0.5)
    assert (error.error_type, error.lost, error.in_command) == ("NoAnswer", False, None)
    assert error.seconds is not None
    assert 0.5 <= error.seconds < SOON_S


@pytest.mark.parametrize("transfer", ["write", "read"])
def test_transfers_end_when_the_backend_hangs(lab: Lab, transfer: str) -> None:
    lab.server.will("files", hangs)

    async def scene(sandbox: Sandbox) -> None:
        if transfer == "write":
            await sandbox.write("a", b"x")
        else:
            await sandbox.read("a")

    error, _ = lab.play(scene, request_timeout_s=0.5)
    assert (error.error_type, error.lost, error.in_command) == ("NoAnswer", False, False)


def test_a_sandbox_that_says_nothing_at_all_is_lost(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr("producers.sandbox.ASK_TIMEOUT_S", 0.5)
    lab.server.will("files", hangs)
    lab.server.will("health", hangs)
    error, _ = lab.play(lambda sandbox: sandbox.read("a"), request_timeout_s=0.5)
    assert (error.error_type, error.lost) == ("NoAnswer", True)


def test_cancellation_is_not_held_up_by_a_stalled_stream(lab: Lab) -> None:
    lab.server.will("run", stream(STARTED, hangs=True))

    async def scene(sandbox: Sandbox) -> str:
        try:
            async with asyncio.timeout(0.5):
                await sandbox.run("sleep 60", timeout_s=60)
        except TimeoutError:
            return "cancelled"
        return "not cancelled"

    assert lab.play(scene)[0] == "cancelled"


# Files


@pytest.mark.parametrize(
    ("answer", "error_type", "http_status", "lost"),
    [
        (status(400), "InvalidArgumentException", None, False),
        (status(401), "AuthenticationException", None, False),
        (status(404), "FileNotFoundException", 404, False),
        (status(429), "RateLimitException", 429, False),
        (status(500), "SandboxException", 500, False),
        (status(502), "SandboxUnreachableException", None, False),
        (status(507), "NotEnoughSpaceException", 507, False),
        (status(200, "<html>"), "JSONDecodeError", None, False),
        (status(200, []), "SandboxException", None, False),
        (drops, "RemoteProtocolError", None, False),
        (loses_sandbox(drops), "SandboxNotRunningException", None, True),
    ],
)
def test_what_a_broken_write_is_called(
    lab: Lab, answer: Answer, error_type: str, http_status: int | None, lost: bool
) -> None:
    lab.server.will("files", answer)
    error, _ = lab.play(lambda sandbox: sandbox.write("a", "text"))
    assert (error.error_type, error.http_status, error.lost) == (error_type, http_status, lost)


def test_what_is_read_is_what_the_file_holds(lab: Lab) -> None:
    assert lab.play(lambda sandbox: sandbox.read("a"))[0] == b"content"


# Evidence


def test_a_failure_carries_the_backends_account_and_the_last_metrics(lab: Lab) -> None:
    lab.server.will("run", stream(STARTED, broken_off("internal")))
    _, facts = lab.play(run)
    (failed,) = of(facts, "SandboxFailed")
    assert (failed.sandbox_id, failed.try_no, failed.stage) == ("i1", 0, Stage.TOOL)
    assert (failed.backend, failed.template) == ("e2b", "base")
    assert (failed.backend_state, failed.backend_end_at.isoformat()) == (
        "running",
        "2026-01-02T04:04:05+00:00",
    )
    assert (failed.memory_used_bytes, failed.memory_limit_bytes) == (1005, 512 << 20)
    assert (failed.disk_used_bytes, failed.disk_limit_bytes) == (2005, 1 << 30)
    assert "said internal" in failed.error.head
    assert 0 < failed.seconds < SOON_S


def test_evidence_outlives_the_sandbox(lab: Lab) -> None:
    lab.server.will("run", loses_sandbox(stream(STARTED, dropped=True)))

    async def scene(sandbox: Sandbox) -> None:
        while lab.server.asked.count("metrics") < 2:
            await asyncio.sleep(0.01)
        lab.server.will("metrics", *[status(404)] * 1000)
        await run(sandbox)

    _, facts = lab.play(scene, metrics_every_s=0.02)
    (failed,) = of(facts, "SandboxFailed")
    assert failed.backend_state == "not_found"
    assert failed.backend_end_at.isoformat() == "2026-01-02T04:04:05+00:00"  # as it had declared
    assert failed.memory_used_bytes == 1005
    assert of(facts, "SandboxStopped") == []  # nobody killed it


def test_a_failure_is_told_also_when_nothing_answers(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr("producers.sandboxes.evidence.ASK_TIMEOUT_S", 0.2)
    lab.server.will("run", stream(STARTED, broken_off("internal")))
    lab.server.will("info", late(0), hangs)
    lab.server.will("metrics", hangs)
    _, facts = lab.play(run)
    (failed,) = of(facts, "SandboxFailed")
    assert (failed.backend_state, failed.memory_used_bytes) == ("running", None)


def test_a_failure_is_told_once_and_by_the_stage_that_the_caller_names(lab: Lab) -> None:
    async def scene(sandbox: Sandbox) -> None:
        await sandbox.failed(RuntimeError("setup broke"), Stage.SETUP)
        await sandbox.failed(RuntimeError("again"))

    _, facts = lab.play(scene)
    (failed,) = of(facts, "SandboxFailed")
    assert (failed.stage, failed.error_type, failed.in_command) == (
        Stage.SETUP,
        "RuntimeError",
        False,
    )


def test_the_failure_of_another_sandbox_is_not_this_ones(lab: Lab) -> None:
    async def scene(sandbox: Sandbox) -> None:
        other = SandboxError(Stage.TOOL, "X", "of another", lost=True)
        other.sandbox_id = "i99"
        await sandbox.failed(other)

    assert of(lab.play(scene)[1], "SandboxFailed") == []


def test_the_stage_of_an_error_is_where_the_trajectory_is(lab: Lab) -> None:
    lab.server.will("files", status(507))

    async def scene(sandbox: Sandbox) -> None:
        sandbox.stage = Stage.VERIFY
        await sandbox.write("a", "x")

    error, facts = lab.play(scene)
    assert error.stage is Stage.VERIFY
    assert of(facts, "SandboxFailed")[0].stage is Stage.VERIFY


def test_preparing_is_recorded(lab: Lab) -> None:
    async def scene(sandbox: Sandbox) -> None:
        sandbox.prepared(1.25)

    (prepared,) = of(lab.play(scene)[1], "SandboxPrepared")
    assert (prepared.sandbox_id, prepared.setup_s, prepared.template) == ("i1", 1.25, "base")


# What can't be sent


def test_a_command_that_no_process_can_be_given_is_a_result(lab: Lab) -> None:
    result, facts = lab.play(lambda sandbox: sandbox.run("echo \0", timeout_s=1))
    assert (result.exit_code, result.stderr_size) == (126, len(result.stderr))
    assert lab.server.commands == []
    assert of(facts, "SandboxFailed") == []


def test_a_time_limit_of_nothing_is_a_slip_of_the_caller(lab: Lab) -> None:
    async def scene(sandbox: Sandbox) -> None:
        with pytest.raises(ValueError, match=re.escape("timeout_s must be more than 0, got 0")):
            await sandbox.run("true", timeout_s=0)

    lab.play(scene)


def test_the_key_is_in_no_fact_though_the_server_repeats_it(lab: Lab) -> None:
    lab.server.will("files", status(507, {"message": f"full, {KEY}"}))
    _, facts = lab.play(lambda sandbox: sandbox.write("a", "x"))
    (failed,) = of(facts, "SandboxFailed")
    assert "full, [api key]" in failed.error.head
    assert KEY not in repr(facts)
