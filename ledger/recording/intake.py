"""The queue between a recorder's callers and its encode thread, bounded in facts and in bytes.

Invariants:

1. A call waits at most `block_s`, and what finds no room is counted as lost.
2. What comes off the queue comes in the order in which it was put on it, and nothing is left on it
   unseen: what came behind the last mark is counted as lost.
3. Putting takes no lock that a signal handler in the same thread could not take again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledger.facts.lists import LossReason
from ledger.recording.losses import Losses
from ledger.tokens import Tokens
from ledger.wire.encoder import Draft, now_us

logger = logging.getLogger(__name__)

QUEUE_BYTES = 512 * 1024 * 1024
"""The queue is full at this many bytes of long texts and token payloads, too."""
CHUNK_DRAFTS = 2_000
CHUNK_BYTES = 64 * 1024 * 1024
"""A chunk ends at this many drafts, or bytes of their texts and payloads: a bound on memory."""
TOKEN_BYTES = 64
"""What a token weighs as Python numbers: id, mask and logprob."""
LONG_TEXT = 1_000
"""Texts below this many characters are not weighed."""
ERROR_EVERY_S = 5.0
"""A full queue is logged this often at most."""
LINGER_S = 0.4
"""How long a first fact waits for company, unless somebody is in a hurry, flushes or waits for
room: a batch costs less per fact, and a thread that sleeps takes nothing from its callers. A book
that follows is to show a fact within a second."""


class Mark:
    """A place in the queue."""

    def __init__(self) -> None:
        self.durable: Future[bool] = Future()
        """True once everything before the mark is durable; False if it never will be."""

    @property
    def reached(self) -> bool:
        """Whether everything before it is durable."""
        return self.durable.done() and not self.durable.cancelled() and self.durable.result()

    def settle(self, durable: bool) -> None:
        """Everything before the mark is durable, or some of it never will be."""
        if not self.durable.done() and self.durable.set_running_or_notify_cancel():
            self.durable.set_result(durable)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is reached in time."""
        try:
            return self.durable.result(min(timeout_s, threading.TIMEOUT_MAX))
        except TimeoutError:
            return False


class _Heavy(NamedTuple):
    draft: Draft
    weight: int


@dataclass(slots=True)
class Taken:
    """A chunk off the queue."""

    drafts: list[Draft] = field(default_factory=list[Draft])
    marks: list[Mark] = field(default_factory=list[Mark])
    """Marks behind some of the drafts; all are reached when the chunk is durable."""
    until_us: int = 0
    """What was recorded before this moment is in this chunk or an earlier one, but for calls that
    were on their way to the queue."""


