"""What holds for a Kafka log only: where keys lie, records of other producers, removed records.
`test_log.py` has what every log must do.
"""

from __future__ import annotations

import pytest
from kafka import KafkaProducer
from kafka import TopicPartition as Partition

from ledger.kafka.producer import placement
from ledger.kafka_log import KafkaLog
from ledger.log import PositionOutOfRange, Record, RecordBatch
from ledger.open_log import open_log
from tests.kafka_lab import FIRST, Lab, admin_of, kafka, prefix_of


def test_keys_lie_where_kafkas_own_clients_put_them() -> None:
    place = placement(1000)
    # hashes from Kafka's UtilsTest: 21, foobar, a-little-bit-long-string
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    for key, value in hashes.items():
        assert place(key) == (key.encode(), None, (value & 0x7FFFFFFF) % 1000)


@kafka
def test_records_of_other_producers_come_through_without_headers_and_never_null(lab: Lab) -> None:
    url = lab.url()
    with open_log(url) as log:
        producer = KafkaProducer(bootstrap_servers=lab.bootstrap)
        producer.send(f"{prefix_of(url)}.events", b"no key").get(10)
        producer.send(f"{prefix_of(url)}.events", None, b"\xffno value").get(10)
        producer.send(f"{prefix_of(url)}.events", b"both", b"key", [("name", b"text")]).get(10)
        producer.close()
        log.append("events", [Record("key", b"ours")])
        batches: list[RecordBatch] = []
        with log.reader({FIRST: 0}) as reader:
            while sum(map(len, batches)) < 4:
                batches += reader.poll(5.0)
    assert [key for batch in batches for key in batch.keys] == ["", "\ufffdno value", "key", "key"]
    assert [value for batch in batches for value in batch.values] == [
        b"no key", b"", b"both", b"ours"
    ]  # fmt: skip
    assert [offset for batch in batches for offset in batch.offsets] == [0, 1, 2, 3]


@kafka
def test_a_position_whose_records_were_removed_is_out_of_range(lab: Lab) -> None:
    url = lab.url()
    with open_log(url) as log:
        log.append("events", [Record("key", b"%d" % number) for number in range(10)])
        with log.reader({FIRST: 2}) as reader, admin_of(url) as admin:
            admin.delete_records({Partition(f"{prefix_of(url)}.events", 0): 5})
            for _ in range(2):  # it does not get well by itself
                with pytest.raises(PositionOutOfRange, match="not in the log any more"):
                    reader.poll(5.0)
        assert log.start_positions("events") == {FIRST: 5}
        with pytest.raises(PositionOutOfRange, match="position 4 of events/0 must be between 5"):
            log.reader({FIRST: 4})


@kafka
def test_the_log_shows_itself_by_its_place(kafka_url: str) -> None:
    with open_log(kafka_url) as log:
        assert isinstance(log, KafkaLog)
        assert repr(log) == f"KafkaLog({kafka_url.partition('?')[0]})"
