"""SGLang's server as a process of this machine: what is installed, how it is run, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.engine import install
from deploy.engine.command import CPU_SUPPORT, EngineSettings, command, environment
from deploy.engine.install import EngineServerError, Step, plan
from deploy.engine.server import GUARD, EngineServer
from tests.engine_lab import START_S, EngineLab

pytestmark = pytest.mark.timeout(600)  # a busy machine takes minutes to start a server
ROOT = Path(__file__).resolve().parents[1]


def pins(*files: Path) -> dict[str, str]:
    """Versions by normal name in requirements files."""
    lines = [line for file in files for line in file.read_text().splitlines() if "==" in line]
    return {install.normal(name): version for name, version in (line.split("==") for line in lines)}


ALL_THERE = pins(install.PLAIN, install.NO_DEPS) | {"torch": install.TORCH}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EngineServer]:
    """A server that has never been started."""
    server = EngineServer(tmp_path / "engine")
    yield server
    server.kill()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a checkpoint from outside."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_where_all_is_there_nothing_is_installed() -> None:
    assert plan(ALL_THERE, gpu=False) == []
    assert plan(ALL_THERE | {"torch": "2.13.0+cpu"}, gpu=False) == []
    assert plan({"sglang": install.SGLANG}, gpu=True) == []


def test_only_what_is_missing_is_installed_and_sglang_without_its_dependencies() -> None:
    there = {name: version for name, version in ALL_THERE.items() if name != "sglang"}
    assert plan(there | {"aiohttp": "3.0.0"}, gpu=False) == [
        Step("sglang==0.5.23", ("--no-deps", "sglang==0.5.23")),
        Step("1 plain Python packages", (f"aiohttp=={ALL_THERE['aiohttp']}",)),
    ]
    first, second, third = plan({}, gpu=False)
    assert first.arguments == ("torch==2.13.0",)
    assert second.arguments[0] == "--no-deps"
    assert third.what == f"{len(pins(install.PLAIN))} plain Python packages"


def test_for_a_gpu_sglang_comes_as_it_is() -> None:
    assert plan({}, gpu=True) == [
        Step("sglang 0.5.23 with its dependencies", ("sglang==0.5.23",)),
    ]


def test_a_torch_that_does_not_go_with_it_is_refused() -> None:
    with pytest.raises(EngineServerError, match=r"torch must be 2\.13\.0 .*, got 2\.9\.1\+cpu"):
        plan(ALL_THERE | {"torch": "2.9.1+cpu"}, gpu=False)


def test_a_failing_pip_shows_what_it_said() -> None:
    with pytest.raises(EngineServerError, match=r"could not install nonsense into(.|\n)*no such"):
        install._pip(Step("nonsense", ("--no-such-option",)))


def test_the_engines_pins_agree_with_the_projects() -> None:
    ours = pins(ROOT / "constraints.txt")
    theirs = pins(install.PLAIN, install.NO_DEPS)
    both = ours.keys() & theirs.keys()
    assert {name: theirs[name] for name in both} == {name: ours[name] for name in both}
    extra = (ROOT / "pyproject.toml").read_text()
    assert f'"torch=={install.TORCH}"' in extra


def test_a_server_without_a_gpu_sleeps_when_idle_and_takes_torchs_operators() -> None:
    settings = EngineSettings(context_length=256, extra=("--random-seed=1",))
    line = command(Path("/models/tiny"), 30000, settings, gpu=False)
    assert line[:3] == [sys.executable, "-m", "sglang.launch_server"]
    due = (
        "--host=127.0.0.1",
        "--port=30000",
        "--device=cpu",
        "--sleep-on-idle",
        "--attention-backend=torch_native",
        "--dtype=float32",
        "--context-length=256",
        "--max-total-tokens=16384",
        "--weight-version=0",
        "--skip-tokenizer-init",
    )
    assert [part for part in due if part not in line] == []
    assert line[-1] == "--random-seed=1"
    env = environment({"PYTHONPATH": "/mine", "HOME": "/h"}, gpu=False, has_kernels=False)
    assert env["PYTHONPATH"] == f"{CPU_SUPPORT}{os.pathsep}/mine"
    assert (env["OMP_NUM_THREADS"], env["SGLANG_USE_CPU_ENGINE"], env["HOME"]) == ("1", "1", "/h")


def test_a_server_with_a_gpu_is_run_as_it_is() -> None:
    line = command(Path("/models/big"), 30000, EngineSettings(policy_version=None), gpu=True)
    assert [part.split("=")[0] for part in line[3:]] == [
        "--model-path",
        "--host",
        "--port",
        "--skip-tokenizer-init",
        "--enable-metrics",
        "--load-snapshot-publish-interval",
        "--log-level-http",
    ]
    env = environment({"PYTHONPATH": "/mine"}, gpu=True, has_kernels=True)
    assert env == {"PYTHONPATH": "/mine", "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("name", ["context_length", "kv_tokens", "max_running"])
def test_settings_that_can_not_be_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        EngineSettings(**{name: 0})


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [({"hidden": 66}, "multiple of heads, got 66 and 4"), ({"kv_heads": 3}, "got 4 and 3")],
)
@pytest.mark.engine
def test_a_shape_that_is_no_qwen3_is_refused(
    shape: dict[str, int], complaint: str, tmp_path: Path
) -> None:
    from deploy.engine.tiny_model import write_tiny_qwen3

    with pytest.raises(ValueError, match=complaint):
        write_tiny_qwen3(tmp_path, **shape)


@pytest.mark.engine
def test_a_seed_gives_the_same_bytes_every_time(tmp_path: Path) -> None:
    from deploy.engine.tiny_model import write_tiny_qwen3

    one, same, other = [
        (write_tiny_qwen3(tmp_path / str(i), seed=seed) / "model.safetensors").read_bytes()
        for i, seed in enumerate((1, 1, 2))
    ]
    assert one == same != other


def test_a_model_that_is_none_is_refused_before_anything_starts(
    server: EngineServer, tmp_path: Path
) -> None:
    server.model_path = tmp_path / "nowhere"
    with pytest.raises(EngineServerError, match=r"folder with a config\.json, got .*nowhere"):
        server.start()
    status = server.status()
    assert (status.running, status.ready, status.url, status.pid) == (False, False, None, None)


@pytest.mark.engine
def test_a_server_that_ends_at_its_start_shows_the_end_of_its_log(
    server: EngineServer, model: Path
) -> None:
    server.model_path = model
    server.settings = EngineSettings(extra=("--no-such-option",))
    with pytest.raises(EngineServerError, match=r"ended at its start(.|\n)*no-such-option"):
        server.start(120)
    assert not server.status().running


def rollbook(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "api.cli", "engine", *arguments]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_the_command_line_says_what_is_wrong_and_what_runs(tmp_path: Path) -> None:
    data = f"--data={tmp_path / 'engine'}"
    started = rollbook("start", "nowhere", data)
    assert started.returncode == 2
    assert re.fullmatch(r"error: (sglang|model) must be .*\n", started.stderr)
    refused = rollbook("start", "nowhere", data, "--kv-tokens=0")
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: kv_tokens must be at least 1, got 0\n",
    )
    status = rollbook("status", data, "--format=json")
    assert (status.returncode, json.loads(status.stdout)[0]["state"]) == (1, "stopped")
    assert rollbook("stop", data).returncode == 0


def test_a_foreign_process_with_the_remembered_pid_is_left_alone(server: EngineServer) -> None:
    server.data_dir.mkdir()
    (server.data_dir / "lock").touch()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as foreign:
        try:
            state = {"pid": foreign.pid, "port": 25_000, "model_path": "/m"}
            (server.data_dir / "state.json").write_text(json.dumps(state))
            assert not server.status().running
            server.stop()
            server.kill()
            assert foreign.poll() is None
        finally:
            foreign.kill()


@pytest.mark.engine
def test_a_taken_port_is_named(server: EngineServer, model: Path, engine_lab: EngineLab) -> None:
    port = int(engine_lab.url.rpartition(":")[2])
    with pytest.raises(EngineServerError, match=f"port {port} is taken by another process"):
        EngineServer(server.data_dir, model, port=port).start()


@pytest.mark.engine
def test_starting_a_running_server_only_says_where_it_is(
    engine_lab: EngineLab, model: Path
) -> None:
    again = EngineServer(engine_lab.server.data_dir)
    pid = again.status().pid
    assert again.start() == engine_lab.url
    status = again.status()
    assert (status.running, status.ready, status.pid) == (True, True, pid)
    assert status.model_path == engine_lab.weights[0]
    with pytest.raises(EngineServerError, match="stop it first"):
        EngineServer(engine_lab.server.data_dir, model).start()


@pytest.mark.engine
def test_a_stopped_server_leaves_no_process_and_comes_back_where_it_was(
    engine_lab: EngineLab,
) -> None:
    group = engine_lab.server.status().pid
    assert group is not None
    assert len(members(group)) >= 3
    engine_lab.server.stop()
    assert not engine_lab.server.status().running
    assert members(group) == []
    assert engine_lab.server.start(START_S) == engine_lab.url


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_gone(group: int) -> None:
    deadline = time.monotonic() + 20
    while members(group):
        assert time.monotonic() < deadline, members(group)
        time.sleep(0.02)


TREE = "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)"
"""A server with a process below it."""


def guarded(mode: str, stdin: int, script: str = TREE, size: int = 3) -> subprocess.Popen[bytes]:
    """A guard over a server, once its group has `size` processes."""
    line = [sys.executable, str(GUARD), mode, sys.executable, "-c", script]
    guard = subprocess.Popen(line, stdin=stdin, start_new_session=True)
    deadline = time.monotonic() + 20
    while len(members(guard.pid)) < size:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return guard


def test_a_server_dies_with_the_process_that_it_is_attached_to() -> None:
    guard = guarded("attached", subprocess.PIPE)
    assert guard.stdin is not None
    guard.stdin.close()  # as it is closed by the kernel when that process is killed
    wait_gone(guard.pid)
    guard.wait()


def test_a_detached_server_lives_on_and_ends_when_asked() -> None:
    guard = guarded("detached", subprocess.DEVNULL)
    time.sleep(0.2)
    assert len(members(guard.pid)) == 3
    guard.send_signal(signal.SIGTERM)
    wait_gone(guard.pid)
    guard.wait()


def test_nothing_is_left_of_a_server_that_crashed() -> None:
    crash = "import subprocess; subprocess.Popen(['sleep', '300'])"
    guard = guarded("attached", subprocess.PIPE, crash, size=0)
    guard.wait(20)
    wait_gone(guard.pid)


def test_a_killed_guard_takes_the_server_with_it() -> None:
    guard = guarded("detached", subprocess.DEVNULL, "import time; time.sleep(300)", size=2)
    guard.kill()
    assert guard.wait(20) == -signal.SIGKILL
    wait_gone(guard.pid)


IMPORT_TORCHVISION = """
    import torch
    load = torch.ops.load_library
    def refuse(path):  # as where torchvision is linked to a CUDA that this torch was built without
        if "torchvision" in str(path):
            raise OSError("libcudart: no such file")
        load(path)
    torch.ops.load_library = refuse
    import torchvision, sgl_kernel
    try:
        sgl_kernel.rmsnorm(1)
    except NotImplementedError as error:
        print("imported;", error)
"""


@pytest.mark.engine
@pytest.mark.parametrize("refused", [True, False])
def test_torchvision_can_be_imported_whether_its_operators_load_or_not(refused: bool) -> None:
    script = textwrap.dedent(IMPORT_TORCHVISION)
    if not refused:
        script = re.sub(r"\n *raise OSError.*", "\n        load(path)", script)
    env = environment(os.environ, gpu=False, has_kernels=False)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("imported; sgl_kernel.rmsnorm was called"), done.stderr
