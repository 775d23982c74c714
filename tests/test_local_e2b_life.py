"""The local server's life: slots and their queue, its key, templates, its end and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox, AuthenticationException, RateLimitException, Sandbox

from producers.local_e2b import connect_wire
from producers.local_e2b.connect_wire import WireError
from producers.local_e2b.launch import LocalE2B
from producers.local_e2b.settings import HOME, Limits, LocalE2BError

pytestmark = pytest.mark.sandboxes

ISOLATIONS = pytest.mark.parametrize("isolation", ["bwrap", "none"])


def at(url: str, key: str = "e2b_any") -> dict[str, Any]:
    return {"api_url": url, "sandbox_url": url, "api_key": key}


def marked(sandbox_ids: set[str]) -> list[int]:
    """Processes of these sandboxes."""
    marks = {f"ROLLBOOK_SANDBOX={each}".encode() for each in sandbox_ids}
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if marks & set((process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return found


def wait_until(true: Any, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(true())


def test_without_consent_nothing_starts_that_is_no_boundary(tmp_path: Path) -> None:
    with pytest.raises(LocalE2BError, match=r"no security boundary: isolation is off.*--unsafe"):
        LocalE2B(tmp_path, isolation="none").start()
    server = LocalE2B(tmp_path, isolation="none", unsafe=True)
    url = server.start()
    status = httpx.get(f"{url}/admin/status", headers={"X-API-KEY": "x"}).json()
    server.stop()
    assert status["isolated"] is False
    assert "warning: no security boundary" in server.log_file.read_text()


def test_a_wrong_key_is_401_as_e2b_says_it(tmp_path: Path) -> None:
    server = LocalE2B(tmp_path, api_key="right")
    url = server.start()
    try:
        with pytest.raises(AuthenticationException, match="Invalid API key"):
            Sandbox.create(**at(url, "wrong"))
        Sandbox.create(**at(url, "right")).kill()
        assert httpx.get(f"{url}/admin/faults").status_code == 401
        assert "right" not in Path(f"/proc/{server.state()['pid']}/cmdline").read_text()
    finally:
        server.stop()


def test_a_start_waits_for_a_slot_and_then_is_429(tmp_path: Path) -> None:
    server = LocalE2B(tmp_path, slots=1, queue=1, queue_timeout_s=0.5)
    url = server.start()
    try:
        first = Sandbox.create(timeout=60, **at(url))
        with pytest.raises(RateLimitException, match=r"no slot of 1 within 0\.5 s"):
            Sandbox.create(retries=0, **at(url))
        timer = threading.Timer(0.2, first.kill)
        timer.start()
        second = Sandbox.create(timeout=60, retries=0, **at(url))
        timer.join()
        assert second.commands.run("echo in").stdout == "in\n"
        status = httpx.get(f"{url}/admin/status", headers={"X-API-KEY": "x"}).json()
    finally:
        server.stop()
    assert (status["used"], status["most_used"], status["counts"]) == (
        1, 1, {"created": 2, "killed": 1, "refused": 1},
    )  # fmt: skip


@ISOLATIONS
def test_a_template_is_what_a_new_sandbox_holds(tmp_path: Path, isolation: str) -> None:
    repo = tmp_path / "templates" / "repo"
    home = repo / "files" / HOME.lstrip("/")
    home.mkdir(parents=True)
    (home / "code.py").write_text("print(1)")
    (home / "code.py").chmod(0o755)
    (home / "link").symlink_to("code.py")
    (repo / "template.toml").write_text('setup = "echo $KIND > made"\n[env]\nKIND = "blue"\n')
    (tmp_path / "templates" / "bad").mkdir()
    (tmp_path / "templates" / "bad" / "template.toml").write_text('setup = "echo why; false"')
    server = LocalE2B(
        tmp_path / "s", templates=tmp_path / "templates", isolation=isolation, unsafe=True
    )
    url = server.start()
    try:
        one, two = (Sandbox.create("repo", timeout=60, **at(url)) for _ in range(2))
        one.files.write("code.py", "changed")
        found = two.commands.run("cat link made; stat -c %a code.py; echo $KIND")
        assert found.stdout == "print(1)blue\n755\nblue\n"
        with pytest.raises(Exception, match=r"500.*the template's setup .bad. failed.*why"):
            Sandbox.create("bad", **at(url))
        status = httpx.get(f"{url}/admin/status", headers={"X-API-KEY": "x"}).json()
        assert (status["used"], status["counts"]) == (2, {"created": 2, "failed": 1})
    finally:
        server.stop()


def test_a_bad_template_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "t" / "x").mkdir(parents=True)
    (tmp_path / "t" / "x" / "template.toml").write_text("seutp = 'typo'")
    with pytest.raises(LocalE2BError, match=r"unknown settings seutp .*template\.toml"):
        LocalE2B(tmp_path / "s", templates=tmp_path / "t").start()


@ISOLATIONS
def test_the_end_of_the_server_is_the_end_of_all(tmp_path: Path, isolation: str) -> None:
    for end in ("stop", "kill"):
        server = LocalE2B(tmp_path, isolation=isolation, unsafe=True)
        url = server.start()
        made = [Sandbox.create(timeout=60, **at(url)) for _ in range(3)]
        for each in made:
            each.commands.run("sleep 500", background=True)
            each.commands.run("setsid -f sleep 501; nohup sleep 502 > /dev/null 2>&1 &")
        ids = {each.sandbox_id for each in made}
        assert len(marked(ids)) >= 12
        began = time.monotonic()
        getattr(server, end)()
        if end == "stop":
            assert time.monotonic() - began < 3
            assert list((tmp_path / "boxes").glob("*")) == []
        assert wait_until(lambda ids=ids: not marked(ids)), end
    again = LocalE2B(tmp_path, isolation=isolation, unsafe=True)
    again.start()
    again.stop()
    assert "3 sandboxes of an earlier server were cleaned up" in again.log_file.read_text()
    assert not any(tmp_path.glob("boxes/*"))


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path;"
        "from producers.local_e2b.launch import LocalE2B;"
        "LocalE2B(Path(sys.argv[1])).start(); print('up', flush=True); time.sleep(100)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    server = LocalE2B(tmp_path)
    assert server.running()
    with pytest.raises(LocalE2BError, match="a server runs in"):
        server.start()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert wait_until(lambda: not server.running())


def test_64_sandboxes_of_20_commands_leave_nothing(tmp_path: Path) -> None:
    server = LocalE2B(tmp_path, slots=16, limits=Limits(disk_mb=16))
    url = server.start()
    ids: set[str] = set()

    async def episode(limit: asyncio.Semaphore) -> int:
        async with limit:
            sandbox = await AsyncSandbox.create(timeout=120, **at(url))
            ids.add(sandbox.sandbox_id)
            right = 0
            for n in range(20):
                found = await sandbox.commands.run(f"echo {n} >> log; tail -n 1 log")
                right += found.stdout == f"{n}\n"
            await sandbox.kill()
            return right

    async def run() -> list[int]:
        limit = asyncio.Semaphore(16)
        return await asyncio.gather(*(episode(limit) for _ in range(64)))

    try:
        assert asyncio.run(run()) == [20] * 64
        status = httpx.get(f"{url}/admin/status", headers={"X-API-KEY": "x"}).json()
        pid = server.state()["pid"]
        open_files = len(os.listdir(f"/proc/{pid}/fd"))
    finally:
        server.stop()
    assert (status["used"], status["counts"]) == (0, {"created": 64, "killed": 64})
    assert status["most_used"] <= 16
    assert open_files < 60
    assert marked(ids) == []
    assert list((tmp_path / "boxes").iterdir()) == []


def test_envelopes_are_read_as_they_are_written() -> None:
    body = connect_wire.envelope({"a": "ü"}) + connect_wire.envelope({}) + connect_wire.last()
    assert connect_wire.read_envelopes(body) == [{"a": "ü"}, {}]
    assert connect_wire.last("not_found", "x")[:5] == b"\x02\0\0\0\x2c"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\0\0", "5 bytes, got 2"),
        (b"\0\0\0\0\x05{}", "says 5 bytes, 2 came"),
        (b"\0\xff\xff\xff\xff{}", "says 4294967295 bytes"),
        (b"\x01\0\0\0\x02{}", "compressed"),
        (b"\0\0\0\0\x02[]", "a JSON object, got list"),
        (b"\0\0\0\0\x02{x", "not JSON"),
    ],
)
def test_what_is_no_envelope_is_told(body: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        connect_wire.read_envelopes(body)
