"""A log over another one: passes on whatever a subclass doesn't change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from ledger.log import EventLog, FencedWriter, Positions, Reader, Record, Topic, TopicPartition


class LogOver:
    """An EventLog over `log`. Closing it closes that."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    @property
    def identity(self) -> str:
        return self._log.identity

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        self._log.append(topic, records, timeout_s)

    def append_each(
        self, records: Mapping[Topic, Sequence[Record]], timeout_s: float = 30.0
    ) -> None:
        for topic, of_topic in records.items():  # by `append`, which a subclass may change
            self.append(topic, of_topic, timeout_s)

    def partition_of(self, key: str) -> int:
        return self._log.partition_of(key)

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> FencedWriter:
        return self._log.fenced_writer(name, timeout_s)

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return self._log.reader(positions)

    def start_positions(self, topic: Topic) -> Positions:
        return self._log.start_positions(topic)

    def end_positions(self, topic: Topic) -> Positions:
        return self._log.end_positions(topic)

    def positions_at(self, topic: Topic, time_us: int) -> Positions:
        return self._log.positions_at(topic, time_us)

    def remove_before(self, positions: Mapping[TopicPartition, int]) -> None:
        self._log.remove_before(positions)

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ReaderOver:
    """A Reader over `reader`. Closing it closes that."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
