"""Facts of a consumer that decides: numbered, and appended by the only writer of its name.

    append ─▶ in the log ─▶ read back
         └──▶ in doubt ─▶ settle ─▶ read to the end ─▶ read back, or append the same bytes again

Invariants:

1. Facts of one append, and the batch with them, are in the log all or not at all.
2. An append whose outcome is unknown is neither given up nor repeated before that outcome stands:
   nothing is decided twice, and no number is left out.
3. Once a newer writer of the name exists, nothing more is written: every call raises Fenced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ledger.facts import Fact
from ledger.log import EventLog, Fenced, LogError, LogUnavailable, Record, Topic
from ledger.wire.encoder import Draft, FactEncoder, now_us

logger = logging.getLogger(__name__)

PULSE_S = 10.0
"""Seconds between two `producer_alive`."""
APPEND_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 15.0


class _Append(NamedTuple):
    """What goes into the log at once."""

    numbers: range
    """Of its facts."""
    records: dict[Topic, list[Record]]


class CanNotRecord(LogError):
    """A decision that is no valid fact, such as one over the size of a fact."""


class FencedRecorder:
    """The only recorder of its name; making another one fences this one."""

    def __init__(self, log: EventLog, producer: str, run_id: str) -> None:
        """Raises LogUnavailable."""
        self.name = f"{producer}:{run_id}"
        self._encoder = FactEncoder(producer, run_id)
        self._writer = log.fenced_writer(self.name, APPEND_TIMEOUT_S)
        self._unread: set[int] = set()
        self._doubtful: list[_Append] = []
        self._next_pulse = 0.0
        self._accepted = 0

    @property
    def incarnation(self) -> str:
        """Of this start."""
        return self._encoder.incarnation

    @property
    def unread(self) -> bool:
        """Whether anything that was appended hasn't been read back."""
        return bool(self._unread)

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if the last append is in the log."""
        return bool(self._doubtful)

    def read_back(self, fact: Fact) -> None:
        """A fact was read from the log."""
        if fact.incarnation == self.incarnation:
            self._unread.discard(fact.producer_seq)

    def append(self, drafts: Sequence[Draft], batches: Sequence[Record] = ()) -> None:
        """Append facts, and a batch with them. When the log goes away meanwhile, it is in doubt.

        Raises Fenced, CanNotRecord, RecordTooLarge."""
        self._accepted += len(drafts)
        self._write(self._encoded(drafts, batches))

    def pulse(self) -> None:
        """Record `producer_alive` when it is due. Raises Fenced."""
        if time.monotonic() >= self._next_pulse and not self.in_doubt:
            self._next_pulse = time.monotonic() + PULSE_S
            self._write(self._encoded([self._own("producer_alive", interval_s=PULSE_S)]))

    def settle(self) -> bool:
        """Wait until the outcome of what is in doubt stands; False if it doesn't yet. Then all
        that was appended can be read before the log's end. Raises Fenced."""
        try:
            self._append({}, SETTLE_TIMEOUT_S)
        except LogUnavailable as error:
            logger.warning("waiting for the log: %s", error)
            return False
        # A commit is visible a moment after it stands. A transaction begins only when the one
        # before it is visible everywhere, so one more proves it.
        return self._write(self._encoded([self._own("producer_alive", interval_s=PULSE_S)]))

    def resolve(self) -> None:
        """Everything up to the log's end was read since `settle`: what didn't come was never
        appended, and is appended now. Raises Fenced."""
        doubtful, self._doubtful = self._doubtful, []
        for append in doubtful:
            if self._unread.isdisjoint(append.numbers):
                continue  # it had come through
            if self.in_doubt:
                self._doubtful.append(append)  # in order, behind the one that failed again
            else:
                self._write(append)

    def close(self) -> None:
        """Record `producer_closed` and stop. Raises Fenced."""
        try:
            if not self.in_doubt:
                self._write(self._encoded([self._own("producer_closed")]))
        finally:
            self._writer.close()

    def abandon(self) -> None:
        """Stop without a word."""
        self._writer.close()

    def _own(self, name: str, **fields: object) -> Draft:
        count = {"accepted": self._accepted, "last_seq": self._encoder.next_seq - 1}
        return Draft(name, count | fields, now_us())

    def _encoded(self, drafts: Sequence[Draft], batches: Sequence[Record] = ()) -> _Append:
        first = self._encoder.next_seq
        encoded = self._encoder.encode(drafts)
        if encoded.refused:
            raise CanNotRecord(f"a decision can't be recorded: {encoded.refused[0].error}")
        return _Append(
            range(first, self._encoder.next_seq),
            {"batches": list(batches), "events": encoded.events},
        )

    def _write(self, append: _Append) -> bool:
        """Whether it is in the log for sure. Else it is in doubt."""
        self._unread.update(append.numbers)
        try:
            self._append(append.records, APPEND_TIMEOUT_S)
        except LogUnavailable as error:
            logger.warning("the outcome of an append is unknown: %s", error)
            self._doubtful.append(append)
            return False
        return True

    def _append(self, records: Mapping[Topic, Sequence[Record]], timeout_s: float) -> None:
        try:
            self._writer.append(records, timeout_s)
        except Fenced as error:
            raise Fenced(
                f"another process was started to decide run {self._encoder.run_id} and goes on from"
                f" what is in the log; this one has ended, and nothing counts twice ({error})"
            ) from error
