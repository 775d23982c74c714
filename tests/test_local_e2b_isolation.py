"""What a sandbox can't do: use more than its limits, see anything but itself, be left behind."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import CommandExitException, InvalidArgumentException, NotEnoughSpaceException, Sandbox

from producers.local_e2b.inside import files
from producers.local_e2b.isolation import Host, bwrap_arguments
from producers.local_e2b.launch import LocalE2B
from producers.local_e2b.settings import HOME, Limits

pytestmark = pytest.mark.sandboxes

LIMITS = Limits(memory_mb=128, cpu_s=1, file_mb=8, processes=24, disk_mb=12)
KEY = f"key-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalE2B]:
    os.environ["A_SECRET_OF_THE_HOST"] = KEY
    folder = tmp_path_factory.mktemp("sandboxes")
    each = LocalE2B(folder, isolation="bwrap", limits=LIMITS, api_key=KEY)
    each.start()
    yield each
    each.stop()
    del os.environ["A_SECRET_OF_THE_HOST"]


def at(server: LocalE2B) -> dict[str, Any]:
    url = server.state()["url"]
    return {"api_url": url, "sandbox_url": url, "api_key": KEY}


@pytest.fixture
def sandbox(server: LocalE2B) -> Iterator[Sandbox]:
    each = Sandbox.create(timeout=120, **at(server))
    yield each
    each.kill()


def failure(sandbox: Sandbox, command: str) -> CommandExitException:
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run(command)
    return failed.value


def test_a_process_gets_no_more_memory_than_its_limit(sandbox: Sandbox) -> None:
    assert "MemoryError" in failure(sandbox, "python3 -c 'bytearray(300 << 20)'").stderr


def test_processes_that_use_too_much_memory_together_are_killed(sandbox: Sandbox) -> None:
    one = "python3 -c 'x = bytearray(60 << 20); import time; time.sleep(6)'"
    found = sandbox.commands.run(f"{one} & {one} & {one} & {one} & wait; echo over")
    assert found.stderr.count("Killed") >= 2


def test_a_process_that_computes_too_long_is_killed(sandbox: Sandbox) -> None:
    killed = failure(sandbox, "exec python3 -c 'while True: pass'")
    assert killed.error == "signal: cpu time limit exceeded"


def test_a_file_and_all_files_have_a_limit(sandbox: Sandbox) -> None:
    failure(sandbox, "head -c 9000000 /dev/zero > big")
    assert sandbox.files.get_info("big").size == 8 << 20
    assert "No space left" in failure(sandbox, "head -c 8000000 /dev/zero > more").stderr
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("again", b"x" * 7_000_000)
    sandbox.commands.run("rm big more again")
    with pytest.raises(NotEnoughSpaceException, match="File too large"):
        sandbox.files.write("big", b"x" * 9_000_000)
    assert sandbox.commands.run("echo lives").stdout == "lives\n"


def test_a_sandbox_has_no_more_processes_than_its_limit(sandbox: Sandbox) -> None:
    script = (
        "import subprocess\nmade = []\ntry:\n"
        " while len(made) < 100: made.append(subprocess.Popen(['sleep', '9']))\n"
        "except BlockingIOError: pass\nprint(len(made))\nfor each in made: each.kill()"
    )
    sandbox.files.write("fork.py", script)
    assert 10 <= int(sandbox.commands.run("exec python3 fork.py").stdout) < 24
    assert sandbox.commands.run("echo lives").stdout == "lives\n"


def test_a_sandbox_sees_no_other_sandbox_and_nothing_of_the_host(
    server: LocalE2B, sandbox: Sandbox
) -> None:
    other = Sandbox.create(timeout=120, **at(server))
    other.files.write("secret", KEY)
    other.commands.run("sleep 100", background=True)
    look = (
        f"grep -rsl {KEY} / --include=* --exclude-dir=usr --exclude-dir=dev;"
        " cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n';"
        " ls / /home /root /tmp /etc; id -un"
    )
    found = sandbox.commands.run(look)
    assert KEY not in found.stdout.replace(f"grep -rsl {KEY}", "")
    assert "sleep" not in found.stdout
    assert sandbox.commands.run(f"ls /etc/shadow {server.folder} || true").stdout == ""
    other.kill()


def test_a_sandbox_has_no_network_and_no_privileges(server: LocalE2B, sandbox: Sandbox) -> None:
    port = server.state()["url"].rpartition(":")[2]
    assert "refused" in failure(sandbox, f"echo > /dev/tcp/127.0.0.1/{port}").stderr
    assert "lo:" in sandbox.commands.run("tail -n +3 /proc/net/dev").stdout
    assert "eth0" not in sandbox.commands.run("cat /proc/net/dev").stdout
    for command in (
        "mount -t tmpfs none /tmp",
        "unshare -U true",
        "touch /usr/x",
        "touch /dev/x",
        "echo x > /proc/sys/kernel/core_pattern",
        "cat /proc/1/environ",
        "ls /proc/1/fd/",
    ):
        failure(sandbox, command)


def test_a_command_cant_end_or_trace_the_first_process(sandbox: Sandbox) -> None:
    own_namespace = "[ $(id -u) = 1000 ] && [ $(ls -d /proc/[0-9]* | wc -l) -lt 10 ]"
    sandbox.commands.run(f"{own_namespace} && kill -9 1 && kill -15 1")
    failure(sandbox, f"{own_namespace} && (setsid sleep 60 & kill -9 -1)")
    assert sandbox.commands.run("echo lives; pgrep -c sleep || true").stdout == "lives\n0\n"


@pytest.mark.parametrize(
    "path", ["r/etc/shadow", "up/etc/shadow", "../../../../etc/shadow", "/etc/shadow"]
)
def test_no_path_of_the_files_api_leads_out(sandbox: Sandbox, path: str) -> None:
    sandbox.commands.run("ln -s / r; ln -s ../../../../../.. up")
    assert not sandbox.files.exists(path)
    sandbox.files.write(path, "mine")
    assert sandbox.files.read("/etc/shadow") == "mine"
    assert "mine" not in Path("/etc/shadow").read_text()


def test_what_is_no_file_is_refused_at_once(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo pipe; ln -s loop loop; ln -s /dev/zero zero")
    for path in ("pipe", "loop", "zero", "/dev/zero"):
        with pytest.raises(InvalidArgumentException):
            sandbox.files.read(path)
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write("zero", "x")


# -- pure parts


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("a/b", "/here/a/b"),
        ("/a//./b/", "/a/b"),
        ("../../..", "/"),
        ("../../../a", "/a"),
        ("absolute/x", "/x"),
        ("upward/x", "/x"),
        ("/here/absolute", "/"),
        ("inner/../b", "/b"),
    ],
)
def test_a_path_is_walked_as_after_a_chroot(tmp_path: Path, path: str, reached: str) -> None:
    for folder in ("here/a", "a", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "here/absolute").symlink_to("/")
    (tmp_path / "here/upward").symlink_to("../../../../..")
    (tmp_path / "here/inner").symlink_to("/deep")
    place = files.Place(str(tmp_path), "/here", path)
    assert place.path == reached
    place.close()


def test_a_walk_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "loop").symlink_to("loop")
    for path in ("loop", "missing/x", "."):
        try:
            files.Place(str(tmp_path), "/", path).close()
        except OSError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_bubblewrap_shares_nothing_but_usr() -> None:
    line = bwrap_arguments(Host("bwrap", "/usr/bin/python3", None, None), 64, ["/opt/env"], 9)
    for flag in ("user", "pid", "net", "ipc", "uts"):
        assert f"--unshare-{flag}" in line
    assert {"--disable-userns", "--die-with-parent", "--as-pid-1", "--new-session"} <= set(line)
    assert line[line.index("--tmpfs") - 2 : line.index("--tmpfs") + 2] == [
        "--size", str(64 << 20), "--tmpfs", "/",
    ]  # fmt: skip
    shared = {line[at + 1] for at, word in enumerate(line) if word.startswith("--ro-bind")}
    assert {path for path in shared if not path.startswith("/etc/")} >= {"/usr", "/opt/env"}
    assert not [word for word in line if word.startswith("--bind")]
    assert HOME not in line
