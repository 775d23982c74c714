"""What holds for Kafka only: topics and their settings, options and secrets, lost brokers, and what
transactions do to readers. `test_log.py` has what every log must do."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka import TopicPartition as Partition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from deploy.kafka.broker import Broker, free_port
from ledger.kafka import settings as kafka_settings
from ledger.kafka.writer import placement
from ledger.kafka_log import KafkaLog
from ledger.log import (
    EventLog,
    Fenced,
    LogError,
    LogUnavailable,
    PositionOutOfRange,
    Record,
    Topic,
    TopicMisconfigured,
    TopicPartition,
)
from ledger.open_log import open_log

PASSWORD = "hunter2-never-shown"
FIRST = TopicPartition("events", 0)
kafka = pytest.mark.kafka


@dataclass
class Lab:
    """A broker that a test may kill, with a second listener that wants a password."""

    broker: Broker
    bootstrap: str
    sasl: str

    def url(self, partitions: int = 1) -> str:
        return f"kafka://{self.bootstrap}/t{uuid.uuid4().hex[:12]}?partitions={partitions}"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped in its tracks: it takes connections and requests, and answers none."""
        pid = self.broker.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    port, sasl, controller = free_port(), free_port(), free_port()
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}"
        f",CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        ",SASL_PLAINTEXT:SASL_PLAINTEXT",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_alice="{PASSWORD}";',
    }
    broker = Broker(tmp_path_factory.mktemp("lab"), port, settings)
    try:
        yield Lab(broker, broker.start(), f"127.0.0.1:{sasl}")
    finally:
        broker.kill()


def values(log: EventLog, topic: Topic = "events") -> list[bytes]:
    """All values up to the end, in reading order."""
    found: list[bytes] = []
    end = log.end_positions(topic)
    with log.reader(log.start_positions(topic)) as reader:
        while any(reader.positions[place] < end[place] for place in end):
            for batch in reader.poll(1.0):
                found += batch.values
    return found


def wait_for(log: EventLog, value: bytes) -> list[bytes]:
    """All values up to and with `value`; a commit is visible a moment after its append."""
    deadline = time.monotonic() + 20
    while value not in (found := values(log)):
        assert time.monotonic() < deadline, (value, found[-3:])
        time.sleep(0.02)
    return found


def bootstrap_of(url: str) -> str:
    return url.removeprefix("kafka://").partition("/")[0]


def prefix_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


@contextmanager
def admin_of(url: str) -> Iterator[Any]:
    with KafkaAdminClient(bootstrap_servers=bootstrap_of(url)) as admin:
        yield admin


def make_topic(
    url: str, topic: str, configs: dict[str, str] | None = None, partitions: int = 3
) -> None:
    right = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "5000000"}
    if topic == "events":
        right |= {"retention.ms": "-1"}
    name = f"{prefix_of(url)}.{topic}"
    with admin_of(url) as admin:
        admin.create_topics(
            {
                name: {
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": right | (configs or {}),
                }
            }
        )
        admin.wait_for_topics([name])


