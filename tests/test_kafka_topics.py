"""Kafka topics: how they are made, which settings are refused, and which topics are one log."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from ledger.kafka.settings import parse
from ledger.kafka.topics import make_topics
from ledger.log import LogError, Record, Topic, TopicMisconfigured
from ledger.open_log import open_log
from tests.kafka_lab import admin_of, bootstrap_of, kafka, prefix_of


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


class Controller:
    """An admin client whose controller has fenced its brokers for some calls. A real one does that
    while its machine is too busy for heartbeats, which no test can bring about at will."""

    def __init__(self, fenced: int, code: int = 38, said: str = "All brokers are fenced.") -> None:
        self.fenced, self.code, self.said = fenced, code, said
        self.asked: list[set[str]] = []

    def create_topics(self, wanted: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.asked.append(set(wanted))
        answers = [{"name": name, "error_code": 0} for name in wanted]
        if len(self.asked) <= self.fenced:
            answers[-1] |= {"error_code": self.code, "error_message": self.said}
        return {"topics": answers}


def test_topics_that_a_fenced_broker_has_no_room_for_are_made_later() -> None:
    names: dict[Topic, str] = {"events": "t.events", "tokens": "t.tokens"}
    controller = Controller(fenced=2)
    make_topics(controller, parse("kafka://127.0.0.1:9/t", {}), names, 3)
    assert controller.asked == [{"t.events", "t.tokens"}, {"t.tokens"}, {"t.tokens"}]


@pytest.mark.parametrize(("code", "said"), [(38, "larger than available brokers"), (29, "denied")])
def test_topics_that_can_never_be_made_are_refused_at_once(code: int, said: str) -> None:
    controller = Controller(fenced=99, code=code, said=said)
    with pytest.raises(LogError, match=f"refused to make topic t.events: .* {said}"):
        make_topics(controller, parse("kafka://127.0.0.1:9/t", {}), {"events": "t.events"}, 3)
    assert len(controller.asked) == 1
