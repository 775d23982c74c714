"""A sandbox's first process on the host's side: how it is started, what it is told, how it ends.

Invariant: it runs with an environment of our making and no descriptor but its socket and its
program, so nothing of the server leaks in.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from producers.local_e2b.bundle import bundle_fd, start_line
from producers.local_e2b.isolation import (
    BIN,
    SEARCH,
    Host,
    bwrap_arguments,
    passwd_files,
    uid_of,
)
from producers.local_e2b.leftovers import MARK, kill_left
from producers.local_e2b.settings import HOME, USER, Limits
from producers.local_e2b.templates import Template

END_TIMEOUT_S = 3.0
LOG = "first-process.log"


class FirstProcess:
    """Started when it is made; the other end of its socket is `socket`."""

    def __init__(
        self, box_id: str, slot: int, template: Template, folder: Path, host: Host, limits: Limits
    ) -> None:
        self._box_id = box_id
        self._folder = folder
        self._isolated = host.isolated
        self._pid: int | None = None
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._info, info = os.pipe()
        bundle = bundle_fd(host.python)
        line = start_line(host.python, bundle, theirs.fileno())
        if host.isolated:
            line = [*bwrap_arguments(host, limits.disk_mb, template.read_only, info), *line]
        self._uid = uid = uid_of(host, slot)
        if uid is not None and not host.isolated:
            os.chown(folder, uid, uid)
            folder.chmod(0o700)
        with theirs, open(info, "wb"), (folder / LOG).open("wb") as log:
            self._popen = subprocess.Popen(
                line,
                env={"PATH": SEARCH, MARK: box_id},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(theirs.fileno(), bundle, info),
                cwd="/" if host.isolated else folder,
                start_new_session=True,
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
            )

    def began(self) -> None:
        """It is ready, so bubblewrap has told the pid of it."""
        if self._isolated:
            self._pid = int(json.loads(os.read(self._info, 4096))["child-pid"])

    def said(self) -> str:
        """The end of its standard error."""
        return (self._folder / LOG).read_text(errors="replace")[-2000:].strip()

    def kill(self) -> None:
        """Without bubblewrap only the closed socket ends it well: it takes all others along."""
        if self._isolated and self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                # of bubblewrap's two processes the inner one: the outer then waits for the end of
                # the pid namespace, and we for the outer
                os.kill(self._pid or self._popen.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Returns when nothing of the sandbox runs."""
        try:
            self._popen.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if not self._isolated:
            kill_left(self._box_id, self._uid)
        os.close(self._info)


def begin_message(
    box_id: str, template: Template, root: str, isolated: bool, limits: Limits
) -> dict[str, Any]:
    """What it is told first, see inside/agent.py. `root` is "" where it has its own. Pure, but for
    the server's PATH, which a sandbox without isolation shares."""
    return {
        "op": "begin",
        "root": root or "/",
        "home": HOME,
        "limits": {name: getattr(limits, name) for name in Limits.defaults()},
        "env": {
            "PATH": SEARCH if isolated else os.environ.get("PATH", SEARCH),
            "HOME": f"{root}{HOME}",
            "USER": USER,
            "LOGNAME": USER,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TMPDIR": f"{root}/tmp",
            "E2B_SANDBOX": "true",
            "E2B_SANDBOX_ID": box_id,
            MARK: box_id,
            **template.env,
        },
        "files": passwd_files() if isolated else {},
        "folders": [HOME, "/root", "/tmp", "/var/tmp", "/run", BIN],
        "bin": BIN,
    }
