"""The real Apache Kafka broker (KRaft, one combined node) as a child process, for development and
tests.

    broker = Broker(Path("/var/tmp/rollbook-kafka"))
    bootstrap = broker.start()      # "127.0.0.1:21874", the same after every stop and start
    broker.stop()                   # data stays; kill() is kill -9

Everything about one broker lies in its `data_dir`: `state.json` (port, cluster id, pid),
`server.properties`, `broker.log`, and the log segments under `data/`. It listens on the loopback
interface only, without authentication. Records survive stop and kill -9; like any Kafka it leaves
writing to disk to the kernel, so with a single node a power cut can lose the last seconds.

A pid is trusted only while its command line names this broker's `server.properties`: the pid of
another process that came to have the number is left alone.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy import state_file
from deploy.kafka import jars
from deploy.kafka.jars import BrokerError
from deploy.ports import HOST, free_port, is_free

PORT_TIMEOUT_S = 3.0
STATIC_PROPERTIES = Path(__file__).with_name("server.properties")


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What is known of a broker from its data directory."""

    running: bool
    """Its process exists; it may still be starting."""
    pid: int | None
    """None when it isn't running."""
    bootstrap: str | None
    """`host:port` for clients, kept for the life of the data directory; None before its first
    start."""
    cluster_id: str | None
    data_dir: Path
    log_file: Path


