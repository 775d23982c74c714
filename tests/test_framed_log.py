"""Logs in the Confluent framing: read whatever comes, write where it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.avro import decode, encode_fact
from ledger.log import LogError, LogUnavailable, Record
from ledger.open_log import open_log, redact
from ledger.recorder import Recorder
from ledger.wire.confluent import SchemaRegistry, from_single_object
from tests.books import append, projected, rows
from tests.builders import a_turn, an_id
from tests.registry import Registry


def test_both_framings_are_projected_from_one_log(
    sqlite_url: str, tmp_path: Path, server: Registry
) -> None:
    plain = [encode_fact(a_turn(number, producer_seq=number)) for number in range(4)]
    registry = SchemaRegistry(server.url)
    with open_log(sqlite_url) as log:
        append(
            log,
            [
                plain[0],
                from_single_object(plain[1], registry),
                b"\x00\x00\x00\x00\x63" + plain[2][10:],
                from_single_object(plain[3], registry),
            ],
        )
    url = f"{sqlite_url}?schema_registry={server.url}"
    done = projected(url, tmp_path / "book")
    assert (done.facts, done.quarantined) == (3, 1)
    assert rows(tmp_path / "book", "SELECT log_offset, reason FROM quarantine") == [
        (2, "unknown_schema")
    ]
    assert projected(sqlite_url, tmp_path / "without").quarantined == 3


def test_a_recorder_writes_the_framing_where_it_is_asked_for(
    log_url: str, tmp_path: Path, server: Registry
) -> None:
    sign = "&" if "?" in log_url else "?"
    url = f"{log_url}{sign}schema_registry={server.url}&framing=confluent"
    with Recorder(url, producer="p", run_id=an_id("run"), spool_dir=tmp_path) as recorder:
        recorder.group_opened(group_id=an_id("group"), task_id="t", expected_size=8)
    assert sorted(server.subjects) == [
        "rollbook.GroupOpened",
        "rollbook.ProducerAlive",
        "rollbook.ProducerClosed",
    ]
    with open_log(log_url) as log:
        with log.reader(log.start_positions("events")) as reader:
            values = [value for batch in reader.poll(5.0) for value in batch.values]
        assert {value[:1] for value in values} == {b"\0"}
    assert projected(url, tmp_path / "book").facts == 3


def test_facts_are_spooled_while_the_registry_is_away(tmp_path: Path, server: Registry) -> None:
    url = f"sqlite:///{tmp_path}/log.db?schema_registry={server.url}&framing=confluent"
    server.canned = (503, b"starting")
    with Recorder(url, producer="p", run_id=an_id("run"), spool_dir=tmp_path) as recorder:
        recorder.group_opened(group_id=an_id("group"), task_id="t", expected_size=8)
        assert recorder.flush(30)
        server.canned = None
    assert projected(url, tmp_path / "book").facts == 3


def test_a_reader_loses_nothing_while_the_registry_is_away(
    sqlite_url: str, server: Registry
) -> None:
    value = encode_fact(a_turn(1))
    with open_log(sqlite_url) as log:
        framed = from_single_object(value, SchemaRegistry(server.url))
        log.append("events", [Record(an_id("group"), framed)])
    with open_log(f"{sqlite_url}?schema_registry={server.url}") as log:
        reader = log.reader(log.start_positions("events"))
        start = reader.positions
        server.canned = (503, b"busy")
        with pytest.raises(LogUnavailable, match="503"):
            reader.poll(1.0)
        assert reader.positions == start
        server.canned = None
        (batch,) = reader.poll(1.0)
        assert decode(batch.values[0]) == a_turn(1)
        assert reader.positions == log.end_positions("events")


def test_fenced_appends_are_framed_too(sqlite_url: str, server: Registry) -> None:
    url = f"{sqlite_url}?schema_registry={server.url}&framing=confluent"
    with open_log(url) as log, log.fenced_writer("w") as writer:
        writer.append({"events": [Record(an_id("group"), encode_fact(a_turn(1)))]})
        with log.reader(log.start_positions("events")) as reader:
            assert decode(reader.poll(1.0)[0].values[0]) == a_turn(1)
    assert server.subjects == {"rollbook.TurnCompleted": [1]}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("framing=confluent", "framing=confluent needs schema_registry=URL, got none"),
        ("framing=protobuf", "framing must be confluent or single_object, got 'protobuf'"),
        ("schema_registry=registry", "schema_registry: "),
    ],
)
def test_settings_that_make_no_framing_are_refused(
    sqlite_url: str, query: str, message: str
) -> None:
    with pytest.raises(LogError, match=message):
        open_log(f"{sqlite_url}?{query}")


def test_a_registry_s_password_is_not_shown() -> None:
    url = "kafka://host:9092/p?schema_registry=https://me:hunter2@registry:8081&framing=confluent"
    assert "hunter2" not in redact(url)
