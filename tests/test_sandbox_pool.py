"""Slots, starts with their tries, kills and the sweep, against a backend that misbehaves."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ledger.facts import PoolUse
from ledger.facts.lists import Stage
from ledger.recorder import BoundRecorder
from producers.sandbox import SandboxError
from producers.sandbox_pool import Sandboxes
from producers.sandboxes.owner import OURS, OWNER, Owner, metadata
from tests.builders import an_id
from tests.e2b_faults import (
    STARTED,
    FaultyE2B,
    drops,
    hangs,
    late,
    loses_its_answer,
    status,
    stream,
)
from tests.recorded import IDS, ROOT, Make, facts_in, of

Scene = Callable[[Sandboxes, FaultyE2B], Awaitable[Any]]


class Lab:
    """A faulty server, a recorder, and what was recorded."""

    def __init__(self, make: Make, url: str) -> None:
        self.recorder = make(url)
        self.attempt: BoundRecorder = self.recorder.bind(**IDS)
        self._url = url

    def play(self, scene: Scene, **settings: Any) -> list[Any]:
        """The facts of `scene`, behind which no sandbox may be left."""

        async def main() -> None:
            async with FaultyE2B() as server:
                async with Sandboxes(server.settings(**settings)) as sandboxes:
                    await scene(sandboxes, server)
                assert server.up == {}
                slots = settings.get("slots", 16)
                assert sandboxes.pools()[0] == PoolUse("sandbox_slots", 0, slots, 0)

        asyncio.run(main())
        assert self.recorder.close()
        return facts_in(self._url)


@pytest.fixture
def lab(make: Make, sqlite_url: str) -> Lab:
    return Lab(make, sqlite_url)


def tries(facts: list[Any]) -> list[tuple[Any, ...]]:
    """What became of each try, in order."""
    kinds = {
        "SandboxStarted": lambda fact: fact.sandbox_id,
        "SandboxFailed": lambda fact: fact.error_type,
        "SandboxStopped": lambda fact: fact.reason,
    }
    return [
        (type(fact).__name__, fact.try_no, kinds[type(fact).__name__](fact))
        for fact in facts
        if type(fact).__name__ in kinds
    ]


def test_every_try_at_a_start_is_a_fact(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", status(503), status(429))
        async with sandboxes.open(lab.attempt, "python") as sandbox:
            assert (sandbox.id, sandbox.try_no) == ("i1", 2)

    facts = lab.play(scene)
    assert tries(facts) == [
        ("SandboxFailed", 0, "ServiceBusyException"),
        ("SandboxFailed", 1, "RateLimitException"),
        ("SandboxStarted", 2, "i1"),
        ("SandboxStopped", 2, "finished"),
    ]
    failed = of(facts, "SandboxFailed")
    assert [fact.http_status for fact in failed] == [503, 429]
    assert {(fact.stage, fact.sandbox_id) for fact in failed} == {(Stage.SANDBOX_START, None)}
    (started,) = of(facts, "SandboxStarted")
    assert (started.backend, started.template, started.vcpus) == ("e2b", "python", 2.0)
    assert started.start_s > 0
    assert 0 <= started.queue_s < started.start_s + 1
    (stopped,) = of(facts, "SandboxStopped")
    assert (stopped.sandbox_id, stopped.template) == ("i1", "python")
    assert stopped.lifetime_s > 0


def test_a_start_that_fails_at_every_try_raises_the_last_error(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", status(500), status(502), drops)
        with pytest.raises(SandboxError) as failed:
            async with sandboxes.open(lab.attempt):
                pass
        assert (failed.value.error_type, failed.value.lost) == ("RemoteProtocolError", True)
        assert failed.value.stage is Stage.SANDBOX_START

    assert [fate for _, _, fate in tries(lab.play(scene))] == [
        "SandboxException",
        "SandboxException",
        "RemoteProtocolError",
    ]


@pytest.mark.parametrize("code", [400, 401, 403, 404])
def test_a_refusal_is_not_tried_again(lab: Lab, code: int) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", status(code))
        with pytest.raises(SandboxError) as failed:
            async with sandboxes.open(lab.attempt):
                pass
        assert failed.value.http_status == code

    assert len(tries(lab.play(scene))) == 1


def test_a_second_sandbox_of_a_trajectory_goes_on_counting_its_tries(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", late(0), status(503))
        async with sandboxes.open(lab.attempt) as first:
            await first.kill()  # with one slot, the second needs the first one's
            async with sandboxes.open(lab.attempt, first_try=first.try_no + 1) as second:
                assert second.try_no == 2

    assert tries(lab.play(scene, slots=1)) == [
        ("SandboxStarted", 0, "i1"),
        ("SandboxStopped", 0, "finished"),
        ("SandboxFailed", 1, "ServiceBusyException"),
        ("SandboxStarted", 2, "i2"),
        ("SandboxStopped", 2, "finished"),
    ]


# Starts whose answer comes late, or never


def test_a_sandbox_that_comes_up_after_its_start_was_given_up_is_killed(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", late(1.0))
        async with sandboxes.open(lab.attempt) as sandbox:
            assert sandbox.try_no == 1

    facts = lab.play(scene, start_timeout_s=0.3)
    assert ("SandboxFailed", 0, "NoAnswer") in tries(facts)
    assert ("SandboxStopped", 0, "cancelled") in tries(facts)


def test_a_sandbox_whose_answer_got_lost_is_found_by_its_label_and_killed(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", loses_its_answer)
        async with sandboxes.open(lab.attempt):
            while len(server.up) > 1:
                await asyncio.sleep(0.01)

    facts = lab.play(scene)
    assert tries(facts)[0] == ("SandboxFailed", 0, "RemoteProtocolError")
    assert ("SandboxStopped", 0, "cancelled") in tries(facts)


def test_an_answer_that_is_no_json_is_a_failed_start(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", status(201, "<html>"), status(201, {"unexpected": 1}))
        async with sandboxes.open(lab.attempt):
            pass

    assert [fate for kind, _, fate in tries(lab.play(scene)) if kind == "SandboxFailed"] == [
        "JSONDecodeError",
        "KeyError",
    ]


def test_closing_does_not_wait_for_ever_for_a_start_that_hangs(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("create", hangs)
        with pytest.raises(SandboxError, match="no answer within"):
            async with sandboxes.open(lab.attempt):
                pass
        began = time.monotonic()
        await sandboxes.close(timeout_s=0.2)
        assert time.monotonic() - began < 30

    lab.play(scene, start_timeout_s=0.2, start_tries=1)


# Kills


def test_a_kill_is_tried_again(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("kill", drops, drops)
        async with sandboxes.open(lab.attempt):
            pass
        assert server.ended == ["i1"]

    assert tries(lab.play(scene))[-1] == ("SandboxStopped", 0, "finished")


def test_what_could_not_be_killed_is_killed_at_the_close(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("kill", drops, drops, drops)
        async with sandboxes.open(lab.attempt):
            pass
        assert list(server.up) == ["i1"]
        assert sandboxes.pools()[0].used == 0

    facts = lab.play(scene)
    assert [fact.sandbox_id for fact in of(facts, "SandboxStopped")] == ["i1"]


def test_a_block_that_raises_ends_its_sandbox_as_finished(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        with pytest.raises(RuntimeError, match="a slip"):
            async with sandboxes.open(lab.attempt):
                raise RuntimeError("a slip")

    assert tries(lab.play(scene))[-1] == ("SandboxStopped", 0, "finished")


def test_closing_kills_what_is_in_use_and_opens_nothing_new(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        async with sandboxes.open(lab.attempt):
            await sandboxes.close()
            assert server.up == {}
            with pytest.raises(RuntimeError, match="closed"):
                async with sandboxes.open(lab.attempt):
                    pass

    assert tries(lab.play(scene))[-1] == ("SandboxStopped", 0, "cancelled")


# Slots and connections


def test_who_finds_no_slot_waits_and_is_counted(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        async def second() -> None:
            async with sandboxes.open(lab.attempt):
                assert len(server.up) == 1

        async with sandboxes.open(lab.attempt):
            waiting = asyncio.create_task(second())
            while sandboxes.pools()[0].waiting == 0:
                await asyncio.sleep(0.01)
            assert sandboxes.pools()[0] == PoolUse("sandbox_slots", 1, 1, 1)
            await asyncio.sleep(0.3)
        await waiting

    facts = lab.play(scene, slots=1)
    first, second = of(facts, "SandboxStarted")
    assert first.queue_s < 0.3 <= second.queue_s


def test_a_slot_is_not_free_before_the_sandbox_is_dead(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        most = 0

        async def attempt() -> None:
            nonlocal most
            async with sandboxes.open(lab.attempt):
                most = max(most, len(server.up))
                await asyncio.sleep(0.01)

        server.will("kill", *[late(0.05)] * 20)
        await asyncio.gather(*[attempt() for _ in range(12)])
        assert most <= 3

    lab.play(scene, slots=3)


def test_too_few_connections_have_an_error_of_their_own(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("run", stream(STARTED, hangs=True))
        async with sandboxes.open(lab.attempt) as sandbox:
            first = asyncio.create_task(sandbox.run("sleep 60", timeout_s=1.5))
            while "run" not in server.asked:
                await asyncio.sleep(0.01)
            with pytest.raises(SandboxError) as failed:
                await sandbox.run("true", timeout_s=5)
            assert (failed.value.error_type, failed.value.lost) == ("PoolTimeout", False)
            assert failed.value.in_command is False
            assert "none of 1 sandbox_connections was free" in failed.value.message
            assert sandboxes.pools()[1] == PoolUse("sandbox_connections", 1, 1, 0)
            assert (await first).timed_out  # its kill needs no connection of the limit

    lab.play(scene, http_connections=1, request_timeout_s=0.5)


def test_waiting_for_a_connection_is_no_time_of_the_command(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.will("run", late(3.0))
        async with sandboxes.open(lab.attempt) as sandbox:
            began = time.monotonic()
            first, second = await asyncio.gather(
                sandbox.run("a", timeout_s=5), sandbox.run("b", timeout_s=5)
            )
            assert time.monotonic() - began >= 3.0
            assert first.wall_s >= 3.0
            assert second.wall_s < 2.5

    lab.play(scene, http_connections=1, request_timeout_s=20)


# Cancellation


async def a_trajectory(sandboxes: Sandboxes, recorder: BoundRecorder) -> None:
    async with sandboxes.open(recorder) as sandbox:
        await sandbox.write("a", "b")
        await sandbox.run("true", timeout_s=5)
        await sandbox.read("a")


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_left_of_cancelled_trajectories(lab: Lab, seed: int) -> None:
    """A seeded schedule: 16 trajectories on 8 slots are cancelled at any moment, some twice, while
    answers of the backend are late or missing."""
    draw = random.Random(seed)

    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        for route in ("create", "info", "files", "run", "kill"):
            server.will(route, *[late(draw.uniform(0, 0.1)) for _ in range(8)])
        server.will("create", loses_its_answer, status(503), *[late(0.1)] * 4)

        async def cancelled(after_s: float, again_s: float | None) -> None:
            task = asyncio.create_task(a_trajectory(sandboxes, lab.attempt))
            await asyncio.sleep(after_s)
            task.cancel()
            if again_s is not None:
                await asyncio.sleep(again_s)
                task.cancel()
            await asyncio.wait({task}, timeout=30)
            assert task.done()
            assert task.cancelled() or task.exception() is None

        await asyncio.gather(
            *[
                cancelled(draw.uniform(0, 0.8), draw.choice([None, draw.uniform(0, 0.1)]))
                for _ in range(16)
            ]
        )

    facts = lab.play(scene, slots=8, start_timeout_s=5.0)
    started = {fact.sandbox_id for fact in of(facts, "SandboxStarted")}
    stopped = [fact.sandbox_id for fact in of(facts, "SandboxStopped")]
    assert len(stopped) == len(set(stopped))
    assert started <= set(stopped)


POINTS = ("create", "info", "files", "run", "kill")


@pytest.mark.parametrize("route", POINTS)
@pytest.mark.parametrize("answered", [False, True])
def test_a_trajectory_can_be_cancelled_at_every_request(
    lab: Lab, route: str, answered: bool
) -> None:
    """While the backend works on it, and in the moment of its answer."""

    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        task = asyncio.create_task(a_trajectory(sandboxes, lab.attempt))

        async def cancel(_: FaultyE2B, request: Any, writer: Any) -> bool:
            if answered:
                asyncio.get_running_loop().call_later(0.002, task.cancel)
            else:
                task.cancel()
                await asyncio.sleep(0.1)
            return True

        server.will(route, cancel)
        await asyncio.wait({task}, timeout=30)
        assert task.done()

    facts = lab.play(scene)
    assert [fact.sandbox_id for fact in of(facts, "SandboxStopped")] == ["i1"]
    if not answered and route != "kill":
        assert of(facts, "SandboxStopped")[0].reason == "cancelled"


def test_cancelling_whoever_waits_for_a_slot_leaves_the_slots_as_they_were(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        async with sandboxes.open(lab.attempt):
            waiting = [asyncio.create_task(a_trajectory(sandboxes, lab.attempt)) for _ in range(3)]
            while sandboxes.pools()[0].waiting < 3:
                await asyncio.sleep(0.01)
            waiting[0].cancel()
            waiting[1].cancel()
            await asyncio.wait(waiting[:2])
            assert sandboxes.pools()[0] == PoolUse("sandbox_slots", 1, 1, 1)
        await waiting[2]

    lab.play(scene, slots=1)


# The sweep


def an_owner_that_died() -> Owner:
    script = "from producers.sandboxes.owner import Owner; print(Owner.this_process().text)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    owner = Owner.of({OWNER: done.stdout.strip()})
    assert owner is not None
    return owner


def test_only_what_a_dead_process_of_this_machine_left_is_swept(lab: Lab) -> None:
    dead, living = an_owner_that_died(), Owner.this_process()
    labels = metadata({**lab.attempt.ids, "try_no": 1}, pool="p", start="s")
    used_again = Owner(living.machine, living.pid, living.started - 1)
    elsewhere = Owner("another/boot/pid", dead.pid, dead.started)

    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.up |= {
            "dead": labels | {OWNER: dead.text},
            "used_again": labels | {OWNER: used_again.text},
            "anonymous": {**OURS, OWNER: dead.text},
            "living": labels | {OWNER: living.text},
            "elsewhere": labels | {OWNER: elsewhere.text},
            "unreadable": labels | {OWNER: "what|is|this"},
            "foreign": {OWNER: dead.text},
        }
        assert sorted(await sandboxes.sweep(lab.recorder)) == ["anonymous", "dead", "used_again"]
        assert sorted(server.up) == ["elsewhere", "foreign", "living", "unreadable"]
        server.up.clear()

    swept = of(lab.play(scene), "SandboxStopped")
    assert sorted(fact.sandbox_id for fact in swept) == ["dead", "used_again"]
    for fact in swept:
        assert (fact.reason, fact.trajectory_id, fact.slot, fact.try_no) == (
            "swept",
            IDS["trajectory_id"],
            0,
            1,
        )
        assert fact.run_id == an_id("run")


def test_a_server_that_ignores_the_query_has_no_foreign_sandbox_swept(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        server.up["foreign"] = {OWNER: an_owner_that_died().text}
        server.will("list", status(200, [server.detail("foreign")]))
        assert await sandboxes.sweep() == []
        server.up.clear()

    lab.play(scene)


def test_labels_name_everything_that_a_sweeper_needs(lab: Lab) -> None:
    async def scene(sandboxes: Sandboxes, server: FaultyE2B) -> None:
        async with sandboxes.open(lab.attempt):
            (labels,) = server.up.values()
            assert {name: labels[f"rollbook_{name}"] for name in ("run_id", "slot", "try_no")} == {
                "run_id": an_id("run"),
                "slot": "0",
                "try_no": "0",
            }
            assert Owner.of(labels) == Owner.this_process()

    lab.play(scene)