@dataclass(slots=True)
class Broker:
    """One broker over one data directory; several objects may speak of the same one."""

    data_dir: Path
    port: int | None = None
    """A fixed port for clients; None takes a free one at the first start and keeps it."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further server properties; they win over ours."""
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.data_dir = Path(self.data_dir).absolute()

    def start(self, timeout_s: float = 60.0) -> str:
        """Start it unless it runs, wait until it answers; returns "127.0.0.1:port".

        `timeout_s` does not count what the first start on a machine does once: fetching the jars
        (20 s) and dumping a class archive (10 s). Raises BrokerError, with the log's
        tail where the broker said something."""
        java = jars.find_java()
        libs = jars.fetch_jars()
        if not jars.has_archive(java, libs):
            _warm_up(java, libs)
        with jars.file_lock(self.data_dir / "lock"):
            pid = self._pid()
            if pid is None:
                state = self._prepare(java, libs)
                offset = self.log_file.stat().st_size if self.log_file.exists() else 0
                self._spawn(java, libs, state)
            else:
                state, offset = state_file.read(self.data_dir), 0
            self._wait_ready(state["port"], offset, timeout_s)
        return f"{HOST}:{state['port']}"

    def prepared(self) -> list[str]:
        """Its command line, with everything that it needs in place, for whoever runs it as a child
        of their own: of this object they then use `status` alone. Raises BrokerError."""
        java = jars.find_java()
        libs = jars.fetch_jars()
        with jars.file_lock(self.data_dir / "lock"):
            self._prepare(java, libs)
        return jars.command(java, libs, "kafka.Kafka", str(self._properties))

    def stop(self, timeout_s: float = 30.0) -> None:
        """Shut it down cleanly; after `timeout_s` kill it. Nothing happens if it isn't running."""
        self._end(signal.SIGTERM, timeout_s)
        self._end(signal.SIGKILL, 10.0)

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._end(signal.SIGKILL, 10.0)

    def status(self) -> BrokerStatus:
        """Whether it runs, and where."""
        state = state_file.read(self.data_dir)
        pid = self._pid()
        return BrokerStatus(
            running=pid is not None,
            pid=pid,
            bootstrap=f"{HOST}:{state['port']}" if state else None,
            cluster_id=state.get("cluster_id"),
            data_dir=self.data_dir,
            log_file=self.log_file,
        )

    @property
    def log_file(self) -> Path:
        return self.data_dir / "broker.log"

    @property
    def _properties(self) -> Path:
        return self.data_dir / "server.properties"

    def _pid(self) -> int | None:
        """The broker's pid while it runs."""
        pid = state_file.read(self.data_dir).get("pid")
        if self._child is not None and self._child.pid == pid:  # just born, it has no command line
            return pid if self._child.poll() is None else None
        return pid if pid and str(self._properties) in command_line(pid) else None

    def _prepare(self, java: str, libs: Path) -> dict[str, Any]:
        """Ports, properties, and for a new directory the format; returns the state."""
        state = state_file.read(self.data_dir)
        port = self.port or state.get("port") or free_port()
        deadline = time.monotonic() + (PORT_TIMEOUT_S if state else 0)
        while not is_free(port):  # a killed broker's sockets close a moment after its end
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise BrokerError(
                f"port {port} of the broker in {self.data_dir} is taken by another process:"
                f" end that one, or give another port (state: {self.data_dir / state_file.NAME})"
            )
        if not state:
            state["cluster_id"] = new_cluster_id()
        state["port"] = port
        self._write_properties(port, free_port(other_than=port))
        if not (self.data_dir / "data" / "meta.properties").exists():
            self._format(java, libs, state["cluster_id"])
        state_file.write(self.data_dir, state)
        return state

    def _write_properties(self, port: int, controller_port: int) -> None:
        here = [
            f"controller.quorum.voters=1@{HOST}:{controller_port}",
            f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            f"advertised.listeners=PLAINTEXT://{HOST}:{port}",
            f"log.dirs={self.data_dir / 'data'}",
            *(f"{name}={value}" for name, value in self.settings.items()),
        ]
        text = STATIC_PROPERTIES.read_text() + "\n# This data directory\n" + "\n".join(here) + "\n"
        self._properties.write_text(text)

    def _format(self, java: str, libs: Path, cluster_id: str) -> None:
        args = ["format", "--cluster-id", cluster_id, "--config", str(self._properties)]
        line = jars.command(java, libs, "kafka.tools.StorageTool", *args)
        run = subprocess.run(line, capture_output=True, text=True, timeout=120)
        if run.returncode != 0:
            raise BrokerError(
                f"kafka.tools.StorageTool could not format {self.data_dir / 'data'}:\n"
                + tail((run.stdout + run.stderr).splitlines())
            )

    def _spawn(self, java: str, libs: Path, state: dict[str, Any]) -> None:
        line = jars.command(java, libs, "kafka.Kafka", str(self._properties))
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                start_new_session=True,  # a Ctrl-C for the terminal's group is not for the broker
            )
        state_file.write(self.data_dir, {**state, "pid": self._child.pid})

    def _wait_ready(self, port: int, log_offset: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not answers(port):
            if self._pid() is None:
                raise BrokerError(f"the broker ended at its start; {self._log_tail(log_offset)}")
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerError(
                    f"the broker did not answer on {HOST}:{port} within {timeout_s:g} s;"
                    f" {self._log_tail(log_offset)}"
                )
            time.sleep(0.05)

    def _log_tail(self, offset: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(offset)
            lines = log.read().decode(errors="replace").splitlines()
        return f"the end of {self.log_file}:\n{tail(lines)}"

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        pid = self._pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + timeout_s
        while self._pid() is not None and time.monotonic() < deadline:
            time.sleep(0.02)


def _warm_up(java: str, libs: Path) -> None:
    """Run a throw-away broker once for the class archive."""
    with tempfile.TemporaryDirectory(prefix="rollbook-kafka-") as temporary:
        broker = Broker(Path(temporary))
        broker._prepare(java, libs)
        jars.build_archive(java, libs, broker._properties)


def tail(lines: list[str]) -> str:
    """The last lines of what a JVM said, without the stack frames."""
    return "\n".join([line for line in lines if line.strip() and line[:4] != "\tat "][-12:])


def command_line(pid: int) -> str:
    """The command line of a process; "" when there is none, or only its zombie."""
    if Path("/proc/self/cmdline").exists():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return ""
    line = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(line, capture_output=True, text=True).stdout


def new_cluster_id() -> str:
    """16 random bytes, as Kafka writes its ids (never with a leading dash)."""
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def answers(port: int) -> bool:
    """Whether a broker on `port` answers a Metadata request with at least one live broker.

    Spoken by hand (version 1, no topics), so that running a broker needs no Kafka client; an open
    port alone only says that the JVM has come half way."""
    body = struct.pack(">hhih i", 3, 1, 7, -1, 0)
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(12, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 12 and struct.unpack(">iii", answer)[2] >= 1
