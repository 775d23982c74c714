"""The local server through the unmodified e2b SDK: what a client sees of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    TimeoutException,
)

from producers.local_e2b.launch import LocalE2B
from producers.local_e2b.settings import HOME

pytestmark = pytest.mark.sandboxes


@pytest.fixture(scope="module", params=["bwrap", "none"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalE2B]:
    folder = tmp_path_factory.mktemp("sandboxes")
    unsafe = request.param == "none"
    each = LocalE2B(folder, isolation=request.param, unsafe=unsafe, slots=8)
    each.start()
    yield each
    each.stop()


def at(server: LocalE2B) -> dict[str, Any]:
    url = server.state()["url"]
    return {"api_url": url, "sandbox_url": url, "api_key": "e2b_any"}


@pytest.fixture
def sandbox(server: LocalE2B) -> Iterator[Sandbox]:
    each = Sandbox.create(timeout=60, envs={"GIVEN": "at create"}, **at(server))
    yield each
    each.kill()


def test_a_command_tells_its_output_and_its_exit_code(sandbox: Sandbox) -> None:
    found = sandbox.commands.run("echo out; echo err >&2; echo $A, $GIVEN", envs={"A": "1"})
    assert (found.stdout, found.stderr, found.exit_code) == ("out\n1, at create\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo partial; exit 3")
    assert (failed.value.stdout, failed.value.exit_code) == ("partial\n", 3)


def test_a_command_runs_where_and_as_whom_it_is_told(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("repo")
    assert sandbox.commands.run("pwd", cwd="repo").stdout.endswith(f"{HOME}/repo\n")
    assert sandbox.commands.run("pwd", cwd=f"{HOME}/repo").stdout.endswith(f"{HOME}/repo\n")
    assert sandbox.commands.run("echo $USER", user="root").stdout == "root\n"
    assert sandbox.commands.run("id -u", user="root").stdout != "0\n"
    with pytest.raises(AuthenticationException, match="invalid username: 'bob'"):
        sandbox.commands.run("true", user="bob")
    with pytest.raises(InvalidArgumentException, match="cwd '/nope' does not exist"):
        sandbox.commands.run("pwd", cwd="/nope")


def test_nothing_of_the_servers_environment_is_in_a_command(
    server: LocalE2B, sandbox: Sandbox
) -> None:
    names = {line.partition("=")[0] for line in sandbox.commands.run("env").stdout.splitlines()}
    assert names == {
        "E2B_SANDBOX", "E2B_SANDBOX_ID", "GIVEN", "HOME", "LANG", "LOGNAME", "PATH", "PWD",
        "ROLLBOOK_SANDBOX", "SHELL", "SHLVL", "TMPDIR", "USER", "_",
    }  # fmt: skip


def test_a_command_whose_time_is_up_is_killed(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("touch begun; sleep 30; touch ended", timeout=0.5)
    deadline = time.monotonic() + 5
    while sandbox.commands.list() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sandbox.commands.list() == []
    assert (sandbox.files.exists("begun"), sandbox.files.exists("ended")) == (True, False)


def test_a_background_command_takes_input_and_a_signal(sandbox: Sandbox) -> None:
    cat = sandbox.commands.run("cat", background=True, stdin=True)
    assert [each.pid for each in sandbox.commands.list()] == [cat.pid]
    sandbox.commands.send_stdin(cat.pid, "one\n")
    sandbox.commands.send_stdin(cat.pid, "two\n")
    sandbox.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "one\ntwo\n"
    sleep = sandbox.commands.run("sleep 100", background=True)
    assert sandbox.commands.kill(sleep.pid)
    with pytest.raises(CommandExitException) as killed:
        sleep.wait()
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    assert not sandbox.commands.kill(sleep.pid)


def test_what_runs_in_the_background_is_there_for_the_next_command(sandbox: Sandbox) -> None:
    began = time.monotonic()
    first = sandbox.commands.run("(sleep 60; echo late) & echo $! > pid; echo now")
    assert first.stdout == "now\n"
    assert time.monotonic() - began < 30
    assert sandbox.commands.run("kill -0 $(cat pid) && echo alive").stdout == "alive\n"


def test_another_client_connects_to_a_running_command(sandbox: Sandbox) -> None:
    command = "while [ ! -e go ]; do sleep 0.02; done; echo came; exit 4"
    handle = sandbox.commands.run(command, background=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.files.write("go", "")
    with pytest.raises(CommandExitException) as ended:
        again.wait()
    assert (ended.value.stdout, ended.value.exit_code) == ("came\n", 4)


def test_output_of_any_size_comes_whole_and_in_order(sandbox: Sandbox) -> None:
    found = sandbox.commands.run("seq 400000; seq 300000 >&2")
    assert found.stdout == "".join(f"{n}\n" for n in range(1, 400_001))
    assert found.stderr == "".join(f"{n}\n" for n in range(1, 300_001))


def test_files_go_in_and_out(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 20_000  # 5 MB
    written = sandbox.files.write("deep/er/data", data)
    assert (written.name, written.path) == ("data", f"{HOME}/deep/er/data")
    assert bytes(sandbox.files.read("deep/er/data", format="bytes")) == data
    assert sandbox.commands.run("wc -c < deep/er/data").stdout == f"{len(data)}\n"
    sandbox.files.write_files([{"path": "a", "data": "1"}, {"path": "b", "data": b"22"}])
    assert (sandbox.files.read("a"), sandbox.files.read("b")) == ("1", "22")
    sandbox.files.write("a", "")
    assert sandbox.files.read("a") == ""
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("missing")
    with pytest.raises(InvalidArgumentException, match="not a regular file"):
        sandbox.files.read("deep")


def test_folders_are_made_listed_renamed_and_removed(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("d/e")
    assert not sandbox.files.make_dir("d/e")
    sandbox.files.write("d/f", "abc")
    sandbox.commands.run("ln -s f d/link")
    listed = [(each.name, each.type and each.type.value, each.size) for each in
              sandbox.files.list("d")]  # fmt: skip
    assert [(name, kind) for name, kind, _ in listed] == [
        ("e", "dir"),
        ("f", "file"),
        ("link", "symlink"),
    ]
    assert [size for name, _, size in listed if name == "f"] == [3]
    assert [each.path for each in sandbox.files.list(".", depth=2)][:2] == [
        f"{HOME}/d",
        f"{HOME}/d/e",
    ]
    assert sandbox.files.rename("d/f", "new/g").path == f"{HOME}/new/g"
    assert sandbox.files.exists("new/g")
    assert not sandbox.files.exists("d/f")
    sandbox.files.remove("d")
    assert not sandbox.files.exists("d")
    with pytest.raises(NotFoundException):
        sandbox.files.remove("d")


def test_a_sandbox_is_told_listed_and_found_by_its_metadata(server: LocalE2B) -> None:
    made = [
        Sandbox.create(timeout=60, metadata={"run": "a b&c", "n": str(n)}, **at(server))
        for n in range(2)
    ]
    other = Sandbox.create(timeout=60, **at(server))
    pages = Sandbox.list(query=SandboxQuery(metadata={"run": "a b&c"}), limit=1, **at(server))
    found = [each.sandbox_id for each in pages.next_items()]
    assert pages.has_next
    found += [each.sandbox_id for each in pages.next_items()]
    assert (found, pages.has_next) == ([each.sandbox_id for each in made], False)
    told = made[0].get_info()
    assert (told.metadata, told.template_id) == ({"run": "a b&c", "n": "0"}, "base")
    assert 55 < (told.end_at - told.started_at).total_seconds() <= 61
    made[0].set_timeout(300)
    assert 295 < (made[0].get_info().end_at - told.started_at).total_seconds() < 330
    again = Sandbox.connect(made[1].sandbox_id, **at(server))
    made[1].files.write("x", "shared")
    assert again.commands.run("cat x").stdout == "shared"
    for each in (*made, other):
        assert each.kill()
    assert not other.kill()


def test_metrics_tell_the_use_of_cpu_and_memory(sandbox: Sandbox) -> None:
    script = "x = bytearray(50 << 20); print(1, flush=True)\nwhile True: pass"
    handle = sandbox.commands.run(f"exec python3 -c '{script}'", background=True)
    for _ in handle:
        break
    deadline = time.monotonic() + 20
    last = sandbox.get_metrics()[-1]
    while last.cpu_used_pct < 5 and time.monotonic() < deadline:
        time.sleep(0.3)
        last = sandbox.get_metrics()[-1]
    assert last.cpu_used_pct >= 5
    assert 50 << 20 < last.mem_used < 200 << 20
    assert 0 < last.disk_used <= last.disk_total


def test_a_dead_sandbox_is_told_as_e2b_tells_it(server: LocalE2B) -> None:
    sandbox = Sandbox.create(timeout=60, **at(server))
    assert sandbox.is_running()
    sandbox.kill()
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotRunningException, match="was not found"):
        sandbox.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("x")
    with pytest.raises(SandboxNotFoundException):
        sandbox.set_timeout(5)
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id, **at(server))


def test_a_sandbox_ends_when_its_time_is_up_also_in_a_command(server: LocalE2B) -> None:
    sandbox = Sandbox.create(timeout=1, **at(server))
    began = time.monotonic()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("sleep 60")
    assert time.monotonic() - began < 30


def test_an_unknown_template_is_404_and_a_bad_timeout_400(server: LocalE2B) -> None:
    with pytest.raises(SandboxException, match="404: template 'nope' not found"):
        Sandbox.create(template="nope", **at(server))
    with pytest.raises(SandboxException, match="400: timeout must be within"):
        Sandbox.create(timeout=-1, **at(server))


def test_the_async_client_runs_many_commands_at_a_time(server: LocalE2B) -> None:
    async def run() -> list[str]:
        sandbox = await AsyncSandbox.create(timeout=60, **at(server))
        found = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(20)))
        assert await sandbox.kill()
        return [each.stdout for each in found]

    assert asyncio.run(run()) == [f"{n}\n" for n in range(20)]


def test_a_request_for_another_sandboxs_envd_needs_its_token(server: LocalE2B) -> None:
    import httpx

    sandbox = Sandbox.create(timeout=60, **at(server))
    url = server.state()["url"]
    answer = httpx.get(
        f"{url}/files", params={"path": "x"}, headers={"E2b-Sandbox-Id": sandbox.sandbox_id}
    )
    assert answer.status_code == 401
    sandbox.kill()
