"""What the SDK raises, as a SandboxError: each class on purpose, the most specific one decides."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import ModuleType

import connectrpc.errors
import e2b
import httpx
import pyqwest
import pytest
from connectrpc.code import Code
from e2b.exceptions import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxUnreachableException,
    ServiceBusyException,
    TimeoutException,
)

from ledger.facts.lists import Stage
from producers.sandbox_errors import TABLE, NoAnswer, classify, had_no_effect, treatment


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """Every module in the package's folder; some of its folders are no packages to pkgutil."""
    (folder,) = package.__path__
    for file in sorted(Path(folder).rglob("*.py")):
        name = ".".join(file.relative_to(Path(folder).parent).with_suffix("").parts)
        yield importlib.import_module(name.removesuffix(".__init__"))


def exceptions_of(package: ModuleType) -> set[type[Exception]]:
    """Exception classes that the package defines."""
    return {
        cls
        for module in modules_of(package)
        for cls in vars(module).values()
        if inspect.isclass(cls)
        and issubclass(cls, Exception)
        and cls.__module__.split(".")[0] == package.__name__
    }


def test_every_exception_of_the_sdk_was_thought_about() -> None:
    found = exceptions_of(e2b)
    assert len(found) >= 26
    assert {cls.__name__ for cls in found - TABLE.keys()} == set()


@pytest.mark.parametrize("module", [connectrpc.errors, pyqwest])
def test_so_was_every_exception_of_its_transport(module: ModuleType) -> None:
    found = {
        cls for cls in vars(module).values() if inspect.isclass(cls) and issubclass(cls, Exception)
    }
    assert found
    assert found <= TABLE.keys()


def test_no_exception_of_httpx_falls_through_to_a_builtin() -> None:
    classes = exceptions_of(httpx)
    assert len(classes) >= 25
    assert [cls for cls in classes if not treatment_comes_from(cls, httpx)] == []


def treatment_comes_from(cls: type[Exception], package: ModuleType) -> bool:
    decides = next(base for base in cls.__mro__ if base in TABLE)
    return decides.__module__.split(".")[0] == package.__name__


@pytest.mark.parametrize(
    ("error", "error_type", "http_status", "lost", "transient"),
    [
        (SandboxNotRunningException("gone"), "SandboxNotRunningException", None, True, False),
        (SandboxNotFoundException("gone"), "SandboxNotFoundException", 404, True, False),
        (SandboxUnreachableException("?"), "SandboxUnreachableException", None, True, True),
        (TimeoutException("cut"), "TimeoutException", None, True, True),
        (FileNotFoundException("a"), "FileNotFoundException", 404, False, False),
        (NotEnoughSpaceException("full"), "NotEnoughSpaceException", 507, False, False),
        (InvalidArgumentException("cwd"), "InvalidArgumentException", None, False, False),
        (RateLimitException("slow down"), "RateLimitException", 429, False, True),
        (ServiceBusyException("busy"), "ServiceBusyException", 503, False, True),
        (AuthenticationException("401: no"), "AuthenticationException", 401, False, False),
        (SandboxException("500: ouch"), "SandboxException", 500, False, True),
        (SandboxException("no", status_code=403), "SandboxException", 403, False, False),
        (connectrpc.errors.ConnectError(Code.CANCELED, "x"), "ConnectError", None, True, True),
        (httpx.ReadTimeout("slow"), "ReadTimeout", None, True, True),
        (httpx.PoolTimeout("full"), "PoolTimeout", None, False, True),
        (json.JSONDecodeError("no", "<", 0), "JSONDecodeError", None, True, True),
        (Exception("Command ended without an end event"), "Exception", None, True, True),
        (NoAnswer("no answer within 5 s"), "NoAnswer", None, True, True),
        (ConnectionResetError("reset"), "ConnectionResetError", None, True, True),
    ],
)
def test_classes_and_what_they_mean_when_nobody_asked_the_sandbox(
    error: Exception, error_type: str, http_status: int | None, lost: bool, transient: bool
) -> None:
    found = classify(error, Stage.TOOL)
    assert (found.error_type, found.http_status, found.lost, found.transient) == (
        error_type,
        http_status,
        lost,
        transient,
    )
    assert found.message == str(error)
    assert found.stage is Stage.TOOL


@pytest.mark.parametrize(
    ("error", "answers", "lost"),
    [
        (httpx.ReadError("cut"), True, False),
        (httpx.ReadError("cut"), False, True),
        (httpx.ReadError("cut"), None, True),
        (SandboxNotRunningException("gone"), True, True),  # it said so itself
        (FileNotFoundException("a"), None, False),
        (FileNotFoundException("a"), False, True),
    ],
)
def test_only_an_answer_shows_that_a_sandbox_is_still_there(
    error: Exception, answers: bool | None, lost: bool
) -> None:
    assert classify(error, Stage.TOOL, answers).lost is lost


def test_a_status_is_a_plain_number() -> None:
    error = SandboxException("no", status_code=HTTPStatus.BAD_GATEWAY)
    assert type(classify(error, Stage.TOOL).http_status) is int


def test_a_start_that_failed_leaves_no_sandbox() -> None:
    assert classify(InvalidArgumentException("template"), Stage.SANDBOX_START, True).lost


def test_a_class_of_tomorrow_is_treated_as_its_nearest_base() -> None:
    class SandboxMelted(SandboxNotRunningException):
        pass

    assert treatment(SandboxMelted()) is TABLE[SandboxNotRunningException]
    assert classify(SandboxMelted(), Stage.TOOL).error_type == "SandboxMelted"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "nothing_happened"),
    [
        (SandboxNotRunningException("was not found"), True),
        (caused(SandboxNotRunningException("gone now"), httpx.ReadError("cut")), False),
        (caused(SandboxUnreachableException("?"), ConnectionRefusedError()), True),
        (caused(SandboxUnreachableException("?"), httpx.ReadError("cut")), False),
        (httpx.ConnectError("refused"), True),
        (httpx.ReadTimeout("slow"), False),
        (AuthenticationException("no key"), True),
        (SandboxException("400: bad"), True),
        (SandboxException("500: ouch"), False),
        (NoAnswer("no answer"), False),
    ],
)
def test_whether_a_request_can_have_had_an_effect(error: Exception, nothing_happened: bool) -> None:
    assert had_no_effect(error) is nothing_happened