class Intake:
    """The queue of one incarnation; many threads put, one takes."""

    def __init__(
        self, losses: Losses, limit: int, block_s: float, trouble: Callable[[], str]
    ) -> None:
        """`trouble` says why nothing leaves the queue, for the facts that say what was lost."""
        self.last = Mark()
        """The end of the queue, once `finish` was called."""
        self._losses = losses
        self._limit = limit
        self._block_s = block_s
        self._trouble = trouble
        self._queue: queue.SimpleQueue[Draft | _Heavy | Mark] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._hurry = threading.Event()
        """Set when somebody waits for what is on the queue."""
        self._heavy_in = 0
        self._heavy_out = 0
        self._marks = 0
        self._taken = 0
        self._full = False
        self._next_error = 0.0
        self._ended = False

    def put(self, draft: Draft) -> None:
        """Take a draft, or count it as lost."""
        if self._has_room():
            self._full = False
        elif not self._wait_for_room():
            self._refuse(draft)
            return
        weight = weigh(draft.fields)
        if weight:
            with self._lock:
                self._heavy_in += weight
            self._queue.put(_Heavy(draft, weight))
        else:
            self._queue.put(draft)
        if self._ended:
            self._count_leftovers()

    def mark(self, mark: Mark | None = None) -> Mark:
        """Put a mark behind everything that was put so far."""
        mark = mark or Mark()
        with self._lock:
            self._marks += 1
            self._queue.put(mark)
        self._hurry.set()
        if self._ended:
            self._count_leftovers()
        return mark

    def take(self, until: float) -> Taken:
        """What is on the queue, up to a chunk's size; waits for a first item, and for company for
        it, until the monotonic clock passes `until`. Ends with the last mark.

        Many marks are taken at once, so that a storm of flushes costs few appends."""
        taken = Taken()
        self._hurry.clear()  # a mark that came before is on the queue
        room = CHUNK_BYTES
        wait_s = max(0.0, until - time.monotonic())
        lingered = False
        empty_us = 0
        while len(taken.drafts) < CHUNK_DRAFTS and room > 0:
            try:
                item = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            except queue.Empty:
                if taken.drafts and not taken.marks and not lingered:
                    self._hurry.wait(min(LINGER_S, max(0.0, until - time.monotonic())))
                    lingered = True
                elif empty_us:
                    break
                else:  # look once more: what was recorded before this moment is on the queue by now
                    empty_us, wait_s = now_us(), 0.0
                continue
            wait_s, empty_us = 0.0, 0
            room -= self._sort_in(item, taken)
            if item is self.last:
                break
        taken.until_us = taken.drafts[-1].recorded_us if taken.drafts else empty_us or now_us()
        return taken

    def accepted(self) -> int:
        """Facts taken from callers so far, those still queued and those given up included."""
        with self._lock:
            queued = self._queue.qsize() - self._marks
        return self._taken + queued + self._losses.untaken

    def end(self) -> None:
        """The last mark was taken: whatever came behind it is lost."""
        self._ended = True
        self._count_leftovers()

    def _sort_in(self, item: Draft | _Heavy | Mark, taken: Taken) -> int:
        """Put an item where it belongs; returns its weight."""
        if isinstance(item, Mark):
            with self._lock:
                self._marks -= 1
            taken.marks.append(item)
            return 0
        self._taken += 1
        if isinstance(item, Draft):
            taken.drafts.append(item)
            return 0
        taken.drafts.append(item.draft)
        self._heavy_out += item.weight
        return item.weight

    def _has_room(self) -> bool:
        return self._queue.qsize() < self._limit and self._heavy_in - self._heavy_out < QUEUE_BYTES

    def _wait_for_room(self) -> bool:
        # Only the first of many callers waits: else a full queue would cost each fact block_s.
        self._hurry.set()
        deadline = time.monotonic() + (0.0 if self._full else self._block_s)
        while not self._has_room():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        self._full = False
        return True

    def _refuse(self, draft: Draft) -> None:
        detail = f"queue of {self._limit} facts or {QUEUE_BYTES} bytes was full"
        if why := self._trouble():
            detail += f"; {why}"
        self._full = True
        if time.monotonic() >= self._next_error:
            self._next_error = time.monotonic() + ERROR_EVERY_S
            logger.error("facts are lost, %s", detail)
        self._losses.add(LossReason.QUEUE_FULL, draft.name, detail)

    def _count_leftovers(self) -> None:
        # A caller may have been on its way when the recorder was closed.
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if not isinstance(item, Mark):
                self._losses.add_untold(1)
            elif item is not self.last:
                self.last.durable.add_done_callback(
                    lambda last, mark=item: mark.settle(last.result())
                )


def weigh(fields: Mapping[str, Any]) -> int:
    """About how many bytes of memory a draft's long texts and tokens hold. Never raises."""
    weight = 0
    for value in fields.values():
        # Not isinstance: that asks the value, and a caller's value may do anything.
        if type(value) is str:
            if len(value) > LONG_TEXT:
                weight += len(value)
        elif type(value) is Tokens:
            try:
                weight += TOKEN_BYTES * len(value.ids)
            except Exception:  # whatever a caller took for ids; the encoder refuses it
                weight += TOKEN_BYTES
    return weight
