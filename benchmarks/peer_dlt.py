"""dlt: Kafka -> DuckDB by a resource that yields Arrow tables.

    python peer_dlt.py 127.0.0.1:9092 TOPIC FACTS NEW.duckdb

The resource reads with confluent-kafka and decodes with fastavro. Timed from the first poll to the
end of the load; the pipeline's set-up is excluded.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlt
from confluent_kafka import Consumer
from peer_tools import Clock, Decoder

CHUNK = 20_000
"""Records of one Arrow table at most: about what one insert of ours takes."""


def arrow_tables(bootstrap: str, topic: str, facts: int, clock: Clock) -> Iterator[Any]:
    """FACTS records, a table for each chunk and kind, marked with the table that it goes to."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"dlt-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    decoder = Decoder()
    left = facts
    while left:
        messages = consumer.consume(min(CHUNK, left), timeout=1.0)
        if messages:
            clock.start()
        for message in messages:
            value = message.value()
            decoder.add(message.partition(), message.offset(), message.timestamp()[1], value)
        left -= len(messages)
        for name, table in decoder.tables():
            yield dlt.mark.with_table_name(table, name)
    consumer.close()


def main() -> None:
    """Load FACTS records and print a line of JSON."""
    bootstrap, topic, count, path = sys.argv[1:]
    facts = int(count)
    clock = Clock()
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=f"{path}.dlt",
        destination=dlt.destinations.duckdb(path),
        dataset_name="book",
    )
    resource = dlt.resource(
        arrow_tables(bootstrap, topic, facts, clock), name="facts", write_disposition="append"
    )
    pipeline.run(resource, loader_file_format="parquet")
    clock.stop()
    loaded = _loaded(pipeline)
    if loaded != facts:
        sys.exit(f"expected {facts} facts, got {loaded} in {Path(path).name}")
    print(clock.line(facts))


def _loaded(pipeline: Any) -> int:
    with pipeline.sql_client() as client:
        names = client.execute_sql(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'book'"
            " AND list_contains((SELECT list(table_name) FROM duckdb_columns()"
            " WHERE schema_name = 'book' AND column_name = 'log_offset'), table_name)"
        )
        return sum(client.execute_sql(f"SELECT count(*) FROM {name}")[0][0] for (name,) in names)


if __name__ == "__main__":
    main()
