"""The files API, inside the sandbox: `write`, `read`, `list`, `stat`, `remove`, `make_dir`, `move`.

Each operation runs in a forked child of the agent, with the limits of a command, and speaks over
its pipes: what is written comes in on stdin, what is read or found goes out on stdout, an error
goes out on stderr as `{"code": ..., "message": ...}` with exit status 1.

Invariant: no path leads out of `root`. A path is walked one component at a time with directory
file descriptors, no link is ever followed by the kernel, and a link's target starts again at
`root` where it is absolute, as after a chroot; `..` stops at `root`. So a link that a command swaps
in while we walk changes nothing.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:  # every sandbox would wait for typing
    from typing import Any

LINKS_MAX = 40
ENTRIES_MAX = 50_000
CHUNK = 1 << 16
NO_FOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

CODES = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "already_exists",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
}
"""Our name of an errno; any other is an invalid argument."""


class Place:
    """A name in an open directory, reached without leaving the root."""

    def __init__(self, root: str, home: str, path: str, follow: bool = True) -> None:
        """Walk to `path`; a relative one starts at `home`. Raises OSError."""
        self.parts: list[str] = []
        self.fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        self.name = "."
        full = path if path.startswith("/") else f"{home}/{path}"
        try:
            self._walk([part for part in reversed(full.split("/")) if part], path, follow)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())

    def _walk(self, todo: list[str], path: str, follow: bool) -> None:
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                if len(self.fds) > 1:
                    os.close(self.fds.pop())
                    self.parts.pop()
                continue
            target = self._link(part) if todo or follow else None
            if target is not None:
                links += 1
                if links > LINKS_MAX:
                    raise OSError(errno.ELOOP, "too many links", path)
                if target.startswith("/"):
                    while len(self.fds) > 1:
                        os.close(self.fds.pop())
                    self.parts.clear()
                todo += [piece for piece in reversed(target.split("/")) if piece]
            elif todo and any(piece != "." for piece in todo):
                self.fds.append(os.open(part, NO_FOLLOW | os.O_DIRECTORY, dir_fd=self.fds[-1]))
                self.parts.append(part)
            else:
                self.name = part
                return

    def _link(self, part: str) -> str | None:
        try:
            return os.readlink(part, dir_fd=self.fds[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing there
                return None
            raise

    @property
    def folder(self) -> int:
        return self.fds[-1]

    @property
    def path(self) -> str:
        name = [] if self.name == "." else [self.name]
        return "/" + "/".join([*self.parts, *name])

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Never waits for the other end of a pipe, never follows a link."""
        more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self.name, flags | more, mode, dir_fd=self.folder)


