"""Run the server: `python -m producers.local_e2b FOLDER`. Prints its URL when it listens."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import uvicorn

from producers.local_e2b.app import make_app
from producers.local_e2b.isolation import Host, boxes_folder, find_host
from producers.local_e2b.launch import KEY_VARIABLE
from producers.local_e2b.leftovers import clean_up
from producers.local_e2b.settings import Limits, LocalE2BError, Settings, StartLatency

PR_SET_PDEATHSIG = 1


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m producers.local_e2b", description=f"{__doc__} The key: ${KEY_VARIABLE}."
    )
    add = parser.add_argument
    add("folder", type=Path, help="everything of this server")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: a free one")
    add("--slots", type=int, default=16, help="sandboxes at a time")
    add("--queue", type=int, default=256, help="starts that wait for a slot")
    add("--queue-timeout-s", type=float, default=30.0, help="longest wait, then 429")
    add("--seed", type=int, default=0, help="of faults and start latencies")
    add("--fault", action="append", default=[], help="KIND:KEY=VALUE,... or a .toml file")
    add("--start-latency", default="fixed:0", help="fixed:S or lognormal:MEDIAN,SIGMA")
    add("--templates", type=Path, help="folder of templates")
    add("--isolation", choices=("auto", "bwrap", "none"), default="auto")
    add("--unsafe", action="store_true", help="run even if sandboxes are no security boundary")
    add("--parent", type=int, help="die with the process of this id")
    for name, default in Limits.defaults().items():
        add(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser


def main() -> int:
    given = arguments().parse_args()
    if given.parent is not None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != given.parent:
            return 1  # it died before we asked
    try:
        settings = Settings(
            folder=given.folder.absolute(),
            slots=given.slots,
            queue=given.queue,
            queue_timeout_s=given.queue_timeout_s,
            seed=given.seed,
            faults=tuple(given.fault),
            start_latency=StartLatency.parse(given.start_latency),
            api_key=os.environ.pop(KEY_VARIABLE, None) or None,
            templates=given.templates,
            limits=Limits(**{name: getattr(given, name) for name in Limits.defaults()}),
            isolation=given.isolation,
            unsafe=given.unsafe,
        )
        serve(settings, given.host, given.port)
    except LocalE2BError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def serve(settings: Settings, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT. Raises LocalE2BError."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(settings.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LocalE2BError(f"another server runs in {settings.folder}") from error
    machine = find_host(settings)
    boxes = boxes_folder(settings.folder, machine)
    left = clean_up(boxes, machine)
    if left:
        print(f"{left} sandboxes of an earlier server were cleaned up", file=sys.stderr)
    if not machine.isolated:
        print(f"warning: no security boundary: {_who(machine)}", file=sys.stderr)
    app = make_app(settings, machine, boxes)
    sock = _listen(host, port)
    url = f"http://{host}:{sock.getsockname()[1]}"
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="on",
        # The client closes idle connections first: a request on one that we had just closed would
        # be a loss that nobody injected.
        timeout_keep_alive=3600,
    )
    asyncio.run(_run(uvicorn.Server(config), sock, url, settings.folder))


def _who(machine: Host) -> str:
    if machine.first_uid is None:
        return "commands run as this user and can read, change and kill whatever it can"
    return "commands run as users of their own, but see this machine's files and network"


def _listen(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # with the protocol named asyncio sets TCP_NODELAY, without which each answer waits 40 ms
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(512)
    except OSError as error:
        raise LocalE2BError(f"can't listen on {host}:{port}: {error.strerror}") from error
    return sock


async def _run(server: uvicorn.Server, sock: socket.socket, url: str, folder: Path) -> None:
    serving = asyncio.create_task(server.serve([sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if server.started:
        state = {"url": url, "pid": os.getpid(), "started_s": time.time()}
        new = folder / "state.json.new"
        new.write_text(json.dumps(state) + "\n")
        new.rename(folder / "state.json")
        print(url, flush=True)
    await serving


if __name__ == "__main__":
    sys.exit(main())
