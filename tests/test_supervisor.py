"""Child processes that are kept running, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.supervisor import Child, ChildFailed, Supervisor
from tests.demos import is_alive
from tests.recorded import ROOT, eventually

pytestmark = pytest.mark.fault
FOR_EVER = "import time; print('up', flush=True); time.sleep(3600)"


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "children") as supervisor:
        yield supervisor


def a_child(name: str, code: str = FOR_EVER, **options: Any) -> Child:
    return Child(name, lambda: [sys.executable, "-I", "-S", "-c", code], **options)


def pid_of(folder: Path, name: str) -> int | None:
    state = json.loads((folder / "children" / "state.json").read_text())
    return state["pids"].get(name)


def looking(children: Supervisor, until: Callable[[], bool]) -> None:
    def look() -> bool:
        children.look()
        return until()

    eventually(look, 30.0)


def test_a_child_that_is_killed_comes_up_again(children: Supervisor, tmp_path: Path) -> None:
    children.add(a_child("one"))
    children.look()
    first = pid_of(tmp_path, "one")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    looking(children, lambda: pid_of(tmp_path, "one") not in (first, None))
    assert children.deaths == {"one": 1}


def test_one_that_has_done_its_work_is_not_started_again(children: Supervisor) -> None:
    children.add(a_child("work", "pass", ends=True))
    looking(children, lambda: children.ended("work"))
    assert children.deaths == {}


def test_one_that_fails_may_be_left_to_whoever_added_it(children: Supervisor) -> None:
    children.add(a_child("once", "raise SystemExit(3)", ends=True, again=False))
    looking(children, lambda: children.failed("once"))
    assert not children.ended("once")


def test_a_child_starts_once_what_it_needs_is_ready(children: Supervisor, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    children.add(a_child("server", ready=ready.exists))
    children.add(a_child("client", needs=("server",)))
    children.look()
    assert pid_of(tmp_path, "server") is not None
    assert pid_of(tmp_path, "client") is None
    ready.touch()
    looking(children, lambda: pid_of(tmp_path, "client") is not None)
    assert children.ready("server", "client")


def test_one_that_dies_again_and_again_is_an_error_with_its_last_words(
    children: Supervisor,
) -> None:
    children.add(a_child("broken", "raise SystemExit('no port is free')"))
    with pytest.raises(ChildFailed, match=r"broken ended 6 times.*status 1.*\n(.*\n)*no port is"):
        looking(children, lambda: False)


def test_one_that_does_not_get_ready_is_started_anew(children: Supervisor, tmp_path: Path) -> None:
    children.add(a_child("hangs", ready=lambda: False, ready_s=0.3))
    children.look()
    first = pid_of(tmp_path, "hangs")
    looking(children, lambda: pid_of(tmp_path, "hangs") not in (first, None))


def test_stages_end_in_order_and_who_does_not_end_is_killed(
    children: Supervisor, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    polite = (
        "import signal, sys, time\n"
        f"def end(*_): open({str(told)!r}, 'a').write(sys.argv[1] + ' '); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(3600)"
    )
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOR_EVER
    for name in ("reader", "writer"):
        line = [sys.executable, "-I", "-S", "-c", polite, name]
        children.add(Child(name, lambda line=line: line))
    children.add(a_child("deaf", deaf))
    children.look()
    pids = [pid_of(tmp_path, name) for name in ("reader", "writer", "deaf")]
    for name in ("reader", "writer", "deaf"):
        log = tmp_path / "children" / f"{name}.log"
        eventually(lambda log=log: "up" in log.read_text(), 30.0)
    began = time.monotonic()
    children.stop([["writer", "deaf"], ["reader"]], 1.0)
    assert time.monotonic() - began < 10
    assert told.read_text() == "writer reader "
    assert not any(is_alive(pid) for pid in pids if pid)


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from deploy.supervisor import Child, Supervisor\n"
        f"children = Supervisor(Path({str(tmp_path / 'children')!r}))\n"
        "line = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(3600)']\n"
        "children.add(Child('one', lambda: line))\n"
        "children.look()\n"
        "print('up', flush=True)\n"
        "time.sleep(3600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        pid = pid_of(tmp_path, "one")
        assert pid is not None
        assert is_alive(pid)
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not is_alive(pid), 10.0)


def test_two_children_of_one_name_are_refused(children: Supervisor) -> None:
    children.add(a_child("one"))
    with pytest.raises(ValueError, match="got 'one' twice"):
        children.add(a_child("one"))
