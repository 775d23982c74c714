"""What a `kafka://` URL says, checked and sorted into the options of kafka-python's clients.

Invariant: no password leaves this module but towards a client. `KafkaSettings` shows itself without
user, password and options, and errors quote a redacted URL or an option's name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ledger.kafka.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from ledger.log import LogError
from ledger.open_log import redact

PRODUCER: dict[str, Any] = KafkaProducer.DEFAULT_CONFIG
CONSUMER: dict[str, Any] = KafkaConsumer.DEFAULT_CONFIG
ADMIN: dict[str, Any] = KafkaAdminClient.DEFAULT_CONFIG
KNOWN: dict[str, Any] = {**ADMIN, **CONSUMER, **PRODUCER}

FIXED = frozenset(
    [
        "bootstrap_servers",
        "acks",
        "enable_idempotence",
        "transactional_id",
        "retries",
        "partitioner",
        "group_id",
        "group_instance_id",
        "auto_offset_reset",
        "enable_auto_commit",
        "isolation_level",
        "key_serializer",
        "value_serializer",
        "key_deserializer",
        "value_deserializer",
        "allow_auto_create_topics",
        "consumer_timeout_ms",
        "bootstrap_timeout_ms",
        "delivery_timeout_ms",
        "max_block_ms",
        "max_in_flight_requests_per_connection",
        "max_poll_records",
    ]
)
"""Options whose value the log's promises depend on."""

NUMBERS = frozenset({"receive_buffer_bytes", "send_buffer_bytes"})
"""Options that are numbers though their default is None."""

OBJECTS = frozenset({"ssl_context", "sasl_oauth_token_provider", "api_version"})
"""Options that no text can say, though their default is None."""

PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
MAX_PARTITIONS = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings:
    """One log's place and its client options."""

    bootstrap: str
    """`host:port`, several with commas."""
    prefix: str
    partitions: int | None
    """None where the URL leaves it open."""
    replication: int | None
    """None: the broker's default."""
    client: Mapping[str, Any]
    """Options for kafka-python, passwords among them."""

    def __repr__(self) -> str:
        return f"kafka://{self.bootstrap}/{self.prefix}"

    def options(self, defaults: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
        """Arguments for one kind of client: `ours`, overridden by what the URL says."""
        chosen = {**ours, **self.client, "bootstrap_servers": self.bootstrap.split(",")}
        return {name: value for name, value in chosen.items() if name in defaults}


def parse(url: str, options: Mapping[str, str]) -> KafkaSettings:
    """Read a URL of the form that `open_log` describes; `options` win over its query.

    Raises LogError naming the option, never its value."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    prefix = unquote(parts.path)[1:]
    if not hosts or not PREFIX.fullmatch(prefix) or prefix in (".", ".."):
        raise LogError(
            "Kafka log URL must be kafka://host:port/prefix with a prefix of letters, digits,"
            f" '.', '_' and '-', got {redact(url)!r}"
        )
    given = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    partitions = _count("partitions", given.pop("partitions", None), MAX_PARTITIONS)
    replication = _count("replication", given.pop("replication", None), 100)
    client = {name: _value(name, text) for name, text in given.items()}
    if login:
        _add_login(client, login)
    bootstrap = ",".join(_host(host, url) for host in hosts.split(","))
    return KafkaSettings(bootstrap, prefix, partitions, replication, client)


def _host(host: str, url: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):  # [::1] is an address without a port
        name, port = host, "9092"
    if not name or not port.isdigit() or not 0 < int(port) < 65536:
        raise LogError(f"Kafka host must be host:port, got {host!r} in {redact(url)!r}")
    return f"{name}:{port}"


def _add_login(client: dict[str, Any], login: str) -> None:
    user, _, password = login.partition(":")
    client.setdefault("sasl_plain_username", unquote(user))
    client.setdefault("sasl_plain_password", unquote(password))
    client.setdefault("sasl_mechanism", "PLAIN")
    protocol = client.setdefault("security_protocol", "SASL_SSL")
    if not str(protocol).startswith("SASL"):
        raise LogError(
            "a user in the Kafka log URL needs security_protocol SASL_SSL (the default then) or"
            f" SASL_PLAINTEXT, got {protocol!r}"
        )


def _count(name: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) <= most:
        raise LogError(f"{name} must be between 1 and {most}, got {text!r} (Kafka log URL)")
    return int(text)


def _value(name: str, text: str) -> Any:
    """`text` as the type that the option's default has."""
    if name not in KNOWN:
        near = difflib.get_close_matches(name, KNOWN, n=1)
        raise LogError(
            f"unknown Kafka client option {name!r} in the log URL or its options"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    default = KNOWN[name]
    if name in FIXED:
        raise LogError(f"Kafka client option {name!r} is set by the log itself; leave it out")
    if isinstance(default, bool):
        known = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
        if known is None:
            raise LogError(f"Kafka client option {name!r} must be true or false")
        return known
    if isinstance(default, int | float) or name in NUMBERS:
        try:
            return float(text) if isinstance(default, float) else int(text)
        except ValueError:
            raise LogError(f"Kafka client option {name!r} must be a number") from None
    if name in OBJECTS or not isinstance(default, str | None):
        raise LogError(f"Kafka client option {name!r} can't be given as text")
    return text
