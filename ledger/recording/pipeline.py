"""The way of one incarnation's facts from its callers' queue to where they are durable.

    callers ─▶ intake ─▶ encode thread ─▶ chunks ─▶ deliver thread ─▶ log or spool

Two threads, so that encoding goes on while the log is waited for. The encode thread adds what a
producer says of itself: its pulse, its losses, its end. Neither thread ends before the last mark,
whatever a caller's values or the log's client do.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ledger.avro import FactTooLarge
from ledger.facts.lists import LossReason
from ledger.recording.delivery import Delivery, NotDelivered
from ledger.recording.intake import Intake, Mark
from ledger.recording.losses import Losses
from ledger.wire.encoder import Draft, Encoded, FactEncoder, now_us

logger = logging.getLogger(__name__)

RETRY_S = 0.2
"""When neither log nor spool takes a chunk, it is tried again after this long."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    encoded: Encoded
    facts: int
    """Facts of callers in it."""
    marks: list[Mark]


class Pipeline:
    """Threads of one incarnation. Ends with the intake's last mark."""

    def __init__(
        self,
        encoder: FactEncoder,
        intake: Intake,
        delivery: Delivery,
        losses: Losses,
        alive_every_s: float,
    ) -> None:
        self._encoder = encoder
        self._intake = intake
        self._delivery = delivery
        self._losses = losses
        self._alive_every_s = alive_every_s
        self._give_up_at: float | None = None
        self._chunks: queue.Queue[_Chunk] = queue.Queue(maxsize=2)
        self._threads = [
            threading.Thread(target=loop, name=f"rollbook-{encoder.producer}-{what}", daemon=True)
            for what, loop in (("encode", self._encode_loop), ("deliver", self._deliver_loop))
        ]

    def start(self) -> None:
        """Begin; raises RuntimeError where no thread can be started."""
        self._delivery.start()
        for thread in self._threads:
            thread.start()

    def finish(self, deadline: float) -> None:
        """Put the last mark and wait for the threads to end. From `deadline`, by the monotonic
        clock, on nothing is waited for any more, and what isn't durable is lost."""
        if self._give_up_at is None:
            self._give_up_at = deadline
            self._delivery.hurry(deadline)
            self._intake.mark(self._intake.last)
        for thread in self._threads:
            thread.join(max(0.0, deadline + 1.0 - time.monotonic()))

    @property
    def ended(self) -> bool:
        """Whether nothing goes on any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def _encode_loop(self) -> None:
        next_alive = 0.0
        last = False
        while not last:
            taken = self._intake.take(next_alive)
            last = self._intake.last in taken.marks
            encoded = self._encode(taken.drafts)
            facts = len(encoded.events)
            for loss in self._losses.take():
                self._say(encoded, "producer_lost", loss, now_us())
            marks = [mark for mark in taken.marks if mark is not self._intake.last]
            if encoded.events or encoded.tokens or marks:
                self._chunks.put(_Chunk(encoded, facts, marks))
            # Alone, so that it is in the log only when all before it is: over partitions, the
            # facts of one append come in no order.
            pulse = Encoded()
            if time.monotonic() >= next_alive:
                next_alive = time.monotonic() + self._alive_every_s
                interval = {"interval_s": self._alive_every_s}
                self._say(pulse, "producer_alive", self._count() | interval, taken.until_us)
            if last:
                self._say(pulse, "producer_closed", self._count(), now_us())
            if pulse.events or last:
                self._chunks.put(_Chunk(pulse, 0, [self._intake.last] if last else []))
        self._intake.end()

    def _encode(self, drafts: Sequence[Draft]) -> Encoded:
        if self._out_of_time():
            self._losses.add_untold(len(drafts))
            return Encoded()
        try:
            encoded = self._encoder.encode(drafts)
        except BaseException:
            # A value did something that the encoder doesn't know, such as raising when it is
            # printed, or panicking (no Exception) in Rust. Only its own fact must be lost.
            encoded = self._encode_each(drafts)
        for refused in encoded.refused:
            large = isinstance(refused.error, FactTooLarge)
            reason = LossReason.TOO_LARGE if large else LossReason.INVALID
            self._losses.add(reason, refused.draft.name, str(refused.error))
        if encoded.refused:
            first = encoded.refused[0].error
            logger.error("%d facts refused, first: %s", len(encoded.refused), first)
        return encoded

    def _encode_each(self, drafts: Sequence[Draft]) -> Encoded:
        encoded = Encoded()
        for draft in drafts:
            try:
                one = self._encoder.encode([draft])
            except BaseException as error:
                detail = f"{draft.name} can't be encoded: {type(error).__name__} from a value"
                logger.error("fact refused: %s", detail)
                self._losses.add(LossReason.INVALID, draft.name, detail)
            else:
                encoded.tokens.extend(one.tokens)
                encoded.events.extend(one.events)
                encoded.refused.extend(one.refused)
        return encoded

    def _say(self, encoded: Encoded, name: str, fields: dict[str, Any], at_us: int) -> None:
        """Put a fact of the producer's own behind those of its callers."""
        own = self._encoder.encode([Draft(name, fields, at_us)])
        encoded.events.extend(own.events)
        for refused in own.refused:
            logger.error("%s could not be recorded: %s", name, refused.error)

    def _count(self) -> dict[str, Any]:
        return {"accepted": self._intake.accepted(), "last_seq": self._encoder.next_seq - 1}

    def _deliver_loop(self) -> None:
        last = False
        while not last:
            chunk = self._chunks.get()
            last = self._intake.last in chunk.marks
            durable = self._deliver(chunk)
            for mark in chunk.marks:
                mark.settle(durable)
        self._delivery.finish(self._give_up_at or 0.0)

    def _deliver(self, chunk: _Chunk) -> bool:
        """Try until it is durable, or until there is no more time."""
        while chunk.encoded.tokens or chunk.encoded.events:
            why = ""
            try:
                self._delivery.deliver(chunk.encoded)
                return True
            except NotDelivered as error:
                why = str(error)
            except Exception:  # a bug here must not end the delivery
                logger.exception("facts could not be delivered, trying again")
            if self._out_of_time():
                logger.error("%d facts are lost at close: %s", chunk.facts, why)
                self._losses.add_untold(chunk.facts)
                return False
            time.sleep(RETRY_S)
        return True

    def _out_of_time(self) -> bool:
        return self._give_up_at is not None and time.monotonic() > self._give_up_at