@contextmanager
def raw_transaction(url: str, name: str, value: bytes) -> Iterator[Any]:
    """A producer of kafka-python's own that has `value` in an open transaction."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap_of(url), transactional_id=f"{prefix_of(url)}.{name}"
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(f"{prefix_of(url)}.events", value, b"key").get(10)
        yield producer
    finally:
        producer._sender.force_close()


# --- topics


@kafka
def test_topics_are_made_so_that_facts_stay(kafka_url: str) -> None:
    open_log(kafka_url).close()
    with admin_of(kafka_url) as admin:
        made = {}
        for topic in ("events", "tokens", "batches"):
            name = f"{prefix_of(kafka_url)}.{topic}"
            resource = ConfigResource(ConfigResourceType.TOPIC, name)
            configs = admin.describe_configs([resource])["topic"][name]
            made[topic] = {
                key: each["value"]
                for key, each in configs.items()
                if each["config_source"] == "DYNAMIC_TOPIC_CONFIG"
            }
            (described,) = admin.describe_topics([name])
            assert len(described["partitions"]) == 3
    common = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": "4259840",
    }
    assert made["tokens"] == made["batches"] == common
    assert made["events"] == common | {"retention.ms": "-1", "retention.bytes": "-1"}


@kafka
def test_a_log_has_12_partitions_unless_the_url_says_otherwise(kafka_url: str) -> None:
    with open_log(kafka_url.partition("?")[0]) as log:
        assert len(log.start_positions("tokens")) == 12


@kafka
def test_many_can_open_a_new_log_at_once(kafka_url: str) -> None:
    identities: list[str] = []

    def open_it() -> None:
        with open_log(kafka_url) as log:
            log.append("events", [Record("key", b"value")])
            identities.append(log.identity)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(identities) == 4
    assert len(set(identities)) == 1


@kafka
@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("retention.ms", "604800000", "-1"),
        ("retention.bytes", "1000000000", "-1"),
        ("cleanup.policy", "compact", "delete"),
        ("cleanup.policy", "compact,delete", "delete"),
        ("message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("max.message.bytes", "1000000", "4259840"),
    ],
)
def test_an_events_topic_that_would_lose_facts_is_refused_with_the_command_that_mends_it(
    kafka_url: str, setting: str, value: str, wanted: str
) -> None:
    make_topic(kafka_url, "events", {setting: value})
    with pytest.raises(TopicMisconfigured) as caught:
        open_log(kafka_url)
    name = f"{prefix_of(kafka_url)}.events"
    assert f"topic {name} has {setting}={value}, but needs {wanted}: " in str(caught.value)
    assert str(caught.value).endswith(
        f"kafka-configs.sh --bootstrap-server {bootstrap_of(kafka_url)} --alter"
        f" --entity-type topics --entity-name {name} --add-config {setting}={wanted}"
    )


@kafka
def test_tokens_and_batches_may_leave_the_log_but_not_be_compacted(kafka_url: str) -> None:
    make_topic(kafka_url, "tokens", {"retention.ms": "86400000"})
    make_topic(kafka_url, "batches", {"cleanup.policy": "compact"})
    with pytest.raises(TopicMisconfigured, match=r"batches has cleanup.policy=compact"):
        open_log(kafka_url)


@kafka
def test_another_number_of_partitions_than_the_url_asks_for_is_refused(kafka_url: str) -> None:
    open_log(kafka_url).close()
    with pytest.raises(TopicMisconfigured, match="has 3 partitions, but must have 4"):
        open_log(kafka_url.replace("partitions=3", "partitions=4"))
    with open_log(kafka_url.partition("?")[0]) as log:
        assert len(log.start_positions("events")) == 3


@kafka
def test_topics_with_different_numbers_of_partitions_are_refused(kafka_url: str) -> None:
    make_topic(kafka_url, "events", partitions=2)
    make_topic(kafka_url, "tokens", partitions=3)
    with pytest.raises(TopicMisconfigured, match="tokens has 3 partitions, but must have 2"):
        open_log(kafka_url.partition("?")[0])


@kafka
def test_a_topic_made_anew_is_another_log(kafka_url: str) -> None:
    with open_log(kafka_url) as log:
        before = log.identity
    with open_log(kafka_url) as log:
        assert log.identity == before
    name = f"{prefix_of(kafka_url)}.events"
    with admin_of(kafka_url) as admin:
        admin.delete_topics([name])
        while admin.describe_topics([name])[0]["error_code"] == 0:
            time.sleep(0.02)
    with open_log(kafka_url) as log:
        assert log.identity != before


@kafka
def test_a_broker_that_refuses_a_topic_is_quoted(kafka_url: str) -> None:
    with pytest.raises(LogError, match=r"refused to make topic .*InvalidReplicationFactor"):
        open_log(kafka_url + "&replication=3")


# --- keys, foreign records, positions


def test_keys_lie_where_kafkas_own_clients_put_them() -> None:
    place = placement(1000)
    # hashes from Kafka's UtilsTest: 21, foobar, a-little-bit-long-string
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    for key, value in hashes.items():
        assert place(key) == (key.encode(), None, (value & 0x7FFFFFFF) % 1000)


@kafka
def test_records_of_other_producers_without_key_or_value_come_through_empty(lab: Lab) -> None:
    url = lab.url()
    with open_log(url) as log:
        producer = KafkaProducer(bootstrap_servers=lab.bootstrap)
        producer.send(f"{prefix_of(url)}.events", b"no key").get(10)
        producer.send(f"{prefix_of(url)}.events", None, b"\xffno value").get(10)
        producer.close()
        with log.reader({FIRST: 0}) as reader:
            batches = reader.poll(5.0) + reader.poll(0.5)
    assert [key for batch in batches for key in batch.keys] == ["", "\ufffdno value"]
    assert [value for batch in batches for value in batch.values] == [b"no key", b""]


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


# --- options and secrets


def test_options_get_the_type_of_their_default() -> None:
    url = "kafka://h1:1,h2/p?linger_ms=20&ssl_check_hostname=false&ssl_cafile=123&partitions=7"
    settings = kafka_settings.parse(url, {"linger_ms": "30", "security_protocol": "SSL"})
    assert (settings.bootstrap, settings.prefix, settings.partitions) == ("h1:1,h2:9092", "p", 7)
    assert settings.client == {
        "linger_ms": 30,
        "ssl_check_hostname": False,
        "ssl_cafile": "123",
        "security_protocol": "SSL",
    }


def test_a_login_in_the_url_means_sasl_over_tls() -> None:
    settings = kafka_settings.parse("kafka://al%40ice:pa%2Fss@host/p", {})
    assert settings.client == {
        "sasl_plain_username": "al@ice",
        "sasl_plain_password": "pa/ss",
        "sasl_mechanism": "PLAIN",
        "security_protocol": "SASL_SSL",
    }
    with pytest.raises(LogError, match="needs security_protocol SASL_SSL"):
        kafka_settings.parse("kafka://alice:x@host/p?security_protocol=SSL", {})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"sasl_plain_pasword={PASSWORD}", "unknown .*'sasl_plain_pasword'.*'sasl_plain_password'"),
        ("acks=1", "'acks' is set by the log itself"),
        ("linger_ms=soon", "'linger_ms' must be a number"),
        ("ssl_check_hostname=perhaps", "'ssl_check_hostname' must be true or false"),
        ("ssl_context=x", "ssl_context"),
        ("partitions=0", "partitions must be between 1 and 10000, got '0'"),
    ],
)
def test_a_wrong_option_is_named_without_its_secret(query: str, message: str) -> None:
    with pytest.raises(LogError, match=message) as caught:
        kafka_settings.parse(f"kafka://host/prefix?{query}", {})
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("url", ["kafka://host", "kafka:///p", "kafka://h:x/p", "kafka://h/a%20b"])
def test_a_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(LogError, match=r"must be (kafka://host:port/prefix|host:port)"):
        kafka_settings.parse(url, {})


@kafka
def test_a_password_reaches_the_broker_and_nothing_else(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    query = "security_protocol=SASL_PLAINTEXT&partitions=1"
    url = f"kafka://alice:{PASSWORD}@{lab.sasl}/t{uuid.uuid4().hex[:8]}?{query}"
    with open_log(url) as log:
        log.append("events", [Record("key", b"over SASL")])
        with log.fenced_writer("writer") as writer:
            writer.append({"events": [Record("key", b"fenced")]})
        assert wait_for(log, b"fenced") == [b"over SASL", b"fenced"]
        assert PASSWORD not in repr(log)
    with pytest.raises(LogUnavailable) as caught:
        open_log(url.replace(PASSWORD, PASSWORD + "-wrong"))
    assert f"Kafka at {lab.sasl} is unavailable, or refuses the login" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert "SaslAuthenticateRequest(***)" in caplog.text  # else this test looks at nothing
    assert PASSWORD not in caplog.text


# --- lost brokers


@kafka
def test_opening_fails_within_ten_seconds_where_no_broker_is() -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(LogUnavailable, match=f"Kafka at 127.0.0.1:{port} is unavail") as caught:
        open_log(f"kafka://alice:{PASSWORD}@127.0.0.1:{port}/p?security_protocol=SASL_PLAINTEXT")
    assert time.monotonic() - began < 10
    assert PASSWORD not in str(caught.value)


@kafka
def test_a_broker_that_comes_back_finds_writers_and_readers_waiting(lab: Lab) -> None:
    with open_log(lab.url()) as log, log.reader({FIRST: 0}) as reader:
        log.append("events", [Record("key", b"before")])
        assert [batch.values for batch in reader.poll(5.0)] == [[b"before"]]
        lab.broker.kill()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(LogUnavailable):
                log.append("events", [Record("key", b"away")], timeout_s=1.0)
            assert time.monotonic() - began < 2.0
        assert reader.poll(0.5) == []
        lab.broker.start()
        log.append("events", [Record("key", b"after")])
        found: list[bytes] = []
        while b"after" not in found:
            for batch in reader.poll(5.0):
                found += batch.values
        assert found == [b"after"]  # what was never sent is not sent later either


@kafka
def test_nothing_is_lost_or_reordered_when_the_broker_is_killed_during_appends(lab: Lab) -> None:
    with open_log(lab.url(3)) as log:
        appended = stop = failures = 0

        def write() -> None:
            nonlocal appended, failures
            while not stop:
                numbers = range(appended, appended + 200)
                records = [Record(f"key {n % 5}", b"%d" % n) for n in numbers]
                try:
                    log.append("events", records, timeout_s=1.0)
                    appended += 200
                except LogUnavailable:
                    failures += 1

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(2):
            before = appended
            while appended < before + 600:
                time.sleep(0.01)
            lab.broker.kill()
            lab.broker.start()
        while appended < before + 1200:
            time.sleep(0.01)
        stop = 1
        writer.join()
        first_seen: dict[int, list[int]] = {}
        seen: set[int] = set()
        for number in map(int, values(log)):
            if number not in seen:
                seen.add(number)
                first_seen.setdefault(number % 5, []).append(number)
    assert failures > 0
    assert seen.issuperset(range(appended))
    assert all(numbers == sorted(numbers) for numbers in first_seen.values())


@kafka
def test_nothing_of_a_failed_append_arrives_behind_a_later_one(lab: Lab) -> None:
    with open_log(lab.url()) as log:
        log.append("events", [Record("key", b"first")])
        large = [Record("key", b"%d" % n + os.urandom(400_000)) for n in range(5)]
        with lab.frozen(), pytest.raises(LogUnavailable):
            log.append("events", large, timeout_s=1.0)  # five batches, of which one was sent
        log.append("events", [Record("key", b"later")], timeout_s=20.0)
        assert values(log)[-1] == b"later"
        assert len(values(log)) <= 3


# --- transactions


@kafka
def test_a_writer_that_wakes_up_inside_its_transaction_is_fenced_by_a_newer_one(
    kafka_url: str,
) -> None:
    with open_log(kafka_url) as log, raw_transaction(kafka_url, "writer", b"old") as old:
        with log.fenced_writer("writer") as new:
            old.send(f"{prefix_of(kafka_url)}.events", b"zombie", b"key")
            old.flush(10)
            with pytest.raises(KafkaError):
                old.commit_transaction()
            new.append({"events": [Record("key", b"new")]})
        assert wait_for(log, b"new") == [b"new"]


@kafka
def test_an_older_writer_stays_fenced(kafka_url: str) -> None:
    with open_log(kafka_url) as log, log.fenced_writer("writer") as old:
        old.append({"events": [Record("key", b"old")]})
        with log.fenced_writer("writer") as new:
            for _ in range(3):
                with pytest.raises(Fenced, match=r"\.writer' is fenced"):
                    old.append({"events": [Record("key", b"zombie")]})
            new.append({"events": [Record("key", b"new")]})
        assert wait_for(log, b"new") == [b"old", b"new"]


@kafka
def test_a_killed_writers_transaction_holds_up_readers_until_there_is_a_new_writer(
    kafka_url: str,
) -> None:
    with open_log(kafka_url) as log:
        script = (
            "import os, sys; from tests.test_kafka_log import raw_transaction\n"
            f"with raw_transaction({kafka_url!r}, 'writer', b'half'): os.kill(os.getpid(), 9)"
        )
        child = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1])
        assert child.returncode == -signal.SIGKILL
        log.append("events", [Record("key", b"behind")])
        assert values(log) == []
        with log.fenced_writer("writer") as writer:
            writer.append({"events": [Record("key", b"new")]})
            assert wait_for(log, b"new") == [b"behind", b"new"]


@kafka
def test_readers_reach_the_end_behind_transaction_markers(kafka_url: str) -> None:
    with open_log(kafka_url) as log, log.fenced_writer("writer") as writer:
        for number in range(3):
            writer.append({"events": [Record("key", b"%d" % number)]})
        wait_for(log, b"2")
        (end,) = set(log.end_positions("events").values()) - {0}
        assert end == 6  # three records, three markers
        assert values(log) == [b"0", b"1", b"2"]


@kafka
def test_a_fenced_append_is_whole_or_absent_when_the_broker_is_killed(lab: Lab) -> None:
    with open_log(lab.url(2)) as log:
        writer = log.fenced_writer("writer")
        appended: set[int] = set()
        number = 0
        killer = threading.Thread(target=lambda: (lab.broker.kill(), lab.broker.start()))
        while number < 20 or killer.is_alive():
            if number == 10:
                killer.start()
            events = [Record(f"key {n}", b"%d" % number) for n in range(4)]
            try:
                writer.append({"events": events}, timeout_s=2.0)
                appended.add(number)
            except (LogUnavailable, Fenced):
                writer.close()
                while True:
                    try:
                        writer = log.fenced_writer("writer", timeout_s=2.0)
                        break
                    except LogUnavailable:
                        pass
            number += 1
        writer.append({"events": [Record(f"key {n}", b"last") for n in range(4)]})
        writer.close()
        deadline = time.monotonic() + 20
        while (found := values(log)).count(b"last") < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
    counts = {value: found.count(value) for value in found}
    assert set(counts.values()) == {4}
    assert {b"%d" % each for each in appended} <= set(counts)


@kafka
def test_a_fenced_writer_goes_on_after_a_broker_that_hung(lab: Lab) -> None:
    with open_log(lab.url()) as log, log.fenced_writer("writer") as writer:
        writer.append({"events": [Record("key", b"before")]})
        with lab.frozen(), pytest.raises(LogUnavailable):
            writer.append({"events": [Record("key", b"hung")]}, timeout_s=1.0)
        writer.append({"events": [Record("key", b"after")]}, timeout_s=20.0)
        found = wait_for(log, b"after")
        assert [value for value in found if value != b"hung"] == [b"before", b"after"]


@kafka
def test_the_log_shows_itself_by_its_place(kafka_url: str) -> None:
    with open_log(kafka_url) as log:
        assert isinstance(log, KafkaLog)
        assert repr(log) == f"KafkaLog({kafka_url.partition('?')[0]})"
