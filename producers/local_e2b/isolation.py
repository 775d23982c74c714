"""What a sandbox's first process is started with: bubblewrap's arguments, or none.

With bubblewrap a sandbox has its own mount, pid, network, ipc and uts namespaces. Its root is a
tmpfs of its own of the disk limit's size: nothing of the host is in it but /usr and the few files
below, read-only.

Invariant: what a policy runs is never root. A server that runs as root gives each slot a user id of
its own, with bubblewrap and without: not even a way out of the namespaces meets root's or another
sandbox's files, and a `kill -9 -1` without a pid namespace meets its own sandbox only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from producers.local_e2b.settings import HOME, LocalE2BError, Settings

FIRST_UID, UIDS, SERVERS = 1_000_000_000, 10_000, 100_000
"""A server that runs as root takes user ids from here, one a slot; which of the ranges of `UIDS` is
told by its folder, so that two servers don't share one."""
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
    first_uid: int | None
    """User and group id of slot 0, for a server that is root; None: all is the server's user's."""

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
    first_uid = None
    if os.geteuid() == 0:
        digest = hashlib.sha256(str(settings.folder).encode()).digest()
        first_uid = FIRST_UID + UIDS * (int.from_bytes(digest[:8], "big") % SERVERS)
    bwrap = shutil.which("bwrap")
    if settings.isolation == "none":
        reason = "isolation is off"
    elif bwrap is None:
        reason = "bubblewrap is not installed (Debian's package: bubblewrap)"
    else:
        host = Host(bwrap, python, home, first_uid)
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
    return Host(None, python if system_python else sys.executable, None, first_uid)


def uid_of(host: Host, slot: int) -> int | None:
    """User and group id of a slot's sandbox; None: the server's own."""
    return None if host.first_uid is None else host.first_uid + slot


def boxes_folder(folder: Path, host: Host) -> Path:
    """Where the sandboxes' folders lie: in the server's folder, but without bubblewrap where their
    users can reach it. Raises LocalE2BError."""
    boxes = folder / "boxes"
    if host.isolated or host.first_uid is None:
        return boxes
    if all(above.stat().st_mode & 0o001 for above in folder.parents) and folder.is_dir():
        folder.chmod(folder.stat().st_mode | 0o011)
        return boxes
    boxes = Path(tempfile.gettempdir(), f"rollbook-boxes-{host.first_uid}")
    boxes.mkdir(mode=0o711, exist_ok=True)
    if boxes.is_symlink() or boxes.stat().st_uid != os.geteuid():
        raise LocalE2BError(f"{boxes} belongs to another user: remove it")
    return boxes


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
