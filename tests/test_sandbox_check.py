"""Bad settings of the sandboxes: a clear error before the first trajectory, without the key."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from producers.sandbox_errors import SandboxRefused
from producers.sandbox_pool import Sandboxes, SandboxSettings
from tests.e2b_faults import KEY, Answer, FaultyE2B, hangs, status


def refusal(*answers: Answer, route: str = "list", **settings: Any) -> str:
    """What `check` says when the server answers so; empty when it has nothing to say."""

    async def main() -> str:
        async with FaultyE2B() as server:
            server.will(route, *answers)
            sandboxes = Sandboxes(server.settings(**settings))
            try:
                await sandboxes.check()
            except SandboxRefused as error:
                return str(error).replace(server.url, "URL")
            assert server.up == {}
            return ""

    return asyncio.run(main())


def a_dead_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_server_that_is_one_is_taken_and_no_sandbox_started() -> None:
    assert refusal() == ""


def test_a_wrong_key_is_named_by_its_length_only() -> None:
    said = refusal(status(401, {"code": 401, "message": f"no such key: {KEY}"}))
    assert said == (
        "api_key must be one that URL takes, got one of 14 characters, which it refused:"
        " AuthenticationException: 401: Unauthorized, please check your credentials. -"
        " no such key: [api key] (SandboxSettings.api_key or the environment's E2B_API_KEY)"
    )


def test_no_key_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    assert refusal(api_key=None) == (
        "api_key must be given, got none (SandboxSettings.api_key or the environment's E2B_API_KEY)"
    )


def test_the_environments_key_does() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2B_API_KEY", "e2b_other")
        assert refusal(api_key=None) == ""


def test_a_dead_port() -> None:
    url = a_dead_url()
    said = refusal(api_url=url)
    assert said.startswith(f"api_url must be a server that answers, got {url}: ConnectError: ")


def test_a_server_that_hangs() -> None:
    said = refusal(hangs, request_timeout_s=0.3)
    assert said == (
        "api_url must be a server that answers, got URL: NoAnswer: no answer within 0.3 s"
        " (SandboxSettings.api_url)"
    )


def test_a_server_that_is_down() -> None:
    assert refusal(status(503)).startswith("api_url must be a server that works, got URL: ")


@pytest.mark.parametrize("answer", [status(200, "<html>"), status(404), status(403, "no")])
def test_a_server_that_is_no_e2b(answer: Answer) -> None:
    assert refusal(answer).startswith("api_url must be an E2B server, got URL: ")


@pytest.mark.parametrize("answer", [status(200, {}), status(200, []), status(204)])
def test_a_server_that_answers_everything_is_no_e2b(answer: Answer) -> None:
    said = refusal(answer, route="info")
    assert said.startswith("api_url must be an E2B server, got URL: ")


def test_a_url_of_another_kind() -> None:
    assert refusal(api_url="ftp://x") == (
        "api_url must be an http or https URL, got 'ftp://x' (SandboxSettings.api_url)"
    )


def test_a_dead_inside_of_the_sandboxes() -> None:
    url = a_dead_url()
    said = refusal(sandbox_url=url)
    assert said.startswith(f"sandbox_url must be a server that answers, got {url}: ")
    assert said.endswith("(SandboxSettings.sandbox_url)")


def test_the_debug_mode_of_the_sdk_in_which_kills_do_nothing_is_overruled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("E2B_DEBUG", "true")
    assert refusal(status(401)).startswith("api_key must be one that URL takes")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0 (SandboxSettings)"),
        ({"start_tries": 0}, "start_tries must be at least 1, got 0 (SandboxSettings)"),
        (
            {"lifetime_s": 0.5},
            "lifetime_s must be at least 1 and at most 86400, got 0.5 (SandboxSettings)",
        ),
        (
            {"request_timeout_s": float("nan")},
            "request_timeout_s must be at least 0.001 and at most 86400, got nan (SandboxSettings)",
        ),
        ({"template": ""}, "template must name one, got '' (SandboxSettings)"),
    ],
)
def test_settings_that_can_not_work(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        SandboxSettings(**settings)
    assert str(refused.value) == said


def test_settings_can_be_printed_without_their_key() -> None:
    assert KEY not in repr(SandboxSettings(api_key=KEY))
