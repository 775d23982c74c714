"""What can go wrong between us and a sandbox, as one class.

The SDK raises classes of its own, of which some are no SandboxException and some say less than they
seem to (SandboxNotRunningException is a TimeoutException), and lets those of its layers through:
httpx, connectrpc, pyqwest, json, and a bare Exception for a stream without an end. `TABLE` has each
class that was thought about; the most specific class of an error's MRO decides, so a subclass can't
hide behind its base.

Invariant: an error's raw class name and text survive, and whether the sandbox can still be used is
said by evidence, never guessed from silence.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum

import connectrpc.errors
import e2b.exceptions as sdk
import httpx
import pyqwest
from e2b.api.client.errors import UnexpectedStatus
from e2b.sandbox.commands.command_handle import CommandExitException
from e2b.volume.client.errors import UnexpectedStatus as UnexpectedVolumeStatus

from ledger.facts.lists import Stage


class SandboxError(Exception):
    """A sandbox didn't start or didn't do what it was asked to, and no command is the cause.

    stage        where the trajectory was
    error_type   name of the raw class
    message      text of the raw error
    http_status  status of the backend's answer; None: it gave none, or the SDK doesn't tell
    lost         there is no sandbox to go on with: it is gone, can't be reached, or never started
    transient    the same start may well succeed in a moment
    in_command   whether a command ran when it was lost; None: can't be told
    sandbox_id   which sandbox; None: it never had an id
    seconds      how long the failed call took, without waiting for a slot or a connection
    """

    def __init__(
        self,
        stage: Stage,
        error_type: str,
        message: str,
        *,
        http_status: int | None = None,
        lost: bool,
        transient: bool = False,
    ) -> None:
        super().__init__(f"{error_type} in {stage}: {message}")
        self.stage = stage
        self.error_type = error_type
        self.message = message
        self.http_status = http_status
        self.lost = lost
        self.transient = transient
        self.in_command: bool | None = None
        self.sandbox_id: str | None = None
        self.seconds: float | None = None


class SandboxRefused(ValueError):
    """The settings can't work: says value, rule and place, and never the key."""


class NoAnswer(TimeoutError):
    """Our own deadline passed before the backend answered."""


class CallCancelled(Exception):
    """The SDK cancelled its own call, while nobody here wanted that."""


class TransportPanic(Exception):
    """The Rust part of the SDK's transport panicked, which is no Exception as it comes."""


