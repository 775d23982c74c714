"""Ports on loopback for the servers that are run on this machine."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the ephemeral range: a client that retries a dead loopback port in that range ends up
connected to itself, and then the server can't have its port back."""


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(other_than: int | None = None) -> int:
    """A port that nothing listens on now. Raises OSError when there is none."""
    for _ in range(1000):
        port = random.SystemRandom().choice(PORTS)
        if port != other_than and is_free(port):
            return port
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
