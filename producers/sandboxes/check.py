"""Whether sandboxes can be had at all, asked before the first trajectory.

Invariant: every refusal says value, rule and place, and none contains the key.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import httpx
from e2b import AsyncSandbox, AuthenticationException, SandboxNotFoundException
from e2b.connection_config import ConnectionConfig

from producers.sandbox_errors import NoAnswer, SandboxRefused, http_status
from producers.sandboxes.calls import within
from producers.sandboxes.settings import SandboxSettings

NO_SANDBOX = "irollbooknosuchsandbox"
"""An id that no sandbox has."""


async def check(settings: SandboxSettings) -> None:
    """Raise SandboxRefused unless an E2B server answers and takes the key. Starts no sandbox."""
    config = ConnectionConfig(**settings.api())
    url = config.api_url
    try:
        # retries=0: an answer is wanted, not success.
        api = settings.api(retries=0)
        await within(settings.request_timeout_s, AsyncSandbox.list(limit=1, **api).next_items())
        # Many servers answer any path with something; only E2B's has no such sandbox.
        with contextlib.suppress(SandboxNotFoundException):
            await within(settings.request_timeout_s, AsyncSandbox.get_info(NO_SANDBOX, **api))
            raise SandboxRefused(
                f"api_url must be an E2B server, got {url}, which knows a sandbox that doesn't"
                " exist (SandboxSettings.api_url)"
            )
    except SandboxRefused:
        raise
    except Exception as error:
        raise SandboxRefused(settings.without_key(_refusal(error, url, config.api_key))) from None
    if settings.sandbox_url is not None:
        await _check_listens(settings.sandbox_url, settings.request_timeout_s)


def _refusal(error: Exception, url: str, key: str | None) -> str:
    """The error in our words."""
    said = f"{type(error).__name__}: {error}"
    match error:
        case AuthenticationException() if not key:
            return (
                "api_key must be given, got none (SandboxSettings.api_key or the environment's"
                " E2B_API_KEY)"
            )
        case AuthenticationException():
            return (
                f"api_key must be one that {url} takes, got one of {len(key or '')} characters,"
                f" which it refused: {said} (SandboxSettings.api_key or the environment's"
                " E2B_API_KEY)"
            )
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return f"api_url must be an http or https URL, got {url!r} (SandboxSettings.api_url)"
        case NoAnswer() | httpx.TransportError():
            rule = "a server that answers"
        case _ if (http_status(error) or 0) >= 500:
            rule = "a server that works"
        case _:
            rule = "an E2B server"
    return f"api_url must be {rule}, got {url}: {said} (SandboxSettings.api_url)"


async def _check_listens(url: str, timeout_s: float) -> None:
    """Raise SandboxRefused unless something listens behind the URL of all sandboxes."""
    parts = urlsplit(url)
    rule = f"sandbox_url must be a server that answers, got {url}"
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        _, writer = await within(timeout_s, asyncio.open_connection(parts.hostname or "", port))
    except (OSError, ValueError) as error:
        raise SandboxRefused(f"{rule}: {error} (SandboxSettings.sandbox_url)") from None
    writer.close()
