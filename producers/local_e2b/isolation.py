"""What a sandbox's first process is started with: bubblewrap's arguments, or none.

With bubblewrap a sandbox has its own mount, pid, network, ipc and uts namespaces. Its root is a
tmpfs of its own of the disk limit's size: nothing of the host is in it but /usr and the few files
below, read-only. A server that runs as root gives each slot a user id of its own, so that
not even a way out of the namespaces meets root's or another sandbox's files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from producers.local_e2b.settings import HOME, LocalE2BError, Settings

FIRST_UID = 231_072
"""A server that runs as root takes user ids from here, one a slot."""
SHM_BYTES = 64 << 20
HOST_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/localtime")
"""Read-only in every sandbox, where they exist: without them programs of /usr don't start."""
SEARCH = "/usr/local/bin:/usr/bin:/bin:/opt/bin"
BIN = "/opt/bin"


@dataclass(frozen=True, slots=True)
class Host:
    """What this machine offers; found once at the start."""

    bwrap: str | None
    """Path of bubblewrap; None: no isolation."""
    python: str
    """The Python that the first process runs on."""
    python_home: str | None
    """Folder of it that must be bound into a sandbox; None where it lies below /usr."""
    drops_uid: bool
    """The server is root: each slot has a user id of its own."""

    @property
    def isolated(self) -> bool:
        return self.bwrap is not None


def bwrap_arguments(
    host: Host, disk_mb: int, read_only: Sequence[str] = (), info_fd: int | None = None
) -> list[str]:
    """Everything before the command that becomes the sandbox's first process. Pure."""
    binds = [*HOST_FILES, *read_only, *([host.python_home] if host.python_home else [])]
    return [
        host.bwrap or "bwrap",
        "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--disable-userns",  # no new namespaces inside, in which tmpfs of any size could be mounted
        "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
        "--die-with-parent", "--as-pid-1", "--new-session",
        "--size", str(disk_mb << 20), "--tmpfs", "/",
        "--ro-bind", "/usr", "/usr",
        *(word for name in ("bin", "sbin", "lib", "lib64") for word in _system(name)),
        *(word for path in binds for word in ("--ro-bind-try", path, path)),
        "--proc", "/proc",
        "--dev", "/dev", "--remount-ro", "/dev",
        "--size", str(SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm",
        "--chdir", "/",
        *(["--info-fd", str(info_fd)] if info_fd is not None else []),
        "--",
    ]  # fmt: skip


def _system(name: str) -> tuple[str, ...]:
    """/bin and the like: links into /usr on a merged system, folders of their own elsewhere."""
    path = Path("/", name)
    if path.is_symlink():
        return ("--symlink", f"usr/{name}", f"/{name}")
    return ("--ro-bind-try", f"/{name}", f"/{name}")


def passwd_files() -> dict[str, str]:
    """Files of /etc that programs look into, by path."""
    return {
        "/etc/passwd": f"root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::{HOME}:/bin/bash\n",
        "/etc/group": "root:x:0:\nuser:x:1000:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def find_host(settings: Settings) -> Host:
    """Look at this machine. Raises LocalE2BError where the settings can't be met."""
    if sys.platform != "linux":
        raise LocalE2BError(f"local sandboxes need Linux, this is {sys.platform}")
    system_python = shutil.which("python3", path="/usr/bin")
    python, home = system_python or sys.executable, None
    if not system_python and not Path(sys.base_prefix).is_relative_to("/usr"):
        python = str(Path(sys.base_prefix, "bin", "python3"))
        home = sys.base_prefix
    bwrap = shutil.which("bwrap")
    if settings.isolation == "none":
        reason = "isolation is off"
    elif bwrap is None:
        reason = "bubblewrap is not installed (Debian's package: bubblewrap)"
    else:
        host = Host(bwrap, python, home, os.geteuid() == 0)
        reason = _try(host)
        if reason is None:
            return host
    if settings.isolation == "bwrap":
        raise LocalE2BError(f"sandboxes can't be isolated: {reason}")
    if not settings.unsafe:
        raise LocalE2BError(
            f"sandboxes would be no security boundary: {reason}. What runs in them could read and"
            " change whatever this user can. Give --unsafe to accept that."
        )
    return Host(None, python if system_python else sys.executable, None, False)


def uid_of(host: Host, slot: int) -> int | None:
    """User and group id of a slot's sandbox; None: the server's own."""
    return FIRST_UID + slot if host.drops_uid else None


def _try(host: Host) -> str | None:
    """Why an isolated Python doesn't start here; None: it does."""
    line = [*bwrap_arguments(host, 16), host.python, "-I", "-S", "-c", "pass"]
    uid = uid_of(host, 0)
    try:
        done = subprocess.run(
            line,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            cwd="/",
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit {done.returncode}"
