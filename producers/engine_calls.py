"""HTTP calls to one engine: JSON there, JSON back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from producers.engine_json import WrongAnswer, error_text

KEEP_ALIVE_S = 2.0
"""Seconds that an unused connection is kept: less than the 5 after which the engine closes it, so
that no request goes out on a connection that is being closed at that moment."""
CONNECT_S = 10.0
"""Most seconds until a connection stands."""

UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call raises for an engine that doesn't answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever its status."""

    status: int
    """Of HTTP."""
    body: object
    """The JSON; the text where it is none."""


class Calls:
    """Connections to one engine, as many as there are calls: callers keep the limit, so that an
    abort or a probe never waits behind the requests that it is about."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, timeout_s: float) -> Answer:
        """Raises one of UNREACHABLE."""
        return await self._call("GET", path, None, timeout_s)

    async def post(self, path: str, body: dict[str, Any], timeout_s: float | None) -> Answer:
        """`timeout_s` None: the caller keeps the time. Raises one of UNREACHABLE."""
        return await self._call("POST", path, body, timeout_s)

    async def get_json(self, path: str, timeout_s: float) -> object:
        """The body of a 200. Raises WrongAnswer for anything else, or one of UNREACHABLE."""
        answer = await self.get(path, timeout_s)
        if answer.status != 200:
            raise WrongAnswer(
                f"GET {path} must answer 200, got {answer.status} {error_text(answer.body)[:200]!r}"
            )
        return answer.body

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None
    ) -> Answer:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        async with self._opened().request(
            method, self._url + path, json=body, timeout=timeout
        ) as response:
            raw = await response.read()
        try:
            return Answer(response.status, json.loads(raw))
        except ValueError:
            return Answer(response.status, raw.decode(errors="replace"))

    def _opened(self) -> aiohttp.ClientSession:
        """Opened at the first call, for it belongs to the event loop that runs then."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session
