"""The real SGLang server as a child process.

    server = EngineServer(Path("engine"), Path("tiny"))
    url = server.start()        # "http://127.0.0.1:21874", the same after every stop and start
    server.stop()               # it finishes what it has; kill() is kill -9

Everything about one server lies in its `data_dir`: `state.json` (port, pid, model), `engine.log`,
and `lock`. It listens on the loopback interface only, without a key.

Invariant: whether a server runs is told by the lock, which its guard holds for as long as it lives,
and a pid is signalled only while the lock is held: one that another process came to have is left
alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from deploy import state_file
from deploy.engine.command import EngineSettings, command, environment
from deploy.engine.install import EngineServerError, has_gpu
from deploy.ports import HOST, free_port, is_free

GUARD = Path(__file__).with_name("guard.py")
START_TIMEOUT_S = 180.0
"""Without a GPU, with a model that loads at once: 20 s on two idle cores, minutes on busy ones."""
GPU_START_TIMEOUT_S = 1800.0
"""Loading a large model and capturing CUDA graphs takes minutes."""
POLL_S = 0.1
PATIENCE_S = 0.2
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What is known of a server from its data directory."""

    running: bool
    """Its processes exist; it may still be starting."""
    ready: bool
    """It takes requests; a paused one doesn't."""
    url: str | None
    """Kept for the life of the data directory while its port is free; None before its first
    start."""
    pid: int | None
    """Of its guard, whose process group it is; None when it isn't running."""
    model_path: Path | None
    """What it was started on; its weights may have been updated since."""
    log_file: Path


