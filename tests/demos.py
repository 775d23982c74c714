"""Demos in processes of their own, short ones, that a test may interrupt and whose parts it kills.

demo = DemoProcess(tmp_path / "demo", "--log", "kafka")
demo.wait_for(lambda: demo.steps() >= 2)
demo.kill("assembler")
found = demo.result()                    what --json printed
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.recorded import ROOT

STEPS = 8
SHORT = ("--steps", str(STEPS), "--held-out", "30", "--attempts", "2")
"""So many steps are enough to learn something that 60 held-out attempts show: about 400 attempts.
(Behind 6 it was missed once.)"""
LIMIT_S = 900.0
"""For anything: a busy machine is no failure."""


class DemoProcess:
    """One life of a demo."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._errors = folder.with_suffix(".err")
        line = [sys.executable, "-m", "api.cli", "demo", "--dir", str(folder), "--json", *options]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                line, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def wait_for(self, until: Callable[[], bool]) -> None:
        """Until it says so; the demo has to go on meanwhile."""
        deadline = time.monotonic() + LIMIT_S
        while not until():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def result(self) -> dict[str, Any]:
        """What it printed at its end."""
        out, _ = self._process.communicate(timeout=LIMIT_S)
        assert self._process.returncode == 0, self.said()
        return json.loads(out)

    def interrupt(self) -> float:
        """Ctrl-C; how many seconds it took to end."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=LIMIT_S)
        assert self._process.returncode == 130, self.said()
        return time.monotonic() - began

    def kill_supervisor(self) -> None:
        """kill -9 of the demo itself."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Whatever it does, it is over."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=30)
            self._process.kill()

    def kill(self, part: str) -> int:
        """kill -9 of a part that runs, or will in a moment; its pid."""
        self.wait_for(lambda: part in self.pids())
        pid = self.pids()[part]
        os.kill(pid, signal.SIGKILL)
        return pid

    def pids(self) -> dict[str, int]:
        """Of all parts that run."""
        return self._read("parts/state.json").get("pids", {})

    def steps(self) -> int:
        """Training steps whose checkpoint is there."""
        names = [each.name for each in (self.folder / "checkpoints").glob("step-*")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def said(self) -> str:
        """The end of what it told."""
        return self._errors.read_text()[-4000:]

    def _read(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads((self.folder / name).read_text())
        return {}


class Start(Protocol):
    """Starts a demo in a folder; the fixture `start`."""

    def __call__(self, folder: Path, *options: str) -> DemoProcess: ...


def is_alive(pid: int) -> bool:
    """Whether there is such a process that isn't a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
