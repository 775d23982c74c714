"""The topics of a Kafka log: made where they are missing, refused where they would lose facts.

Invariant: a log that opened has three topics with one number of partitions, LogAppendTime and no
compaction, and an `events` topic that keeps everything for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from ledger.kafka import client as kafka_client
from ledger.kafka.client import CLIENT_ERRORS, KafkaAdminClient
from ledger.kafka.client import TopicPartition as Partition
from ledger.kafka.settings import ADMIN, KafkaSettings
from ledger.log import (
    MAX_RECORD_BYTES,
    TOPICS,
    LogError,
    LogUnavailable,
    Topic,
    TopicMisconfigured,
    TopicPartition,
)

CONNECT_TIMEOUT_S = 8.0
PARTITIONS_DEFAULT = 12
MAX_MESSAGE_BYTES = MAX_RECORD_BYTES + 64 * 1024
"""A batch of one largest record, with Kafka's own headers."""

CONFIG = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
}
"""Every topic is made with these; `events` with RETENTION too."""
RETENTION = {"retention.ms": "-1", "retention.bytes": "-1"}
CREATE_TIMEOUT_S = 15.0
"""Most seconds that making topics is tried again."""
UNKNOWN_TOPIC, ALREADY_EXISTS, INVALID_REPLICATION_FACTOR = 3, 36, 38


class Topics(NamedTuple):
    """What opening a log finds out."""

    identity: str
    """Cluster, prefix and the id of `events`, which a recreated topic does not share."""
    partitions: int


def topic_name(settings: KafkaSettings, topic: Topic) -> str:
    """The topic's name on the broker."""
    return f"{settings.prefix}.{topic}"


def open_topics(settings: KafkaSettings) -> Topics:
    """Make what is missing, check what is there.

    Raises LogUnavailable, TopicMisconfigured, and LogError where the broker refuses to make a
    topic."""
    with _admin(settings) as admin:
        return _open(admin, settings)


def remove_records(settings: KafkaSettings, positions: Mapping[TopicPartition, int]) -> None:
    """Remove the records before `positions`. Raises LogUnavailable."""
    before = {
        Partition(topic_name(settings, place.topic), place.partition): offset
        for place, offset in positions.items()
    }
    with _admin(settings) as admin:
        admin.delete_records(before)


@contextlib.contextmanager
def _admin(settings: KafkaSettings) -> Generator[Any]:
    """An admin client; what goes wrong with it is LogUnavailable."""
    try:
        with contextlib.closing(
            KafkaAdminClient(
                **settings.options(
                    ADMIN,
                    bootstrap_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                    request_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                    reconnect_backoff_max_ms=1000,
                )
            )
        ) as admin:
            yield admin
    except CLIENT_ERRORS as error:
        raise unavailable(settings, error) from None


def unavailable(settings: KafkaSettings, error: BaseException) -> LogUnavailable:
    """LogUnavailable that names the broker and what the client said."""
    kind = type(error).__name__
    said = str(error).removeprefix(f"{kind}: ")[:300]
    # kafka-python tells nobody but its log that a login was refused, and tries again.
    login = str(settings.client.get("security_protocol", "")).startswith("SASL")
    return LogUnavailable(
        f"Kafka at {settings.bootstrap} is unavailable{', or refuses the login' if login else ''}:"
        f" {kind}{': ' + said if said else ''}"
    )


def _open(admin: Any, settings: KafkaSettings) -> Topics:
    names: dict[Topic, str] = {topic: topic_name(settings, topic) for topic in TOPICS}
    found = _describe(admin, names)
    missing: list[Topic] = [topic for topic in TOPICS if topic not in found]
    if missing:
        counts = [len(each["partitions"]) for each in found.values()]
        count = counts[0] if counts else settings.partitions or PARTITIONS_DEFAULT
        make_topics(admin, settings, {topic: names[topic] for topic in missing}, count)
        admin.wait_for_topics([names[topic] for topic in missing], timeout_ms=15_000)
        found = _describe(admin, names)
    _check_partitions(settings, {t: len(each["partitions"]) for t, each in found.items()})
    _check_configs(admin, settings, names)
    cluster = admin.describe_cluster()["cluster_id"]
    identity = f"kafka:{cluster}/{settings.prefix}/{found['events']['topic_id']}"
    return Topics(identity, len(found["events"]["partitions"]))


