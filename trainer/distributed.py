"""The second way of weights to engines: rank 0 broadcasts them, part by part.

Each engine has a process group of its own with rank 0, made for one update: an engine that dies
meanwhile, or was restarted, holds up no other. (In a common group all the others' schedulers would
wait for it until their own time ran out.) The price is that rank 0 sends to each.

Invariant: an engine samples again only once it has all parts. One that got some of them stays
paused and loads the exported checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from ledger.facts.lists import WeightMethod
from trainer.engine_keeper import EngineKeeper, Pause, Target
from trainer.engines import EngineError
from trainer.publish_settings import PublishSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Bucket = Sequence[tuple[str, Tensor]]


def buckets(
    tensors: Iterable[tuple[str, Tensor]], most_bytes: int
) -> Iterator[tuple[Bucket, bool]]:
    """Tensors in parts of about `most_bytes`, and whether a part is the last one."""
    bucket: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in tensors:
        if bucket and held + tensor.nbytes > most_bytes:
            yield bucket, False
            bucket, held = [], 0
        bucket.append((name, tensor.contiguous()))
        held += tensor.nbytes
    if bucket:
        yield bucket, True


class Broadcast:
    """One update of all engines that are there. `open`, `send` for each part, `close`."""

    def __init__(
        self, keepers: Sequence[EngineKeeper], settings: PublishSettings, gpu: bool
    ) -> None:
        self._keepers = keepers
        self._settings = settings
        self._backend = "nccl" if gpu else "gloo"
        self._lines: list[_Line] = []

    async def open(self) -> None:
        """Pauses every engine that can take part, and connects it. No engine makes it raise."""
        lines = await asyncio.gather(*[self._admitted(keeper) for keeper in self._keepers])
        self._lines = [line for line in lines if line is not None]
        await asyncio.gather(*[line.open(self._settings.address) for line in self._lines])

    async def send(self, bucket: Bucket, *, last: bool) -> None:
        """Gives every engine this part; over when each has it, or failed."""
        flush_cache = last and self._settings.flush_cache
        await asyncio.gather(
            *[line.send(bucket, last=last, flush_cache=flush_cache) for line in self._lines]
        )

    async def close(self) -> None:
        """Lets those that have all parts go on; the others load the checkpoint first."""
        await asyncio.gather(*[line.close() for line in self._lines])

    async def _admitted(self, keeper: EngineKeeper) -> _Line | None:
        """A line to a paused engine, whose keeper is locked; null for one that must take the
        checkpoint: it is away, it doesn't fit, or is paused or starting, or SGLang can't."""
        await keeper.lock.acquire()
        target, line = keeper.target, None
        try:
            state = None if target is None else await keeper.look(target)
            if (
                target
                and state
                and state.ready
                and state.version != str(target.version)
                and await keeper.takes(state, target)
            ):
                ranks = await keeper.engine.group_ranks()
                if ranks is not None:
                    pause = await keeper.hold(self._settings.pause)
                    line = _Line(keeper, target, pause, ranks, self._backend)
        except EngineError:  # the checkpoint comes next, and tells what is wrong
            pass
        finally:
            if line is None:
                keeper.lock.release()
        return line


class _Line:
    """Rank 0 and one engine, during one update."""

    def __init__(
        self, keeper: EngineKeeper, target: Target, pause: Pause, ranks: int, backend: str
    ) -> None:
        self._keeper = keeper
        self._target = target
        self._pause = pause
        self._ranks = ranks
        self._backend = backend
        self._name = f"rollbook-{uuid.uuid4().hex}"
        """Of the group: none is ever used twice."""
        self._group: dist.ProcessGroup | None = None
        self._began = time.monotonic()
        self._complete = False
        self._failed: Exception | None = None

    async def open(self, address: str) -> None:
        engine, limit = self._keeper.engine, timedelta(seconds=self._keeper.engine.limit_s)
        size = 1 + self._ranks
        try:
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                address, 0, size, is_master=True, timeout=limit, wait_for_workers=False
            )
            self._group = await _both(
                engine.join(self._name, address, store.port, 1, size, self._backend),
                asyncio.to_thread(_group_of_rank_0, self._name, store, size, self._backend, limit),
            )
            await engine.begin()
        except (EngineError, RuntimeError, OSError) as error:
            self._failed = error

    async def send(self, bucket: Bucket, *, last: bool, flush_cache: bool) -> None:
        if self._failed is not None or self._group is None:
            return
        version = self._target.version if last else None
        try:
            await _both(
                self._keeper.engine.receive(
                    self._name, bucket, version=version, flush_cache=flush_cache
                ),
                asyncio.to_thread(_broadcast, bucket, self._group),
            )
            self._complete = last
        except (EngineError, RuntimeError) as error:
            self._failed = error

    async def close(self) -> None:
        keeper, engine = self._keeper, self._keeper.engine
        try:
            await self._left()
            if not self._complete or self._failed is not None:
                logger.warning(
                    "%s did not get version %d by broadcast and loads it from disk: %s",
                    engine.url, self._target.version, self._failed or "the sender gave up",
                )  # fmt: skip
                await keeper.load_held(self._target, self._pause, go_on=False)
                return
            apply_s = time.monotonic() - self._began
            await engine.resume()
            keeper.tell_done(self._target, WeightMethod.DISTRIBUTED, self._pause, apply_s)
        except EngineError as error:
            keeper.tell_failure(self._target, error, self._pause)
        finally:
            keeper.lock.release()

    async def _left(self) -> None:
        """Ends the update and the group, also where it has failed."""
        try:
            await self._keeper.engine.end()
        except EngineError as error:
            self._failed = self._failed or error
        try:
            await self._keeper.engine.leave(self._name)
        except EngineError as error:  # the weights are there; its side of the group is left over
            logger.warning("%s did not leave the group: %s", self._keeper.engine.url, error)
        if self._group is not None:
            try:
                await asyncio.to_thread(dist.destroy_process_group, self._group)
            except RuntimeError as error:
                logger.warning("group with %s: %s", self._keeper.engine.url, error)
            self._group = None


async def _both(theirs: Awaitable[None], ours: Awaitable[T]) -> T:
    """Result of our side, once both are over: a thread that still sends must not lose its group.
    Raises what theirs raised, which says more, or ours."""
    first, second = await asyncio.gather(theirs, ours, return_exceptions=True)
    for result in (first, second):
        if isinstance(result, BaseException):
            raise result
    return cast(T, second)


def _group_of_rank_0(
    name: str, store: distributed_c10d.Store, size: int, backend: str, limit: timedelta
) -> dist.ProcessGroup:
    """This process's side of a group with ranks that are no ranks of the trainer. torch has no
    public way to that; SGLang makes its side by the same function."""
    helper = cast(Any, distributed_c10d)
    group, _ = helper._new_process_group_helper(
        size,
        0,
        [],
        dist.Backend(backend),
        dist.PrefixStore(name, store),  # pyright: ignore[reportPrivateImportUsage]
        group_name=name,
        timeout=limit,
    )
    helper._world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def _broadcast(bucket: Bucket, group: dist.ProcessGroup) -> None:
    """Sends in order; over when all of it has arrived or the group's time is over."""
    works = [dist.broadcast(tensor, src=0, group=group, async_op=True) for _, tensor in bucket]
    for work in works:
        if work is not None:
            work.wait()
