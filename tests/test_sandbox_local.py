"""Sandboxes on the local E2B server: real commands, real time limits, real losses."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.facts.lists import Stage
from producers.local_e2b.launch import LocalE2B
from producers.sandbox import Sandbox, SandboxError
from producers.sandbox_pool import Sandboxes, SandboxSettings
from producers.sandboxes.backend import Backend
from producers.sandboxes.owner import OURS
from tests.recorded import IDS, ROOT, Make, eventually, facts_in, of

pytestmark = pytest.mark.sandboxes


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that does as it is told."""
    server = LocalE2B(tmp_path_factory.mktemp("e2b"), slots=8, unsafe=True)
    yield server.start()
    server.stop()


def settings(url: str, **changes: Any) -> SandboxSettings:
    usual: dict[str, Any] = {
        "api_url": url,
        "sandbox_url": url,
        "api_key": "k",
        "backoff_s": 0.05,
        "slots": 8,
    }
    return SandboxSettings(**(usual | changes))


def up(url: str) -> list[str]:
    """Ids of our sandboxes that live."""
    found = asyncio.run(Backend(settings(url)).list(OURS))
    return [info.sandbox_id for info in found]


def play(make: Make, log: str, url: str, scene: Callable[[Sandbox], Awaitable[Any]]) -> list[Any]:
    """The facts of a scene in one sandbox."""

    async def main() -> None:
        async with (
            Sandboxes(settings(url)) as sandboxes,
            sandboxes.open(recorder.bind(**IDS)) as sandbox,
        ):
            await scene(sandbox)

    recorder = make(log)
    asyncio.run(main())
    assert recorder.close()
    assert up(url) == []
    return facts_in(log)


def test_commands_and_files(make: Make, sqlite_url: str, local: str) -> None:
    async def scene(sandbox: Sandbox) -> None:
        await sandbox.write("repo/a.txt", "one\n")
        await sandbox.write("repo/b.bin", b"\x00\xff")
        assert await sandbox.read("repo/a.txt") == b"one\n"
        assert await sandbox.read("repo/b.bin") == b"\x00\xff"
        with pytest.raises(SandboxError) as missing:
            await sandbox.read("repo/none")
        assert (missing.value.error_type, missing.value.lost) == ("FileNotFoundException", False)

        done = await sandbox.run("cat a.txt; echo err >&2; exit 3", timeout_s=30, cwd="repo")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "one\n", "err\n")
        assert done.sandbox_s is not None
        assert 0 < done.sandbox_s <= done.wall_s
        assert (await sandbox.run('echo "$A"', timeout_s=30, envs={"A": "ä"})).stdout == "ä\n"
        gone = await sandbox.run("rm -r ~/repo; true", timeout_s=30, cwd="repo")
        assert gone.exit_code == 0
        lost = await sandbox.run("true", timeout_s=30, cwd="repo")
        assert lost.exit_code == 1
        assert "No such file" in lost.stderr
        slept = await sandbox.run("sleep 0.3", timeout_s=30)
        assert slept.sandbox_s is not None
        assert slept.sandbox_s >= 0.3
        removed = await sandbox.run("rm -rf ~; true", timeout_s=30)
        assert removed.exit_code == 0
        homeless = await sandbox.run("true", timeout_s=30)  # a result, and no way out of the reward
        assert (homeless.exit_code, homeless.timed_out) == (1, False)
        assert (await sandbox.run("true", timeout_s=30, cwd="/tmp")).exit_code == 1

    facts = play(make, sqlite_url, local, scene)
    assert of(facts, "SandboxFailed") == []
    (started,), (stopped,) = of(facts, "SandboxStarted"), of(facts, "SandboxStopped")
    assert started.sandbox_id == stopped.sandbox_id
    assert started.vcpus is not None


def test_an_output_of_any_size_is_kept_in_bounds(make: Make, sqlite_url: str, local: str) -> None:
    async def scene(sandbox: Sandbox) -> None:
        big = await sandbox.run("echo first; yes | head -c 20000000; echo last", timeout_s=60)
        assert (big.exit_code, big.stdout_size) == (0, 20_000_011)
        assert len(big.stdout) < (1 << 20) + 200
        assert big.stdout.startswith("first\n")
        assert big.stdout.endswith("last\n")
        assert "characters left out" in big.stdout
        assert big.sandbox_s is not None

    play(make, sqlite_url, local, scene)