def _describe(admin: Any, names: dict[Topic, str]) -> dict[Topic, dict[str, Any]]:
    """The topics that exist."""
    described: list[dict[str, Any]] = admin.describe_topics(list(names.values()))
    by_name = {each["name"]: each for each in described}
    found: dict[Topic, dict[str, Any]] = {}
    for topic, name in names.items():
        code = by_name[name]["error_code"] if name in by_name else UNKNOWN_TOPIC
        if code == 0:
            found[topic] = by_name[name]
        elif code != UNKNOWN_TOPIC:
            error = kafka_client.error_of(code)
            if not issubclass(error, kafka_client.RetriableError):
                raise LogError(f"can't look at topic {name}: {error.__name__}")
    return found


def make_topics(
    admin: Any, settings: KafkaSettings, names: dict[Topic, str], partitions: int
) -> None:
    """Make these topics; what only this moment refuses is tried again. Another process that makes
    the same ones at the same time is no error. Raises LogError, and what the client raises."""
    wanted: dict[str, Any] = {
        name: {
            "num_partitions": partitions,
            "replication_factor": settings.replication or -1,
            "configs": {**CONFIG, **(RETENTION if topic == "events" else {})},
        }
        for topic, name in names.items()
    }
    deadline = time.monotonic() + CREATE_TIMEOUT_S
    while True:
        answer = admin.create_topics(wanted, timeout_ms=15_000, raise_errors=False)
        for each in answer["topics"]:
            code, said = each["error_code"], each.get("error_message") or ""
            if code in (0, ALREADY_EXISTS):
                del wanted[each["name"]]
            elif time.monotonic() > deadline or not _passes(code, said):
                error = kafka_client.error_of(code).__name__
                raise LogError(f"Kafka refused to make topic {each['name']}: {error} {said}")
        if not wanted:
            return
        time.sleep(0.2)


def _passes(code: int, said: str) -> bool:
    """Whether a refusal is of this moment only. A controller that hasn't heard from its brokers for
    a while has none to put a topic on, and says that the replication factor is wrong."""
    if code == INVALID_REPLICATION_FACTOR:
        return "fenced" in said
    return issubclass(kafka_client.error_of(code), kafka_client.RetriableError)


def _check_partitions(settings: KafkaSettings, counts: dict[Topic, int]) -> None:
    wanted = settings.partitions or counts["events"]
    for topic, count in counts.items():
        if count != wanted:
            rule = (
                "the log URL asks for another number"
                if settings.partitions
                else "all topics of a log have the number that events has"
            )
            raise TopicMisconfigured(
                f"topic {topic_name(settings, topic)} has {count} partitions, but must have"
                f" {wanted}: {rule}. The number is fixed for a topic's life, since it decides where"
                f" a key lies: open the log with partitions={counts['events']}, or with another"
                " prefix"
            )


def _check_configs(admin: Any, settings: KafkaSettings, names: dict[Topic, str]) -> None:
    configs = kafka_client.topic_configs(admin, list(names.values()))
    for topic, name in names.items():
        for key, wanted, rule in _rules(topic):
            value = configs.get(name, {}).get(key)
            if value is None:
                raise LogError(f"can't read {key} of topic {name}: allow DescribeConfigs on it")
            if not _accepted(key, value, wanted):
                raise TopicMisconfigured(
                    f"topic {name} has {key}={value}, but needs {wanted}: {rule}. Mend it with:"
                    f" kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter"
                    f" --entity-type topics --entity-name {name} --add-config {key}={wanted}"
                )


def _rules(topic: Topic) -> list[tuple[str, str, str]]:
    """(setting, value, why) of one topic."""
    rules = [
        ("cleanup.policy", "delete", "compaction would keep only the last record of each key"),
        ("message.timestamp.type", "LogAppendTime", "the time of a record is the log's clock"),
        ("max.message.bytes", str(MAX_MESSAGE_BYTES), "or the broker refuses large records"),
        ("unclean.leader.election.enable", "false", "or acknowledged records may be lost"),
    ]
    if topic == "events":
        rules.append(("retention.ms", "-1", "facts are kept for ever"))
        rules.append(("retention.bytes", "-1", "facts are kept for ever"))
    return rules


def _accepted(key: str, value: str, wanted: str) -> bool:
    if key == "max.message.bytes":
        return int(value) >= int(wanted)
    if key == "cleanup.policy":  # empty is Kafka's "never clean up"
        return "compact" not in value
    return value.lower() == wanted.lower()