class Lost(Enum):
    """Whether the sandbox is gone, as far as an error's class tells."""

    YES = "yes"
    NO = "no"
    ASK = "ask"
    """The sandbox has to be asked: only an answer shows that it is there."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """What the class of an error says."""

    lost: Lost
    """Whether there is still a sandbox."""
    transient: bool = False
    """Whether a start that failed so is tried again."""
    http_status: int | None = None
    """The one status that the SDK raises this class for; None: several, or none."""


GONE = Treatment(Lost.YES)
REFUSED = Treatment(Lost.NO)
"""The request was understood and will be refused again."""
BUSY = Treatment(Lost.NO, transient=True)
UNCLEAR = Treatment(Lost.ASK, transient=True)
"""The request may or may not have been carried out."""
NEVER = Treatment(Lost.NO)
"""Raised only by parts of the SDK that are never called here (git, volumes, secrets, builds)."""

TABLE: dict[type[Exception], Treatment] = {
    sdk.SandboxException: REFUSED,
    sdk.TimeoutException: UNCLEAR,
    sdk.SandboxNotRunningException: GONE,
    # Also raised while the sandbox runs, when only its stream was cut.
    sdk.SandboxUnreachableException: UNCLEAR,
    sdk.SandboxNotFoundException: Treatment(Lost.YES, http_status=404),
    sdk.NotFoundException: Treatment(Lost.NO, http_status=404),
    sdk.FileNotFoundException: Treatment(Lost.NO, http_status=404),
    sdk.InvalidArgumentException: REFUSED,
    sdk.NotEnoughSpaceException: Treatment(Lost.NO, http_status=507),
    sdk.TemplateException: REFUSED,
    sdk.AuthenticationException: REFUSED,
    sdk.RateLimitException: Treatment(Lost.NO, transient=True, http_status=429),
    sdk.ServiceBusyException: Treatment(Lost.NO, transient=True, http_status=503),
    sdk.GuestUnresponsiveException: Treatment(Lost.YES, http_status=409),
    CommandExitException: REFUSED,
    sdk.GitAuthException: NEVER,
    sdk.GitUpstreamException: NEVER,
    sdk.BuildException: NEVER,
    sdk.FileUploadException: NEVER,
    sdk.VolumeException: NEVER,
    sdk.VolumeNotFoundException: NEVER,
    sdk.VolumePathNotFoundException: NEVER,
    sdk.SecretException: NEVER,
    sdk.SecretNotFoundException: NEVER,
    UnexpectedVolumeStatus: NEVER,
    UnexpectedStatus: UNCLEAR,
    connectrpc.errors.ConnectError: UNCLEAR,
    httpx.HTTPError: UNCLEAR,
    httpx.TransportError: UNCLEAR,
    httpx.PoolTimeout: BUSY,
    httpx.UnsupportedProtocol: REFUSED,
    httpx.LocalProtocolError: REFUSED,
    httpx.DecodingError: UNCLEAR,
    httpx.TooManyRedirects: REFUSED,
    httpx.HTTPStatusError: UNCLEAR,
    httpx.InvalidURL: REFUSED,
    httpx.CookieConflict: REFUSED,
    httpx.StreamError: UNCLEAR,
    pyqwest.ReadError: UNCLEAR,
    pyqwest.WriteError: UNCLEAR,
    pyqwest.RemoteProtocolError: UNCLEAR,
    pyqwest.StreamError: UNCLEAR,
    pyqwest.ConnectTimeout: UNCLEAR,
    pyqwest.TooManyRedirects: REFUSED,
    NoAnswer: UNCLEAR,
    CallCancelled: UNCLEAR,
    TransportPanic: UNCLEAR,
    OSError: UNCLEAR,
    json.JSONDecodeError: UNCLEAR,
    # What the SDK's parsers raise for JSON of another shape.
    ValueError: UNCLEAR,
    LookupError: UNCLEAR,
    TypeError: UNCLEAR,
    AttributeError: UNCLEAR,
    # "Command ended without an end event", "Body of the request is None"; and whatever is new.
    Exception: UNCLEAR,
}

_TRANSIENT = frozenset({408, 425, 429}) | frozenset(range(500, 600)) - {501, 505, 507}
"""Statuses behind which the same request may succeed in a moment."""


def treatment(error: Exception) -> Treatment:
    """What `TABLE` says of the most specific class that it has."""
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def is_unclear(error: Exception) -> bool:
    """Whether only the sandbox itself can tell if it is still there."""
    return treatment(error).lost is Lost.ASK


def classify(error: Exception, stage: Stage, answers: bool | None = None) -> SandboxError:
    """The SandboxError for what the SDK raised. Pure.

    `answers` is what the sandbox showed when asked afterwards: False always means lost, True only
    matters where `is_unclear(error)`, None (not asked) counts as no answer there. A start that
    failed leaves no sandbox to ask."""
    known = treatment(error)
    status = http_status(error)
    silent = known.lost is Lost.ASK and answers is not True
    return SandboxError(
        stage,
        type(error).__name__,
        str(error) or type(error).__doc__ or type(error).__name__,
        http_status=status,
        lost=known.lost is Lost.YES or answers is False or silent or stage is Stage.SANDBOX_START,
        transient=known.transient or status in _TRANSIENT,
    )


def had_no_effect(error: Exception) -> bool:
    """Whether the backend certainly did nothing: it refused the request, or never saw it."""
    if isinstance(error, sdk.SandboxNotRunningException):
        # With a cause, the request had left, and the sandbox was found gone later.
        return error.__cause__ is None
    if isinstance(error, httpx.PoolTimeout | httpx.UnsupportedProtocol | httpx.InvalidURL):
        return True
    if isinstance(error, sdk.AuthenticationException) or (http_status(error) or 0) // 100 == 4:
        return True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConnectionError | httpx.ConnectError):
        cause = cause.__cause__
    return cause is not None


def http_status(error: Exception) -> int | None:
    """The status that the backend answered with, where the SDK tells: in an attribute, by the class
    or, for envd's HTTP routes and for 401, in front of the message only (`500: ...`)."""
    if isinstance(status := getattr(error, "status_code", None), int):
        return int(status)  # an HTTPStatus would be refused by the facts
    if (only := treatment(error).http_status) is not None:
        return only
    if isinstance(error, sdk.SandboxException | sdk.AuthenticationException) and (
        found := re.match(r"([1-5]\d\d): ", str(error))
    ):
        return int(found[1])
    return None