@dataclass(slots=True)
class EngineServer:
    """One server over one data directory; several objects may speak of the same one."""

    data_dir: Path
    model_path: Path | None = None
    """Folder of a Hugging Face checkpoint; None: only to stop a server, or to ask for it."""
    settings: EngineSettings = field(default_factory=EngineSettings)
    port: int | None = None
    """None takes a free one at the first start and keeps it."""
    detached: bool = False
    """It outlives this process; otherwise it dies with it, however that ends."""
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _tie: int | None = field(default=None, init=False, repr=False)
    """Write end of the guard's standard input, which ends when this process does. A plain number:
    a file object would be closed, and the server killed, when nobody holds this object."""

    def __post_init__(self) -> None:
        self.data_dir = Path(self.data_dir).absolute()
        self.model_path = None if self.model_path is None else Path(self.model_path).absolute()

    @property
    def log_file(self) -> Path:
        return self.data_dir / "engine.log"

    def start(self, timeout_s: float | None = None) -> str:
        """Start it unless it runs, wait until it takes requests; returns its URL.

        `timeout_s` None: 3 minutes, with a GPU 30. Raises EngineServerError, with the end of the
        log where the server said something."""
        gpu = has_gpu()
        timeout_s = timeout_s or (GPU_START_TIMEOUT_S if gpu else START_TIMEOUT_S)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        offset = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self._lock(PATIENCE_S) as lock:
            if lock is not None:
                self._spawn(lock, gpu)
            else:
                self._check_same_model()
        self._wait_ready(offset, timeout_s)
        return self._url() or ""

    def stop(self, timeout_s: float = 30.0) -> None:
        """Ask it to end and wait: idle it takes about 6 s, most of which SGLang sleeps. After
        `timeout_s` it is killed. Nothing happens if it isn't running."""
        self._end(signal.SIGTERM, timeout_s)
        self.kill()

    def kill(self) -> None:
        """kill -9 of all its processes, as a crash would."""
        self._end(signal.SIGKILL, 10.0)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(10.0)
            self._child = None
        self._untie()

    def status(self) -> EngineStatus:
        """Whether it runs, and where."""
        running = self._runs()
        state = state_file.read(self.data_dir)
        model = state.get("model_path")
        return EngineStatus(
            running=running,
            ready=running and self._answers(),
            url=self._url(),
            pid=state.get("pid") if running else None,
            model_path=Path(model) if model else None,
            log_file=self.log_file,
        )

    def _spawn(self, lock: IO[bytes], gpu: bool) -> None:
        model = self._checked_model()
        port = self._pick_port()
        state = {"port": port}
        state_file.write(self.data_dir, state)  # from now on the old pid may not be signalled
        kernels = importlib.util.find_spec("sgl_kernel") is not None
        line = command(model, port, self.settings, gpu)
        mode = "detached" if self.detached else "attached"
        self._untie()  # from one that ended by itself
        stdin, self._tie = (None, None) if self.detached else os.pipe()
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, str(GUARD), mode, *line],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=log,
                stderr=log,
                env=environment(os.environ, gpu, kernels),
                cwd=self.data_dir,
                pass_fds=(lock.fileno(),),
                start_new_session=True,  # a Ctrl-C for the terminal's group is not for the server
            )
        if stdin is not None:
            os.close(stdin)
        started = {"pid": self._child.pid, "model_path": str(model)}
        state_file.write(self.data_dir, state | started)

    def _untie(self) -> None:
        if self._tie is not None:
            os.close(self._tie)
            self._tie = None

    def _checked_model(self) -> Path:
        if importlib.util.find_spec("sglang") is None:
            raise EngineServerError(
                f"sglang must be installed, not found in {sys.prefix}:"
                " run `rollbook engine install`"
            )
        if self.model_path is None or not (self.model_path / "config.json").is_file():
            raise EngineServerError(
                f"model must be a folder with a config.json, got {self.model_path}"
            )
        return self.model_path

    def _check_same_model(self) -> None:
        running = state_file.read(self.data_dir).get("model_path")
        if self.model_path is not None and running not in (None, str(self.model_path)):
            raise EngineServerError(
                f"the server in {self.data_dir} runs on {running}, not on {self.model_path}:"
                " stop it first"
            )

    def _pick_port(self) -> int:
        if self.port is not None:
            if not is_free(self.port):
                raise EngineServerError(
                    f"port {self.port} is taken by another process: end that one, or give another"
                    f" port ({self.data_dir})"
                )
            return self.port
        kept = state_file.read(self.data_dir).get("port")
        return kept if kept is not None and is_free(kept) else free_port()

    def _wait_ready(self, offset: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if not self._runs():
                raise EngineServerError(f"the server ended at its start; {self._log_tail(offset)}")
            if time.monotonic() > deadline:
                self.kill()
                raise EngineServerError(
                    f"the server took no request within {timeout_s:g} s and was killed;"
                    f" {self._log_tail(offset)}"
                )
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        url = self._url()
        with contextlib.suppress(OSError):  # HTTP errors are OSErrors, too
            if url is not None:
                with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
                    return answer.status == 200
        return False

    def _url(self) -> str | None:
        port = state_file.read(self.data_dir).get("port")
        return f"http://{HOST}:{port}" if port else None

    @contextlib.contextmanager
    def _lock(self, patience_s: float = 0.0) -> Generator[IO[bytes] | None]:
        """The lock, or None while a server has it. A server that is started inherits it.
        `patience_s`: who only asks whether a server runs has it for a moment, too."""
        deadline = time.monotonic() + patience_s
        with (self.data_dir / "lock").open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() < deadline:
                        time.sleep(0.01)
                        continue
                    yield None
                else:
                    yield lock
                return

    def _runs(self) -> bool:
        if self._child is not None:
            self._child.poll()  # a zombie holds no lock, but should not stay one
        if not (self.data_dir / "lock").exists():
            return False
        with self._lock() as lock:
            return lock is None

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        """SIGTERM is for the guard, who passes it on; SIGKILL for the whole group."""
        deadline = time.monotonic() + timeout_s
        signalled = False
        while self._runs() and time.monotonic() < deadline:
            pid = state_file.read(self.data_dir).get("pid")
            if pid is not None and not signalled:
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if number is signal.SIGKILL else os.kill)(pid, number)
                signalled = True
            time.sleep(0.02)

    def _log_tail(self, offset: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(offset)
            lines = log.read().decode(errors="replace").splitlines()
        told = "\n".join([line for line in lines if line.strip()][-LOG_LINES:])
        return f"the end of {self.log_file}:\n{told}"