def entry(folder: int, name: str, path: str) -> dict[str, Any]:
    """One name as the API tells it; a link is told as what it is, not followed."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    kind = "FILE_TYPE_FILE"
    if stat.S_ISDIR(found.st_mode):
        kind = "FILE_TYPE_DIRECTORY"
    elif stat.S_ISLNK(found.st_mode):
        kind = "FILE_TYPE_SYMLINK"
    told: dict[str, Any] = {
        "name": path.rsplit("/", 1)[-1] or "/",
        "type": kind,
        "path": path,
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "permissions": stat.filemode(found.st_mode),
        "owner": "user",
        "group": "user",
        "modified_s": found.st_mtime,
    }
    if kind == "FILE_TYPE_SYMLINK":
        told["symlinkTarget"] = os.readlink(name, dir_fd=folder)
        told["isSymlink"] = True
    return told


def listing(folder: int, path: str, depth: int) -> Iterator[dict[str, Any]]:
    """The names below an open directory, sorted, down to `depth` levels."""
    for name in sorted(os.listdir(folder)):
        below = f"{path.rstrip('/')}/{name}"
        told = entry(folder, name, below)
        yield told
        if depth > 1 and told["type"] == "FILE_TYPE_DIRECTORY":
            fd = os.open(name, NO_FOLLOW | os.O_DIRECTORY, dir_fd=folder)
            try:
                yield from listing(fd, below, depth - 1)
            finally:
                os.close(fd)


def make_dirs(root: str, home: str, path: str) -> bool:
    """Make the directory and all above it; False if it was there."""
    made = False
    parts = (path if path.startswith("/") else f"{home}/{path}").split("/")
    for end in range(1, len(parts) + 1):
        so_far = "/" + "/".join(part for part in parts[:end] if part)
        place = Place(root, home, so_far)
        if place.name == ".":
            made = False
            continue
        try:
            os.mkdir(place.name, 0o755, dir_fd=place.folder)
            made = True
        except FileExistsError:
            os.close(place.open(os.O_RDONLY | os.O_DIRECTORY))
            made = False
        finally:
            place.close()
    return made


def write(root: str, home: str, path: str) -> dict[str, Any]:
    above = path.rsplit("/", 1)[0] if "/" in path else ""
    if above:
        make_dirs(root, home, above)
    place = Place(root, home, path)
    fd = place.open(os.O_WRONLY | os.O_CREAT)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    os.ftruncate(fd, 0)
    while data := os.read(0, CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    os.close(fd)
    return {"name": place.name, "type": "file", "path": place.path}


def read(root: str, home: str, path: str) -> None:
    fd = Place(root, home, path).open(os.O_RDONLY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    while data := os.read(fd, CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def list_dir(root: str, home: str, path: str, depth: int) -> dict[str, Any]:
    place = Place(root, home, path)
    fd = place.open(os.O_RDONLY | os.O_DIRECTORY)
    entries: list[dict[str, Any]] = []
    for told in listing(fd, place.path, max(1, depth)):
        if len(entries) == ENTRIES_MAX:
            raise OSError(errno.EOVERFLOW, f"more than {ENTRIES_MAX} entries", path)
        entries.append(told)
    return {"entries": entries}


def stat_path(root: str, home: str, path: str) -> dict[str, Any]:
    place = Place(root, home, path, follow=False)
    return {"entry": entry(place.folder, place.name, place.path)}


def make_dir(root: str, home: str, path: str) -> dict[str, Any]:
    if not make_dirs(root, home, path):
        raise FileExistsError(errno.EEXIST, "directory already exists", path)
    return stat_path(root, home, path)


def _remove(folder: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    fd = os.open(name, NO_FOLLOW | os.O_DIRECTORY, dir_fd=folder)
    for below in os.listdir(fd):
        _remove(fd, below)
    os.close(fd)
    os.rmdir(name, dir_fd=folder)


def remove(root: str, home: str, path: str) -> dict[str, Any]:
    place = Place(root, home, path, follow=False)
    if place.name == ".":
        raise OSError(errno.EINVAL, "the root can't be removed", path)
    _remove(place.folder, place.name)
    return {}


def move(root: str, home: str, source: str, destination: str) -> dict[str, Any]:
    old = Place(root, home, source, follow=False)
    above = destination.rsplit("/", 1)[0] if "/" in destination else ""
    if above:
        make_dirs(root, home, above)
    new = Place(root, home, destination, follow=False)
    os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)
    return {"entry": entry(new.folder, new.name, new.path)}


OPERATIONS: dict[str, Callable[..., dict[str, Any] | None]] = {
    "write": write,
    "read": read,
    "list": list_dir,
    "stat": stat_path,
    "remove": remove,
    "make_dir": make_dir,
    "move": move,
}


def main(operation: str, arguments: dict[str, Any]) -> int:
    """Run one operation on this process's pipes; returns its exit status."""
    try:
        told = OPERATIONS[operation](**arguments)
        if told is not None:
            sys.stdout.write(json.dumps(told))
            sys.stdout.flush()
    except OSError as error:
        code = CODES.get(error.errno or 0, "invalid_argument")
        path = error.filename if isinstance(error.filename, str) else arguments.get("path", "")
        message = f"{error.strerror}: '{path}'"
        sys.stderr.write(json.dumps({"code": code, "message": message}))
        sys.stderr.flush()
        return 1
    except (RecursionError, ValueError) as error:  # too deep; a zero byte in a path
        sys.stderr.write(json.dumps({"code": "invalid_argument", "message": str(error)}))
        sys.stderr.flush()
        return 1
    return 0
