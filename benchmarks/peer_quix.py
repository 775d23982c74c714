"""Quix Streams: Kafka -> DuckDB by a BatchingSink, as its documentation has one written.

    python peer_quix.py 127.0.0.1:9092 TOPIC FACTS NEW.duckdb

The sink decodes with fastavro and inserts one Arrow table for each kind and checkpoint. Timed from
the first record that the sink gets (group join and first fetch excluded) to the last commit.
"""

from __future__ import annotations

import logging
import sys
import uuid
from typing import Any

import duckdb
from peer_tools import Clock, Decoder
from quixstreams import Application
from quixstreams.sinks import BatchingSink, SinkBatch

COMMIT_EVERY = 20_000
"""Records between two checkpoints: about what one insert of ours takes."""


class DuckDbSink(BatchingSink):
    """Inserts what came since the last checkpoint, in one transaction."""

    def __init__(self, path: str, clock: Clock) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._decoder = Decoder()
        self.inserted = 0

    def setup(self) -> None:
        """Open the database."""
        self._connection = duckdb.connect(self._path)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """See BatchingSink."""
        self._clock.start()
        super().add(*args, **kwargs)

    def write(self, batch: SinkBatch) -> None:
        """Decode one partition's records."""
        for item in batch:
            self._decoder.add(batch.partition, item.offset, item.timestamp, item.value)

    def flush(self) -> None:
        """Insert the records of all partitions at once: small inserts cost DuckDB more."""
        super().flush()
        self._connection.execute("BEGIN")
        for name, rows in self._decoder.tables():
            self._connection.register("rows", rows)
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM rows LIMIT 0"
            )
            self._connection.execute(f"INSERT INTO {name} FROM rows")
            self._connection.unregister("rows")
            self.inserted += rows.num_rows
        self._connection.execute("COMMIT")


def main() -> None:
    """Read FACTS records and print a line of JSON."""
    bootstrap, topic, facts, path = sys.argv[1:]
    logging.disable(logging.INFO)
    clock = Clock()
    sink = DuckDbSink(path, clock)
    application = Application(
        broker_address=bootstrap,
        consumer_group=f"quix-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        auto_create_topics=False,
        commit_every=COMMIT_EVERY,
        commit_interval=60.0,
        consumer_extra_config={"isolation.level": "read_committed"},
        loglevel="WARNING",
    )
    source = application.topic(topic, value_deserializer="bytes", key_deserializer="bytes")
    application.dataframe(source).sink(sink)
    application.run(count=int(facts), timeout=60.0, collect=False)
    clock.stop()
    if sink.inserted != int(facts):
        sys.exit(f"expected {facts} facts, got {sink.inserted}")
    print(clock.line(sink.inserted))


if __name__ == "__main__":
    main()
