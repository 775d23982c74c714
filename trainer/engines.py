"""The client of one SGLang engine's weight endpoints: look, pause, load, resume.

It is all that the trainer asks of an engine; requests for tokens are not its business.

Invariant: every call is over within a time that the caller gave, with the engine's answer or with
one of two errors: it didn't answer (`EngineAway`), or it refused (`EngineFailed`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
from torch import Tensor

from ledger.facts.lists import PauseMode

LOOK_S = 10.0
"""Most seconds for a question that an engine answers at once, also while it loads weights."""
CONTROL_S = 60.0
"""Most seconds to pause or resume it, or to begin or end an update."""
CONNECT_S = 5.0
"""Most seconds until a connection stands."""
FLUSH_WAITS_S = (0.1, 0.2, 0.4, 0.8)
"""Seconds before each further try to load, where the cache was in use."""
NOT_FLUSHED = "the cache was not flushed"
"""What SGLang says then."""
MESSAGE_MAX = 2000
"""Characters kept of an engine's refusal."""


class EngineError(Exception):
    """A call to an engine that failed; the message names the engine, the call and what was said."""

    def __init__(self, message: str, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        """Raw type of the error."""


class EngineAway(EngineError):
    """No connection, or no answer in time. What was asked for may be done all the same."""


class EngineFailed(EngineError):
    """It answered, and not with what was asked for."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine says of itself at one time."""

    version: str | None
    """Version of its weights, as it was given with them; null: it has none."""
    ready: bool
    """Whether it takes requests: not while it is paused, nor before its start is over."""
    model: str
    """Folder or name of its model: after an update from disk, the folder of that."""


class Engine:
    """One engine. All calls belong to one event loop."""

    def __init__(self, url: str, *, limit_s: float) -> None:
        """`limit_s`: most seconds of a call that brings it weights."""
        self.url = url.rstrip("/")
        self.limit_s = limit_s
        """Most seconds of a call that brings it weights."""
        self._session: aiohttp.ClientSession | None = None

    async def look(self) -> EngineState:
        """Its state now. Raises EngineAway, or EngineFailed for what is no SGLang server."""
        model = await self._ask("/model_info")
        status, _ = await self._call("/ready", None, LOOK_S)
        version = model.get("weight_version")
        return EngineState(
            version=None if version is None else str(version),
            ready=status == 200,
            model=str(model.get("model_path")),
        )

    async def group_ranks(self) -> int | None:
        """Ranks that it brings into a group for weights; null where SGLang can't: with data
        parallelism it refuses, and pipeline stages would all be the same rank."""
        server = await self._ask("/server_info")
        if server.get("dp_size") != 1 or server.get("pp_size") != 1:
            return None
        return int(server["tp_size"])

    async def in_flight(self) -> int | None:
        """Requests that it runs or has queued; null where it doesn't say."""
        try:
            loads = (await self._ask("/v1/loads"))["loads"]
            return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
        except (EngineFailed, KeyError, TypeError):
            return None

    async def pause(self, mode: PauseMode) -> None:
        """It stops sampling, and holds new requests until it is resumed.

        One that is paused can be paused again with `retract`, whatever it was paused with; not with
        `abort`, which comes back only once all its requests are gone."""
        await self._do("/pause_generation", {"mode": mode.value})

    async def resume(self) -> None:
        """It goes on. Harmless where it isn't paused."""
        await self._do("/continue_generation", {"torch_empty_cache": False})

    async def load(self, folder: Path, version: int, *, flush_cache: bool) -> None:
        """It loads a checkpoint, whose shapes must have been checked: wrong ones end it.

        Unless it is paused, it lets its running requests end first. Its server holds a request for
        ended a moment before its scheduler does, which then loads the weights and refuses to flush
        the cache; so it is asked again."""
        body = {
            "model_path": str(folder),
            "weight_version": str(version),
            "flush_cache": flush_cache,
        }
        for wait_s in (*FLUSH_WAITS_S, None):
            try:
                await self._do("/update_weights_from_disk", body, self.limit_s)
                break
            except EngineFailed as error:
                if wait_s is None or NOT_FLUSHED not in str(error):
                    raise
                await asyncio.sleep(wait_s)

    async def join(
        self, group: str, address: str, port: int, offset: int, size: int, backend: str
    ) -> None:
        """Its ranks join a process group of `size`, from rank `offset` on."""
        body = {
            "master_address": address,
            "master_port": port,
            "rank_offset": offset,
            "world_size": size,
            "group_name": group,
            "backend": backend,
        }
        await self._do("/init_weights_update_group", body, self.limit_s)

    async def leave(self, group: str) -> None:
        """Its ranks leave that group."""
        await self._do("/destroy_weights_update_group", {"group_name": group})

    async def begin(self) -> None:
        """Opens an update by group."""
        await self._do("/begin_weight_update", {"selector": "all"})

    async def receive(
        self,
        group: str,
        tensors: Sequence[tuple[str, Tensor]],
        *,
        version: int | None,
        flush_cache: bool,
    ) -> None:
        """It takes these tensors, which rank 0 of the group broadcasts in this order meanwhile.

        `version`: what its weights are from then on; null: the update goes on."""
        body = {
            "names": [name for name, _ in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "group_name": group,
            "flush_cache": flush_cache,
        }
        if version is not None:
            body["weight_version"] = str(version)
        await self._do("/update_weights_from_distributed", body, self.limit_s)

    async def end(self) -> None:
        """Closes an update by group."""
        await self._do("/end_weight_update", {})

    async def close(self) -> None:
        """Closes the connections; the engine goes on."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, path: str) -> dict[str, Any]:
        status, body = await self._call(path, None, LOOK_S)
        if status != 200 or not isinstance(body, dict):
            raise self._failed(path, status, body)
        return cast(dict[str, Any], body)

    async def _do(self, path: str, body: Mapping[str, Any], limit_s: float = CONTROL_S) -> None:
        status, answer = await self._call(path, body, limit_s)
        refused = isinstance(answer, dict) and cast(dict[str, Any], answer).get("success") is False
        if status != 200 or refused:
            raise self._failed(path, status, answer)

    async def _call(
        self, path: str, body: Mapping[str, Any] | None, limit_s: float
    ) -> tuple[int, object]:
        if self._session is None:
            # A connection that is kept may be closed by the engine just when it is used again.
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = aiohttp.ClientSession(connector=connector)
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_S)
        method = "GET" if body is None else "POST"
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=timeout
            ) as response:
                raw = await response.read()
        except TimeoutError as error:
            message = f"{self.url}{path} must answer within {limit_s:g} s, got nothing"
            raise EngineAway(message, type(error).__name__) from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"{self.url}{path} must answer, got {type(error).__name__}: {error}"
            raise EngineAway(message, type(error).__name__) from error
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, raw.decode(errors="replace")

    def _failed(self, path: str, status: int, body: object) -> EngineFailed:
        told = cast(dict[str, Any], body).get("message", body) if isinstance(body, dict) else body
        message = f"{self.url}{path} must do as asked, got {status}: {str(told)[:MESSAGE_MAX]}"
        return EngineFailed(message, f"HTTP{status}")
