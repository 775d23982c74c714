"""Start and stop the local server as a child process.

    server = LocalE2B(Path("sandboxes"), slots=16, faults=["lost:p=0.05"], seed=7)
    url = server.start()        # for api_url and sandbox_url of the e2b SDK
    server.stop()               # every sandbox is gone when it returns; kill() is kill -9

It runs in a session of its own and dies with the process that started it, unless `detached`. That
one runs in a folder is known by the lock it holds, not by a pid that may be another's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producers.local_e2b.settings import Limits, LocalE2BError

KEY_VARIABLE = "ROLLBOOK_SANDBOXES_KEY"


@dataclass(slots=True)
class LocalE2B:
    """One server over one folder; several objects may speak of the same one."""

    folder: Path
    slots: int = 16
    faults: Sequence[str] = ()
    """Rules, see faults.py, or paths of .toml files."""
    seed: int = 0
    unsafe: bool = False
    """Consent to sandboxes that are no security boundary, where bubblewrap doesn't work."""
    isolation: str = "auto"
    api_key: str | None = field(default=None, repr=False)
    """None takes any key."""
    templates: Path | None = None
    start_latency: str = "fixed:0"
    queue: int = 256
    queue_timeout_s: float = 30.0
    limits: Limits = field(default_factory=Limits)
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    detached: bool = False
    """It outlives this process."""
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).absolute()

    def start(self, timeout_s: float = 30.0) -> str:
        """Start it, wait until it listens; returns its URL. Raises LocalE2BError."""
        if self.running():
            raise LocalE2BError(f"a server runs in {self.folder} already; stop it first")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._state_file.unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        if self.api_key is not None:
            env[KEY_VARIABLE] = self.api_key
        with self.log_file.open("wb") as log:
            self._child = subprocess.Popen(
                self._line(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,  # a Ctrl-C for the terminal's group is not for the server
            )
        deadline = time.monotonic() + timeout_s
        while not (state := self.state()):
            if self._child.poll() is not None:
                raise LocalE2BError(self._said() or "the server ended at its start")
            if time.monotonic() > deadline:
                self.kill()
                raise LocalE2BError(f"the server did not listen within {timeout_s:g} s")
            time.sleep(0.01)
        return state["url"]

    def _line(self) -> list[str]:
        line = [sys.executable, "-m", "producers.local_e2b", str(self.folder)]
        line += ["--host", self.host, "--port", str(self.port), "--slots", str(self.slots)]
        line += ["--queue", str(self.queue), "--queue-timeout-s", str(self.queue_timeout_s)]
        line += ["--seed", str(self.seed), "--start-latency", self.start_latency]
        line += ["--isolation", self.isolation, *(["--unsafe"] if self.unsafe else [])]
        line += [] if self.detached else ["--parent", str(os.getpid())]
        line += ["--templates", str(self.templates)] if self.templates is not None else []
        for rule in self.faults:
            line += ["--fault", rule]
        for name in Limits.defaults():
            line += [f"--{name.replace('_', '-')}", str(getattr(self.limits, name))]
        return line

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it and every sandbox; after `timeout_s` with kill -9. Nothing if it isn't running."""
        self._end(signal.SIGTERM, timeout_s)
        self._end(signal.SIGKILL, 10.0)

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._end(signal.SIGKILL, 10.0)

    def running(self) -> bool:
        """Whether a server holds the folder."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "lock").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def state(self) -> dict[str, Any]:
        """`url`, `pid`, `started_s` of the running server; empty while none listens."""
        with contextlib.suppress(FileNotFoundError):
            state = json.loads(self._state_file.read_text())
            return state if self.running() else {}
        return {}

    @property
    def fault_file(self) -> Path:
        """Every injected fault, one JSON object a line."""
        return self.folder / "faults.jsonl"

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.json"

    def _said(self) -> str:
        return self.log_file.read_text(errors="replace").strip()[-2000:].removeprefix("error: ")

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        child = self._child
        if child is not None:
            if child.poll() is None:
                child.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout_s)
            return
        pid = self.state().get("pid")
        deadline = time.monotonic() + timeout_s
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            while self.running() and time.monotonic() < deadline:
                time.sleep(0.02)
