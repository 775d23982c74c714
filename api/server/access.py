"""The token: whoever shows it may ask and record.

Invariants: it is compared in constant time, stands in no log line and no message, and its file is
readable by its owner alone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.server.problems import Problem
from api.server.settings import ServeError, ServeSettings

COOKIE = "rollbook"
OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
"""Paths that tell nothing of the book. (`/` takes a token from a browser.)"""
SHORTEST = 16
"""Characters of a token that somebody chose."""


def token_path(settings: ServeSettings, book: Path) -> Path:
    """Where the token is kept."""
    return settings.token_file or book.with_name(book.name + ".token")


def load_token(settings: ServeSettings, book: Path) -> str:
    """The token that clients must show, made on the first start. Raises ServeError."""
    if settings.token is not None:
        return _checked(settings.token.get_secret_value(), "[serve] token")
    path = token_path(settings, book)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ServeError(
                f"token file {path} must be readable by its owner alone (mode 600), has {mode:o}"
            ) from None
        return _checked(path.read_text().strip(), f"token file {path}")
    except OSError as error:
        raise ServeError(f"token file {path} can't be made: {error.strerror}") from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def _checked(token: str, place: str) -> str:
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ServeError(
            f"a token must be at least {SHORTEST} printable ASCII characters without a space,"
            f" got {len(token)} characters ({place})"
        )
    return token


class Gate:
    """ASGI middleware: 401 for a request without the token, in a header or the browser's cookie."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        """`token` null: everybody may (only ever on loopback)."""
        self._app = app
        self._digest = None if token is None else _digest(token)

    def opens_to(self, shown: str | None) -> bool:
        """Whether what a client shows is the token."""
        if self._digest is None:
            return True
        # Digests, so that not even the length can be told from the time.
        return hmac.compare_digest(_digest(shown or ""), self._digest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        if self.opens_to(_bearer(headers)) or self.opens_to(_cookie(headers)):
            return await self._app(scope, receive, send)
        response = Problem(
            401,
            "unauthorized",
            rule="a request must carry the token",
            place="header Authorization: Bearer TOKEN",
        ).response()
        response.headers["WWW-Authenticate"] = "Bearer"
        answer: Callable[[Scope, Receive, Send], Awaitable[None]] = response
        return await answer(scope, receive, send)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _cookie(headers: Headers) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None
