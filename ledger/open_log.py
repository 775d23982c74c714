"""`open_log(url)`: the one place that knows which log implementation a URL means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from ledger.log import EventLog, LogError

SECRET_OPTION = re.compile(r"password|secret|token|oauth|jaas", re.IGNORECASE)


def open_log(url: str, options: Mapping[str, str] | None = None) -> EventLog:
    """Open the log that `url` names, making its topics where they are missing.

    - `sqlite:///relative/log.db`, `sqlite:////absolute/log.db`
    - `kafka://host:9092,host2:9092/prefix?partitions=12&security_protocol=SASL_SSL`; user and
      password may stand before the hosts (`kafka://user:secret@host:9092/prefix`), and every other
      query parameter goes to the Kafka client. `options` are client options too, for what should
      not stand in a URL.

    Raises LogError for a URL of another form, LogUnavailable, TopicMisconfigured."""
    if check_url(url) == "sqlite":
        from ledger.sqlite_log import SqliteLog

        return SqliteLog(sqlite_path(url))
    from ledger.kafka_log import KafkaLog

    return KafkaLog.from_url(url, options or {})


def check_log(url: str, options: Mapping[str, str]) -> None:
    """Raise LogError for a URL or options that no log can be opened with, without opening it.

    Also imports what opening it needs: a thread that imports while its process forks leaves a lock
    behind that no thread of the child gets past."""
    if check_url(url) == "kafka":
        from ledger import kafka_log

        kafka_log.kafka_settings.parse(url, options)


def check_url(url: str) -> Literal["sqlite", "kafka"]:
    """Which log `url` means, without opening it. Raises LogError for none."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        sqlite_path(url)
        return "sqlite"
    if parts.scheme != "kafka":
        raise LogError(f"log URL must start with sqlite:/// or kafka://, got {redact(url)!r}")
    if not parts.netloc or not parts.path.strip("/"):
        raise LogError(f"Kafka log URL must be kafka://host:port/prefix, got {redact(url)!r}")
    return "kafka"


def sqlite_path(url: str) -> str:
    """The file that a `sqlite:///path` URL names."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or parts.query:
        raise LogError(
            f"SQLite log URL must be sqlite:///path with three slashes, got {redact(url)!r}"
        )
    return path


def redact(url: str) -> str:
    """`url` with the user's password and every secret-looking option hidden, fit for messages."""
    parts = urlsplit(url)
    netloc = re.sub(r"^[^@]*@", "***@", parts.netloc)
    query = "&".join(
        f"{name}=***" if SECRET_OPTION.search(name) else f"{name}={value}"
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")
