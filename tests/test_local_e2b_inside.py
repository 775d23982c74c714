"""A sandbox's first process by itself, spoken to as the server does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from producers.local_e2b.bundle import bundle_fd, start_line
from producers.local_e2b.settings import Limits

PACKET = 1 << 20
SLOW_CHILDREN = """\
import os, time
fork = os.fork
def slow():
    pid = fork()
    if pid == 0:
        time.sleep(0.5)
    return pid
os.fork = slow
"""


class First:
    """The first process, and our end of its socket."""

    def __init__(self, folder: Path, before: str) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        bundle = bundle_fd(sys.executable)
        line = start_line(sys.executable, bundle, theirs.fileno())
        line[-1] = before + line[-1]
        with theirs:
            self.process = subprocess.Popen(line, pass_fds=(theirs.fileno(), bundle))
        places = {"root": str(folder), "home": "/home", "folders": ["/home"], "bin": "/home"}
        begin = {"op": "begin", **places, "files": {}, "env": {}, "limits": asdict(Limits())}
        assert self.ask(begin) == {"ready": True}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.socket.send(json.dumps(request).encode())
        return self.hear()

    def hear(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.socket.recv(PACKET))
        return found

    def spawn(self, *argv: str) -> int:
        with Path(os.devnull).open("r+b") as null:
            request = {"op": "spawn", "id": 1, "argv": argv, "env": {}}
            socket.send_fds(self.socket, [json.dumps(request).encode()], [null.fileno()] * 3)
        return int(self.hear()["pid"])


@pytest.fixture
def first(tmp_path: Path) -> Iterator[First]:
    each = First(tmp_path, SLOW_CHILDREN)
    yield each
    each.socket.close()
    assert each.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_that_comes_at_once_finds_the_process(first: First, number: int) -> None:
    pid = first.spawn("sleep", "100")
    assert first.ask({"op": "signal", "pid": pid, "signal": number}) == {
        "exit": pid,
        "status": -number,
    }
