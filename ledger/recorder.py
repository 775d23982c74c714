"""The Recorder: what an agent loop, a trainer or any other producer holds to record facts.

    with Recorder("kafka://localhost:9092/lab", producer="agent", run_id=run_id) as recorder:
        attempt = recorder.bind(group_id=group_id, slot=0, trajectory_id=trajectory_id)
        attempt.turn_completed(turn_no=0, completion_tokens=117, client_s=1.9)

Invariants:

1. A call never raises, and returns within `block_s` seconds, whatever the state of the log.
2. A fact is durable, in the log or in the spool, once a later `flush()` has returned True.
3. Facts of one thread reach the log in the order of its calls, numbered without a hole over all
   threads; a fact that could not be recorded is counted in a `producer_lost` fact.
4. A pulse (`producer_alive`) every `alive_every_s` seconds bounds what a killed process can have
   recorded unseen; `producer_closed` says that nothing is missing.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import weakref
from functools import cache
from pathlib import Path
from typing import Any, Self

from ledger.avro import wire_types
from ledger.facts import FACTS
from ledger.open_log import check_log
from ledger.recording.calls import RecordCalls
from ledger.recording.delivery import Delivery
from ledger.recording.intake import Intake, Mark
from ledger.recording.losses import Losses
from ledger.recording.pipeline import Pipeline
from ledger.recording.spool import default_root
from ledger.wire.checks import InvalidFact
from ledger.wire.encoder import Draft, FactEncoder, now_us

logger = logging.getLogger(__name__)

MAX_WAIT_S = 1e8
"""A longer time than this is for ever."""


class Recorder(RecordCalls):
    """Records facts of one producer; usable from any thread and from asyncio.

    A child of fork goes on as an incarnation of its own, which begins with its first fact. A child
    that is killed before a flush (`multiprocessing.Pool` ends its workers so) loses what it had
    not flushed, and its first pulse with it: flush at the end of each task."""

    def __init__(
        self,
        log: str,
        *,
        producer: str,
        run_id: str,
        options: dict[str, str] | None = None,
        spool_dir: Path | str | None = None,
        queue_limit: int = 100_000,
        block_s: float = 0.05,
        alive_every_s: float = 10.0,
    ) -> None:
        """`log` is a URL for `open_log`, `options` its client options. The log may be away:
        facts are spooled in `spool_dir` (default: `ledger.recording.spool.default_root`).
        `run_id` is for facts that name no other. A call waits up to `block_s` seconds for room in
        a queue of `queue_limit` facts (fewer, if they are large), then gives the fact up.

        Raises LogError for a URL or options of no log, ValueError for other arguments that no fact
        could be recorded with. Values passed to a call must not be changed later."""
        check_log(log, options or {})
        if queue_limit < 1 or block_s < 0 or not 0 < alive_every_s < threading.TIMEOUT_MAX:
            raise ValueError(
                "Recorder needs queue_limit >= 1, block_s >= 0 and alive_every_s > 0, got"
                f" {queue_limit}, {block_s} and {alive_every_s}"
            )
        self.producer = producer
        self.run_id = str(run_id)
        check_names(self.producer, self.run_id)
        self._log = log
        self._options = dict(options or {})
        self._spool_dir = Path(spool_dir or default_root()).absolute()
        self._queue_limit = queue_limit
        self._block_s = block_s
        self._alive_every_s = alive_every_s
        self._closed = False
        self._prepare()
        self._start()
        _RECORDERS.add(self)

    def _prepare(self) -> None:
        """Make a new incarnation, without its threads."""
        encoder = FactEncoder(self.producer, self.run_id)
        names = (self.producer, encoder.incarnation)
        self.incarnation = encoder.incarnation
        self._losses = Losses()
        delivery = Delivery(self._log, self._options, self._spool_dir, names, self._losses)
        self._delivery = delivery
        self._intake = Intake(
            self._losses, self._queue_limit, self._block_s, lambda: delivery.last_error
        )
        self._pipeline = Pipeline(
            encoder, self._intake, delivery, self._losses, self._alive_every_s
        )
        self._starting = threading.RLock()
        self._recording = False
        self._started = False

    def _start(self) -> None:
        with self._starting:
            if not self._started and not self._closed:
                self._pipeline.start()
                self._started = self._recording = True
                _close_at_exit(self)

    @property
    def lost(self) -> int:
        """Facts given up so far. Each is in a `producer_lost` fact too, if one could be written."""
        return self._losses.total

    @property
    def spooled(self) -> Path | None:
        """The spool that holds facts which the log has not taken yet; None when it has all. They
        are durable, and the next start, or `rollbook drain`, brings them to the log."""
        return self._delivery.waiting

    def bind(self, /, **ids: Any) -> BoundRecorder:
        """The same calls with these fields filled in wherever a fact has them."""
        return BoundRecorder(self, ids)

    def hurry(self) -> None:
        """Say that somebody waits for what was recorded so far: it goes to the log now, and not
        with what is recorded in the next half second. Waits for nothing."""
        self._mark()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until everything recorded so far is durable or counted in `lost`; False if it isn't
        in time."""
        mark = self._mark()
        return mark is None or mark.wait(timeout_s)

    async def aflush(self, timeout_s: float = 30.0) -> bool:
        """`flush` for asyncio. Takes no thread, so any number of tasks may wait."""
        if (mark := self._mark()) is None:
            return True
        durable = asyncio.wrap_future(mark.durable)
        done, _ = await asyncio.wait([durable], timeout=timeout_s)
        return durable in done and durable.result()

    def close(self, timeout_s: float = 30.0) -> bool:
        """Record `producer_closed`, make everything durable and stop. What is spooled is brought
        to the log if it is there, else it waits for the next start. Give it 5 s or more: a log that
        has just gone away is waited for.

        True if everything recorded is durable and nothing was ever given up."""
        with self._starting:  # or a fact in a child of fork could start its threads behind this
            self._closed = True
            self._recording = False
        if self._started:
            # Also the second time: the first may have been interrupted, as by Ctrl-C.
            self._pipeline.finish(time.monotonic() + min(timeout_s, MAX_WAIT_S))
            if not self._pipeline.ended:
                return False
        atexit.unregister(self.close)
        return (not self._started or self._intake.last.reached) and self.lost == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _put(self, name: str, fields: dict[str, Any]) -> None:
        draft = Draft(name, fields, now_us())
        if self._recording or self._can_record(name):
            self._intake.put(draft)

    def _can_record(self, name: str) -> bool:
        """Whether a call comes before the start, as in a child of fork, and not behind the end."""
        why = "the recorder is closed"
        try:
            if not self._closed:
                with self._starting:
                    self._start()
        except RuntimeError as error:  # no more threads: a call must not raise
            why = str(error)
        if self._recording:
            return True
        if self.lost == 0:
            logger.error("%s is lost, and what follows it: %s", name, why)
        self._losses.add_untold(1)
        return False

    def _mark(self) -> Mark | None:
        """A mark behind what was recorded so far; None where nothing was."""
        if not self._started:
            return None
        return self._intake.last if self._closed else self._intake.mark()

    def _restart_after_fork(self) -> None:
        # Threads don't survive a fork, and a queue that nobody empties would lose facts unseen.
        # They start with the first fact: most children record nothing, and one that is about to
        # run another program must not begin to talk to the log.
        _INHERITED.append(self._pipeline)
        if not self._closed:
            self._prepare()


class BoundRecorder(RecordCalls):
    """A recorder with some fields filled in."""

    def __init__(self, recorder: Recorder, ids: dict[str, Any]) -> None:
        self._recorder = recorder
        self._ids = ids
        self._filled: dict[str, dict[str, Any]] = {}

    def bind(self, /, **ids: Any) -> BoundRecorder:
        """These fields, and more."""
        return BoundRecorder(self._recorder, {**self._ids, **ids})

    @property
    def ids(self) -> dict[str, Any]:
        """What is filled in, the run's id included."""
        return {"run_id": self._recorder.run_id, **self._ids}

    def _put(self, name: str, fields: dict[str, Any]) -> None:
        filled = self._filled.get(name)
        if filled is None:
            # A name that no fact has is a slip: it is passed on, and refused with the fact.
            known = wire_types()[name].check.known
            filled = {
                field: value
                for field, value in self._ids.items()
                if field in known or field not in _any_field()
            }
            self._filled[name] = filled
        self._recorder._put(name, {**filled, **fields})  # pyright: ignore[reportPrivateUsage]


def check_names(producer: str, run_id: str) -> None:
    """Raise ValueError for names that every fact would be refused with."""
    pulse = Draft("producer_alive", {"accepted": 0, "last_seq": -1, "interval_s": 1.0}, 0)
    for refused in FactEncoder(producer, run_id).encode([pulse]).refused:
        raise InvalidFact(f"Recorder: {refused.error}")


@cache
def _any_field() -> frozenset[str]:
    return frozenset(name for fact in FACTS for name in wire_types()[fact].check.known) | {"tokens"}


_RECORDERS: weakref.WeakSet[Recorder] = weakref.WeakSet()
_INHERITED: list[Pipeline] = []
"""Of parent processes: kept, since their clients must not run their destructors here."""


def _close_at_exit(recorder: Recorder) -> None:
    """Keep a forgotten recorder alive until its tail is safe."""
    atexit.unregister(recorder.close)  # a child of fork inherits it
    atexit.register(recorder.close)
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    if parent is not None and parent() is not None:
        # A process of multiprocessing ends without atexit.
        from multiprocessing.util import Finalize

        Finalize(None, recorder.close, exitpriority=0)


def _restart_in_child() -> None:
    for recorder in list(_RECORDERS):
        recorder._restart_after_fork()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_restart_in_child)