@pytest.mark.parametrize(
    "command",
    [
        "sleep {n}",
        "trap '' TERM INT HUP; sleep {n} & setsid sleep {n} & env -i sleep {n} & wait",
        "exec >&- 2>&-; sleep {n}",
        "while :; do sleep 0.01; done; sleep {n}",
        "yes; sleep {n}",
    ],
)
def test_a_time_limit_leaves_no_process_and_the_sandbox_usable(
    make: Make, sqlite_url: str, local: str, command: str
) -> None:
    async def scene(sandbox: Sandbox) -> None:
        began = time.monotonic()
        cut = await sandbox.run(command.format(n=4321), timeout_s=0.7)
        assert time.monotonic() - began < 30
        assert (cut.exit_code, cut.timed_out) == (None, True)
        assert cut.wall_s >= 0.7
        left = await sandbox.run(
            "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
            f" | grep -c '^ROLLBOOK_CALL={sandbox.id}[.]1$'; pgrep -fc '^sleep 4321'",
            timeout_s=30,
        )
        assert left.stdout == "0\n0\n"

    assert of(play(make, sqlite_url, local, scene), "SandboxFailed") == []


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts servers with faults."""
    started: list[LocalE2B] = []

    def start(*rules: str, **options: Any) -> str:
        folder = tmp_path / f"e2b{len(started)}"
        started.append(LocalE2B(folder, slots=8, faults=rules, unsafe=True, seed=1, **options))
        return started[-1].start()

    yield start
    for server in started:
        server.stop()


def test_a_sandbox_that_is_lost_in_a_command(
    make: Make, sqlite_url: str, faulty: Callable[..., str]
) -> None:
    async def scene(sandbox: Sandbox) -> None:
        await sandbox.run("true", timeout_s=30)
        with pytest.raises(SandboxError) as lost:
            await sandbox.run("sleep 60", timeout_s=30)
        assert (lost.value.lost, lost.value.in_command) == (True, True)
        await sandbox.failed(lost.value, Stage.TOOL)

    facts = play(make, sqlite_url, faulty("lost:after=1,seconds=0.3"), scene)
    (failed,) = of(facts, "SandboxFailed")
    assert (failed.error_type, failed.backend_state) == ("SandboxNotRunningException", "not_found")
    assert failed.in_command is True
    assert failed.backend_end_at is not None
    assert of(facts, "SandboxStopped") == []


def test_a_sandbox_that_was_lost_while_idle(make: Make, sqlite_url: str, local: str) -> None:
    async def scene(sandbox: Sandbox) -> None:
        await sandbox.run("true", timeout_s=30)
        await sandbox.sdk.kill()
        with pytest.raises(SandboxError) as lost:
            await sandbox.run("true", timeout_s=30)
        assert (lost.value.error_type, lost.value.lost) == ("SandboxNotRunningException", True)
        assert lost.value.in_command is False

    play(make, sqlite_url, local, scene)


def test_a_stream_that_breaks_leaves_no_process_and_the_sandbox_usable(
    make: Make, sqlite_url: str, faulty: Callable[..., str]
) -> None:
    async def scene(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError) as broken:
            await sandbox.run("sleep 4322", timeout_s=30)
        assert (broken.value.lost, broken.value.in_command) == (False, True)
        left = await sandbox.run("pgrep -fc '^sleep 4322'", timeout_s=30)
        assert left.stdout == "0\n"

    play(make, sqlite_url, faulty("dropped_stream:after=0,times=1,seconds=0.2"), scene)


def test_a_wrong_key_is_refused(faulty: Callable[..., str]) -> None:
    url = faulty(api_key="right")

    async def main() -> None:
        await Sandboxes(settings(url, api_key="wrong-key")).check()

    with pytest.raises(
        ValueError, match=r"api_key must be one that .*, got one of 9 chara"
    ) as said:
        asyncio.run(main())
    assert "wrong-key" not in str(said.value)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_of_trajectories_cancelled_under_faults(
    make: Make, sqlite_url: str, faulty: Callable[..., str], seed: int
) -> None:
    url = faulty(
        "start_refused:p=0.1,status=503",
        "start_slow:p=0.2,seconds=1.5",
        "dropped_stream:p=0.1,seconds=0.05",
        "lost:p=0.1,seconds=0.1",
        "disk_full:p=0.1",
    )
    draw = random.Random(seed)
    recorder = make(sqlite_url)

    async def trajectory(sandboxes: Sandboxes) -> None:
        async with sandboxes.open(recorder.bind(**IDS)) as sandbox:
            await sandbox.write("a", "b")
            for _ in range(3):
                await sandbox.run("sleep 0.1", timeout_s=30)

    async def cancelled(sandboxes: Sandboxes, after_s: float) -> None:
        task = asyncio.create_task(trajectory(sandboxes))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.done()
        error = None if task.cancelled() else task.exception()
        assert error is None or isinstance(error, SandboxError)

    async def main() -> None:
        async with Sandboxes(settings(url, start_timeout_s=1.0)) as sandboxes:
            await asyncio.gather(*[cancelled(sandboxes, draw.uniform(0, 3.0)) for _ in range(16)])

    asyncio.run(main())
    assert up(url) == []
    assert recorder.close()
    stopped = [fact.sandbox_id for fact in of(facts_in(sqlite_url), "SandboxStopped")]
    assert len(stopped) == len(set(stopped))


OWNER_SCRIPT = """
import asyncio, sys
from ledger.recorder import Recorder
from producers.sandbox_pool import Sandboxes
from tests.recorded import IDS, RUN
from tests.test_sandbox_local import settings
url, log, spool = sys.argv[1:]
async def main():
    with Recorder(log, producer="owner", run_id=RUN, spool_dir=spool) as recorder:
        async with Sandboxes(settings(url)).open(recorder.bind(**IDS)) as sandbox:
            print(sandbox.id, flush=True)
            await sandbox.run("sleep 4323", timeout_s=600)
asyncio.run(main())
"""


def test_what_a_killed_process_left_is_swept_and_only_then(
    make: Make, sqlite_url: str, local: str, tmp_path: Path
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_SCRIPT, local, sqlite_url, str(tmp_path / "spool2")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    sandbox_id = owner.stdout.readline().strip()
    recorder = make(sqlite_url)

    def sweep() -> list[str]:
        return asyncio.run(Sandboxes(settings(local)).sweep(recorder))

    try:
        assert sweep() == []  # its owner lives
        assert up(local) == [sandbox_id]
        os.kill(owner.pid, signal.SIGKILL)
        # Not yet waited for: a zombie is dead enough.
        eventually(lambda: sweep() == [sandbox_id])
        assert up(local) == []
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert recorder.close()
    (swept,) = of(facts_in(sqlite_url), "SandboxStopped")
    assert (swept.sandbox_id, swept.reason, swept.try_no) == (sandbox_id, "swept", 0)
    assert swept.lifetime_s > 0
