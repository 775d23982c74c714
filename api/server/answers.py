"""Answers kept by the position that they are of.

While facts arrive, the position changes several times a second; computing every answer anew for
each would take the machine away from the projector. So an answer that isn't of the newest position
is given again while it is young for what it cost, and computed anew behind the caller's back; it
says its position and its age. `Cache-Control: no-cache` asks for a new one.

Invariants: an answer is never given under another position than its own; once the book has moved
on, one that was computed `STALE` times too long ago is never given; of one question, one answer is
computed at a time, unless somebody asks for a new one.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from api.server.places import show
from ledger.log import Positions

YOUNG_S = 1.0
"""An answer is at least this long good enough."""
YOUNG_COSTS = 10
"""And as long as this many computations of it take: so it takes a tenth of the time at most."""
STALE = 3
"""An answer that was good enough so many times over is no longer given."""
KEPT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A body and what it is of."""

    body: bytes
    """JSON."""
    positions: Positions
    """Of the book it was computed from."""
    etag: str
    """Changes with the position and the question."""
    computed_at: float
    """When its computation began, by the monotonic clock."""
    cost_s: float
    """How long that took."""

    @property
    def age_s(self) -> float:
        """Seconds since it was computed."""
        return time.monotonic() - self.computed_at

    @property
    def young_s(self) -> float:
        """How long it is good enough while the book moves on."""
        return max(YOUNG_S, YOUNG_COSTS * self.cost_s)


Compute = Callable[[], tuple[bytes, Positions]]


def make_answer(key: Hashable, compute: Compute) -> Answer:
    """Compute an answer now."""
    began = time.monotonic()
    body, positions = compute()
    digest = hashlib.sha256(f"{key} {show(positions)}".encode()).hexdigest()[:32]
    return Answer(body, positions, f'W/"{digest}"', began, time.monotonic() - began)


class Answers:
    """The answers of one served book."""

    def __init__(self, threads: int = 2) -> None:
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()
        self._bytes = 0
        self._computing: dict[Hashable, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rollbook-answer")

    def ask(
        self, key: Hashable, now: Positions, compute: Compute, *, fresh: bool = False
    ) -> Answer | Future[Answer]:
        """The answer to `key` for a book that is at `now`, a young one of before, or one that is
        being computed."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.positions == now:
                self._kept.move_to_end(key)
                return kept
            if kept is not None and not fresh and kept.age_s < kept.young_s:
                return kept
            running = self._computing.get(key)
            # One that runs already may have begun before what the caller has just recorded.
            if running is None or fresh:
                running = self._pool.submit(self._compute, key, compute)
                self._computing[key] = running
        if kept is not None and not fresh and kept.age_s < STALE * kept.young_s:
            return kept
        return running

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _compute(self, key: Hashable, compute: Compute) -> Answer:
        try:
            answer = make_answer(key, compute)
        except BaseException:
            with self._lock:
                self._computing.pop(key, None)
            raise
        with self._lock:
            self._computing.pop(key, None)
            old = self._kept.pop(key, None)
            if old is not None and old.computed_at > answer.computed_at:
                answer = old  # a fresher one was asked for meanwhile
            self._kept[key] = answer
            self._bytes += len(answer.body) - (len(old.body) if old else 0)
            while self._bytes > KEPT_BYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= len(dropped.body)
        return answer
