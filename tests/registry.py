"""A server of a Schema Registry's protocol, with what a bad one may do."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry(ThreadingHTTPServer):
    """GET /schemas/ids/{id}, POST /subjects/{subject}/versions; ids count from 1."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.host}"
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.password: str | None = None
        self.canned: tuple[int, bytes] | None = None
        """Status and body of every answer, whatever is asked."""
        self.pause_s = 0.0

    def handle_error(self, *_: Any) -> None:
        """A client that gave up waiting."""


class Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        number = int(self.path.removeprefix("/schemas/ids/"))
        if 0 < number <= len(self.server.schemas):
            self.answer(200, {"schema": self.server.schemas[number - 1]})
        else:
            self.answer(404, {"error_code": 40403, "message": f"Schema {number} not found"})

    def do_POST(self) -> None:
        subject = self.path.split("/")[2]
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        if text not in self.server.schemas:
            self.server.schemas.append(text)
        number = self.server.schemas.index(text) + 1
        self.server.subjects.setdefault(subject, []).append(number)
        self.answer(200, {"id": number})

    def answer(self, status: int, body: Any) -> None:
        registry = self.server
        registry.requests.append(f"{self.command} {self.path}")
        time.sleep(registry.pause_s)
        given = self.headers.get("Authorization")
        if registry.password and given != f"Basic {registry.password}":
            status, body = 401, {"error_code": 40101, "message": "Unauthorized"}
        data = json.dumps(body).encode()
        if registry.canned:
            status, data = registry.canned
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        if 300 <= status < 400:
            self.send_header("Location", f"{registry.url}/elsewhere/schemas/ids/1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass
