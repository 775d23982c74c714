"""One spool: facts that the log could not take yet, in a file on disk.

Invariants:

1. A record leaves the spool only after the log's append returned for it, in the order in which it
   came, payloads before the facts that name them. A crash in between appends it twice, and readers
   drop the second.
2. A file that can't be read is never removed: it is renamed to `.damaged`, and the spool goes on
   without it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast

from ledger.log import EventLog, LogError, LogUnavailable, Record, RecordTooLarge, TopicPartition
from ledger.recording.spool_owner import OwnerLock
from ledger.sqlite_log import SqliteFencedWriter, SqliteLog

logger = logging.getLogger(__name__)

APPEND_TIMEOUT_S = 10.0
LOCK_WAIT_S = 2.0
DRAIN_RECORDS = 2_000
DRAIN_BYTES = 8 * 1024 * 1024
"""One append moves at most this many records, or this many bytes and a record."""

Waiting = Literal["tokens", "events"]
Ends = dict[Waiting, int]
"""An offset in each topic of the spool."""


class Spool:
    """One file of records in waiting. Made on the first append, removed when drained.

    One thread appends and another one drains."""

    def __init__(self, path: Path, give_up: Callable[[int, str], None] | None = None) -> None:
        """`give_up` hears how many facts were in a file that had to be set aside, and why."""
        self.path = path
        self._give_up = give_up
        self._owner = OwnerLock(path.with_suffix(".owner"))
        self._note = path.with_suffix(".drained")
        self._guard = threading.Lock()
        self._log: SqliteLog | None = None
        self._writer: SqliteFencedWriter | None = None
        self._drained: Ends = {"tokens": 0, "events": 0}
        self._goal: Ends = {"tokens": 0, "events": 0}
        self._facts = 0
        self._records_max = DRAIN_RECORDS

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return self._log is None

    def append(self, tokens: Sequence[Record], events: Sequence[Record]) -> None:
        """Put records behind those that wait, all or none; on disk when it returns.

        Raises LogError, OSError."""
        with self._guard:
            writer = self._writer or self._make()
            try:
                writer.append({"tokens": tokens, "events": events}, APPEND_TIMEOUT_S)
            except (LogUnavailable, RecordTooLarge):
                raise
            except LogError as error:
                self._set_aside(error)
                raise
            self._facts += len(events)

    def adopt(self) -> bool:
        """Take over the file of a dead owner; False if its owner lives, or nothing is to be had.

        Raises LogUnavailable, OSError."""
        if not self._owner.take():
            return False
        try:
            if self.path.exists():
                self._log = SqliteLog(self.path)
                self._drained = self._noted(self._ends(self._log))
                self._goal = self._drained.copy()
                return True
            self._clear()
        except (LogUnavailable, OSError):
            self.close()
            raise
        except LogError as error:
            self._set_aside(error)
        self.close()
        return False

    def drain(self, log: EventLog, timeout_s: float) -> int:
        """Move some records to `log`, and remove the file once none is left; records moved.

        Raises what `log.append` does in `timeout_s`, and LogUnavailable for a failing disk; with
        nothing lost."""
        with self._guard:
            source = self._log
            try:
                topic, records = self._next()
            except LogUnavailable:
                raise
            except LogError as error:
                self._set_aside(error)
                return 0
        if not records:
            return 0
        try:
            log.append(topic, records, timeout_s)
        except Exception:
            self._records_max = max(1, self._records_max // 2)  # it may have been too much
            raise
        self._records_max = min(DRAIN_RECORDS, 2 * self._records_max)
        with self._guard:
            if self._log is source:  # else an append found the file damaged meanwhile
                self._drained[topic] += len(records)
                self._note_drained()
        return len(records)

    def close(self) -> None:
        """Leave the file, if there is one, to whoever starts next."""
        with self._guard:
            self._close_file()
            with contextlib.suppress(OSError):
                self._owner.release(remove=not self.path.exists())

    def _make(self) -> SqliteFencedWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._owner.take(LOCK_WAIT_S):
            raise LogUnavailable(f"{self.path}: another process took the new spool for a dead one")
        log = SqliteLog(self.path)
        try:
            self._writer = log.fenced_writer("owner")
        except BaseException:
            log.close()
            raise
        self._log = log
        return self._writer

    def _next(self) -> tuple[Waiting, list[Record]]:
        """What to move now; no records once nothing is left, which removes the file."""
        if self._log is None:
            return "events", []
        if self._drained == self._goal:
            self._goal = self._ends(self._log)
        for topic in ("tokens", "events"):
            if self._drained[topic] < self._goal[topic]:
                return topic, self._read(self._log, topic)
        self._close_file()
        with contextlib.suppress(OSError):  # what stays is sent again, which is safe
            self._clear()
        return "events", []

    def _read(self, log: SqliteLog, topic: Waiting) -> list[Record]:
        start = self._drained[topic]
        most = min(self._records_max, self._goal[topic] - start)
        with log.reader({TopicPartition(topic, 0): start}) as reader:
            batch = reader.poll(0, most)[0]
        records: list[Record] = []
        room = DRAIN_BYTES
        for key, value in zip(batch.keys, batch.values, strict=True):
            records.append(Record(key, value))
            room -= len(value)
            if room <= 0:
                break
        return records

    def _ends(self, log: SqliteLog) -> Ends:
        # Facts first: the payloads that they name were appended with them.
        events = log.end_positions("events")[TopicPartition("events", 0)]
        tokens = log.end_positions("tokens")[TopicPartition("tokens", 0)]
        return {"tokens": tokens, "events": events}

    def _noted(self, ends: Ends) -> Ends:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            noted = cast(dict[str, int], json.loads(self._note.read_text()))
            drained: Ends = {"tokens": int(noted["tokens"]), "events": int(noted["events"])}
            if all(0 <= drained[topic] <= ends[topic] for topic in ends):
                return drained
        return {"tokens": 0, "events": 0}  # sending again is safe, sending nothing is not

    def _note_drained(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: then it is sent again after a crash
            partial = self._note.with_suffix(".partial")
            partial.write_text(json.dumps(self._drained))
            partial.replace(self._note)

    def _set_aside(self, error: LogError) -> None:
        """Keep a file that can't be read out of the way."""
        left = self._facts - self._drained["events"]
        self._close_file()
        aside, number = self.path.with_suffix(".damaged"), 1
        while aside.exists():
            number += 1
            aside = self.path.with_suffix(f".damaged{number}")
        for suffix in ("-shm", "-wal", ""):
            with contextlib.suppress(OSError):
                os.rename(f"{self.path}{suffix}", f"{aside}{suffix}")
        for rest in (self._note, Path(f"{self.path}-lock")):
            with contextlib.suppress(OSError):
                rest.unlink(missing_ok=True)
        logger.error("spool %s can't be read, its facts stay in %s: %s", self.path, aside, error)
        if self._give_up is not None:
            self._give_up(left, f"spool set aside as {aside}: {error}")

    def _close_file(self) -> None:
        log, self._log, self._writer = self._log, None, None
        self._drained, self._goal, self._facts = _nothing(), _nothing(), 0
        if log is not None:
            log.close()

    def _clear(self) -> None:
        """Remove what belongs to a spool; the owner's lock stays, for the next append."""
        self._note.unlink(missing_ok=True)
        self._note.with_suffix(".partial").unlink(missing_ok=True)
        for suffix in ("", "-wal", "-shm", "-lock"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)


def _nothing() -> Ends:
    return {"tokens": 0, "events": 0}
