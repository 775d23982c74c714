"""A way to a server that a test can cut: what a dead host or a broken network is to a client."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """Forwards connections to a port on loopback until it is cut."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        """Take connections until cut."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                self.open |= {client, server}
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=ends, daemon=True).start()

    def cut(self) -> None:
        """From now on nobody gets through, and whoever was is dropped."""
        # A close alone leaves the blocked accept, and the port, alive.
        for end in [self.listener, *self.open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    """A proxy to a server on loopback, cut at the end."""
    proxy = Proxy(int(url.rpartition(":")[2]))
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.cut()
        thread.join()
