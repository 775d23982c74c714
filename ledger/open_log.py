"""`open_log(url)`: the one place that knows which log implementation a URL means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ledger.log import EventLog, LogError

if TYPE_CHECKING:
    from ledger.wire.confluent import SchemaRegistry

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:@\[\]]+)(:\d+)?")
FRAMING_OPTIONS = {"framing", "schema_registry"}
SECRET_OPTION = re.compile(r"password|secret|token|oauth|jaas", re.IGNORECASE)


def open_log(url: str, options: Mapping[str, str] | None = None) -> EventLog:
    """Open the log that `url` names, making its topics where they are missing.

    - `sqlite:///relative/log.db`, `sqlite:////absolute/log.db`
    - `kafka://host:9092,host2:9092/prefix?partitions=12&security_protocol=SASL_SSL`; user and
      password may stand before the hosts (`kafka://user:secret@host:9092/prefix`), and every other
      query parameter goes to the Kafka client. `options` are client options too, for what should
      not stand in a URL.
    - Either with `schema_registry=http://host:8081` (in the URL or the options): values in the
      Confluent framing are read, and with `framing=confluent` written.

    Raises LogError for a URL of another form, LogUnavailable, TopicMisconfigured."""
    bare, given, registry, write = _split_framing(url, options or {})
    log = _open(bare, given)
    if registry is None:
        return log
    from ledger.framed_log import FramedLog

    return FramedLog(log, registry, write=write)


def _open(url: str, options: Mapping[str, str]) -> EventLog:
    if check_url(url) == "sqlite":
        from ledger.sqlite_log import SqliteLog

        return SqliteLog(sqlite_path(url))
    from ledger.kafka_log import KafkaLog

    return KafkaLog.from_url(url, options)


def _split_framing(
    url: str, options: Mapping[str, str]
) -> tuple[str, dict[str, str], SchemaRegistry | None, bool]:
    """The URL and options without what the framing takes, the registry, and whether to write in
    its framing. Raises LogError."""
    check_url(url)
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = dict(options)
    taken = {name: query.pop(name, None) or given.pop(name, None) for name in FRAMING_OPTIONS}
    framing, registry = taken["framing"], taken["schema_registry"]
    if framing not in (None, "confluent", "single_object"):
        raise LogError(f"framing must be confluent or single_object, got {framing!r}")
    if registry is None:
        if framing == "confluent":
            raise LogError("framing=confluent needs schema_registry=URL, got none")
        client = None
    else:
        from ledger.wire.confluent import SchemaRegistry

        try:
            client = SchemaRegistry(registry)
        except ValueError as error:
            raise LogError(f"schema_registry: {error}") from None
    bare = f"{parts.scheme}://{parts.netloc}{parts.path}"
    return bare + (f"?{urlencode(query)}" if query else ""), given, client, framing == "confluent"


def check_log(url: str, options: Mapping[str, str]) -> None:
    """Raise LogError for a URL or options that no log can be opened with, without opening it.

    Also imports what opening it needs: a thread that imports while its process forks leaves a lock
    behind that no thread of the child gets past."""
    bare, given, registry, _ = _split_framing(url, options)
    if registry is not None:
        from ledger import framed_log as framed_log
    if check_url(bare) == "kafka":
        from encodings import idna as idna  # whoever looks up a host's name imports it

        from ledger import kafka_log as kafka_log
        from ledger.kafka.settings import parse

        parse(bare, given)


def check_url(url: str) -> Literal["sqlite", "kafka"]:
    """Which log `url` means, without opening it. Raises LogError for none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise LogError("log URL can't be parsed: a password must be percent-encoded") from None
    if parts.fragment or "\0" in unquote(url):
        raise LogError(f"log URL must have no # and no NUL in it, got {redact(url)!r}")
    if parts.scheme == "sqlite":
        sqlite_path(url)
        return "sqlite"
    if parts.scheme != "kafka":
        raise LogError(f"log URL must start with sqlite:/// or kafka://, got {redact(url)!r}")
    if not parts.netloc or not parts.path.strip("/"):
        raise LogError(f"Kafka log URL must be kafka://host:port/prefix, got {redact(url)!r}")
    for host in parts.netloc.rpartition("@")[2].split(","):
        if not _HOST.fullmatch(host):  # not shown: it may be a password without its @
            raise LogError("Kafka log URL must have hosts of the form host:port before its prefix")
    return "kafka"


def sqlite_path(url: str) -> str:
    """The file that a `sqlite:///path` URL names."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        raise LogError(
            f"SQLite log URL must be sqlite:///path with three slashes, got {redact(url)!r}"
        )
    if unknown := dict(parse_qsl(parts.query, keep_blank_values=True)).keys() - FRAMING_OPTIONS:
        raise LogError(f"a SQLite log has no option {min(unknown)}, got {redact(url)!r}")
    return path


def redact(url: str) -> str:
    """`url` with the user's password and every secret-looking option hidden, fit for messages.

    A password that should have been percent-encoded may have any character in it, so that all
    before the last @ is hidden."""
    scheme, mark, rest = url.partition("://")
    place, _, options = rest.partition("?")
    if "@" in options.partition("=")[0]:  # the ? is in the password
        place, _, options = (part for part in rest.rpartition("@"))
        place, options = f"@{options.partition('?')[0]}", options.partition("?")[2]
    if "@" in place:
        place = f"***@{place.rpartition('@')[2]}"
    query = "&".join(
        f"{name}=***" if SECRET_OPTION.search(name) else f"{name}={_hide_user(value)}"
        for name, value in parse_qsl(options, keep_blank_values=True)
    )
    return f"{scheme}{mark}{place}" + (f"?{query}" if query else "")


def _hide_user(value: str) -> str:
    """An option that is a URL itself may carry a password, too."""
    return re.sub(r"//.*@", "//***@", value)
