"""A sandbox's first process: spawns its commands, reaps them, watches its limits.

It speaks over one SOCK_SEQPACKET socket whose other end the server holds, one JSON object a packet:

    server  {"op": "begin", ...}                           limits, environment, folders; comes first
    agent   {"ready": true}
    server  {"op": "spawn", "id", "argv" | "files", ...}   with 3 descriptors: stdin, stdout, stderr
    agent   {"id", "pid"} or {"id", "code", "message"}
    agent   {"exit": pid, "status": n}                     n as of subprocess: -9 is SIGKILL
    server  {"op": "signal", "pid", "signal"}              to the process's group
    server  {"op": "measure", "id"}
    agent   {"id", "cpu_s", "memory", "processes", "disk_used", "disk_total"}

Invariant: when the socket closes, for whatever reason, everything in the sandbox ends. In a pid
namespace we are its first process, so our end is everybody's; without one we are the subreaper of
all that was ever started here, and kill until nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:  # every sandbox would wait for typing
    from typing import Any, NoReturn

PACKET = 1 << 20
TICK_S = 1.0
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
PAGE = os.sysconf("SC_PAGE_SIZE")
CLOCK = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


class Agent:
    """The loop over the socket, the end of children, and the clock."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        begin, _ = self._receive()
        assert begin is not None
        self.root: str = begin["root"]
        self.home: str = begin["home"]
        self.alone: bool = os.getpid() == 1
        self.limits: dict[str, int] = begin["limits"]
        self.env: dict[str, str] = begin["env"]
        self.next_tick = time.monotonic() + TICK_S
        for name, text in begin["files"].items():
            os.makedirs(os.path.dirname(self.root + name), exist_ok=True)
            with open(self.root + name, "w") as file:
                file.write(text)
        for name in begin["folders"]:
            os.makedirs(self.root + name, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(sys.executable, f"{self.root}{begin['bin']}/python")
        self._send({"ready": True})

    def run(self) -> None:
        """Until the server closes the socket."""
        wake, woken = os.pipe()
        for fd in (wake, woken):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken)
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = dict(poll.poll(max(0.0, self.next_tick - time.monotonic()) * 1000))
            if self.channel.fileno() in ready:
                request, fds = self._receive()
                if request is None:
                    return
                self._handle(request, fds)
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if time.monotonic() >= self.next_tick:
                self._watch()
                self.next_tick = time.monotonic() + TICK_S

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        data, fds, _, _ = socket.recv_fds(self.channel, PACKET, 3)
        return (json.loads(data), fds) if data else (None, fds)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the server is gone: the next receive says so
            self.channel.send(json.dumps(message).encode())

    def _handle(self, request: dict[str, Any], fds: list[int]) -> None:
        if request["op"] == "spawn":
            self._spawn(request, fds)
        elif request["op"] == "signal":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(request["pid"], request["signal"])
        elif request["op"] == "measure":
            disk = os.statvfs(self.root)
            self._send({"id": request["id"], **self._measure(), **_disk(disk)})

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        folder = None
        try:
            folder = self._folder(request.get("cwd") or self.home)
            pid = self._fork(request, fds, folder)
        except OSError as error:
            said = {"code": "resource_exhausted", "message": str(error)}
            if folder is None:
                path = request.get("cwd") or self.home
                said = {"code": "invalid_argument", "message": f"cwd '{path}' does not exist"}
            self._send({"id": request["id"], **said})
        else:
            self._send({"id": request["id"], "pid": pid})
        for fd in [*fds, *([] if folder is None else [folder])]:
            os.close(fd)

    def _fork(self, request: dict[str, Any], fds: list[int], folder: int) -> int:
        """The pid of the request's process. It leads a group already: a signal that comes at once
        must find it."""
        led, leads = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                self._child(request, fds, folder, leads)
        finally:
            os.close(leads)
            os.read(led, 1)  # ends when the child closes its end, too, or dies
            os.close(led)
        return pid

    def _folder(self, path: str) -> int:
        place = files.Place(self.root, self.home, path)
        try:
            return place.open(os.O_RDONLY | os.O_DIRECTORY)
        finally:
            place.close()

    def _child(self, request: dict[str, Any], fds: list[int], folder: int, leads: int) -> NoReturn:
        status = 126
        try:
            os.setsid()
            os.close(leads)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.fchdir(folder)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            self._limit()
            if "files" in request:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # EFBIG, which is told
                where = {"root": self.root, "home": self.home}
                status = files.main(request["files"], {**where, **request["arguments"]})
            else:
                os.closerange(3, 256)
                os.execvpe(request["argv"][0], request["argv"], {**self.env, **request["env"]})
        except FileNotFoundError:
            os.write(2, f"{request['argv'][0]}: command not found\n".encode())
            status = 127
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"could not start: {error}\n".encode())
        finally:
            os._exit(status)

    def _limit(self) -> None:
        limits = self.limits
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (limits["file_mb"] * MIB, limits["file_mb"] * MIB)
        )
        resource.setrlimit(
            resource.RLIMIT_DATA, (limits["memory_mb"] * MIB, limits["memory_mb"] * MIB)
        )
        if self.alone:  # else it would count all that this user runs anywhere
            resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"], limits["processes"]))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send({"exit": pid, "status": os.waitstatus_to_exitcode(status)})

    def _watch(self) -> None:
        """Limits of the whole sandbox, which rlimits don't have: memory, and, without a pid
        namespace, the number of processes."""
        processes = _processes(None if self.alone else os.getpid())
        memory = {pid: _memory(pid) for pid in processes}
        if sum(memory.values()) > self.limits["memory_mb"] * MIB:
            _kill([max(memory, key=memory.__getitem__)])
        if len(processes) > self.limits["processes"]:
            _kill(processes)

    def _measure(self) -> dict[str, Any]:
        processes = _processes(None if self.alone else os.getpid())
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "cpu_s": sum(map(_cpu_s, processes)) + ended.ru_utime + ended.ru_stime,
            "memory": sum(map(_memory, processes)),
            "processes": len(processes),
        }

    def end(self) -> None:
        """Kill all that is left, and wait for it."""
        if self.alone:
            return  # the kernel does, when the first process of a namespace ends
        for _ in range(1000):
            if not (left := _processes(os.getpid())):
                return
            _kill(left)
            self._reap()
            time.sleep(0.001)


def _disk(disk: os.statvfs_result) -> dict[str, int]:
    total = disk.f_blocks * disk.f_frsize
    return {"disk_total": total, "disk_used": total - disk.f_bfree * disk.f_frsize}


def _processes(ancestor: int | None) -> list[int]:
    """Every other process that /proc shows, or the descendants of one."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if ancestor is None:
        return [pid for pid in pids if pid != os.getpid()]
    children: dict[int, list[int]] = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int(_stat(pid)[1]), []).append(pid)
    found: list[int] = []
    todo = [ancestor]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; a name may hold spaces and brackets."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / CLOCK
    return 0.0


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE
    return 0


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main(channel_fd: int) -> None:
    """Serve one sandbox over the inherited socket."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where the machine's memory runs out, a sandbox goes first
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no command can trace us and take the socket
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    with contextlib.suppress(ConnectionError):
        agent = Agent(channel)
        try:
            agent.run()
        finally:
            agent.end()
