"""Producer -> log: the recorder, and a bare kafka-python producer of the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measured import Clock, Measured
from benchmarks.workload import RUN, Maker
from ledger.kafka import settings as kafka_settings
from ledger.kafka.producer import new_producer, placement
from ledger.kafka.topics import topic_name
from ledger.log import reached
from ledger.open_log import open_log
from ledger.recorder import Recorder


def record(url: str, spool: str, seed: int, facts: int) -> Measured:
    """Record facts of a run as fast as calls can be made, and flush."""
    calls = [(draft.name, draft.fields) for draft in Maker(seed).run(facts)]
    recorder = Recorder(
        url, producer="bench", run_id=RUN, spool_dir=Path(spool), queue_limit=facts + 1
    )
    with recorder:
        recorder.flush()  # the log is open now
        with Clock() as clock:
            for name, fields in calls:
                getattr(recorder, name)(**fields)
            if not recorder.flush(600.0) or recorder.lost:
                raise RuntimeError(f"{recorder.lost} facts were lost")
    return clock.measured(facts)


def send(source: str, target: str, facts: int, placed: bool) -> Measured:
    """Send the bytes and keys that lie in the log `source` to the log `target` with a bare
    KafkaProducer of the same settings, and flush. `placed`: partitions were computed before."""
    keys, values = _read(source, facts)
    settings = kafka_settings.parse(target, {})
    with open_log(target) as log:  # makes the topics
        place = placement(len(log.end_positions("events")))
    topic = topic_name(settings, "events")
    producer = new_producer(settings, 10.0)
    partitions = [place(key.decode())[2] if placed else None for key in keys]
    producer.send(topic, b"warm", b"up").get(10.0)
    with Clock() as clock:
        for key, value, partition in zip(keys, values, partitions, strict=True):
            producer.send(topic, value, key, partition=partition)
        producer.flush()
    producer.close()
    return clock.measured(len(values))


def _read(url: str, facts: int) -> tuple[list[bytes], list[bytes]]:
    """The first facts' keys and values, in the order of the log's time."""
    rows: list[tuple[Any, ...]] = []
    with open_log(url) as log, log.reader(log.start_positions("events")) as reader:
        ends = log.end_positions("events")
        while not reached(reader.positions, ends):
            for batch in reader.poll(1.0):
                rows += zip(batch.log_times_us, batch.keys, batch.values, strict=True)
    rows.sort(key=lambda row: row[0])
    rows = rows[:facts]
    return [row[1].encode() for row in rows], [row[2] for row in rows]
