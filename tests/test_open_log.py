"""What a URL means, and what is shown of it."""

from __future__ import annotations

import pytest

from ledger.log import LogError
from ledger.open_log import check_url, redact, sqlite_path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///log.db", "sqlite:///log.db"),
        ("kafka://h:9092,h2:9092/lab?partitions=12", "kafka://h:9092,h2:9092/lab?partitions=12"),
        ("kafka://me:hunter2@h:9092/lab", "kafka://***@h:9092/lab"),
        ("kafka://me:hunt@er2@h:9092/lab", "kafka://***@h:9092/lab"),
        ("kafka://me:hunt/er2@h:9092/lab", "kafka://***@h:9092/lab"),
        ("kafka://h/p?sasl_plain_password=hunter2&a=b", "kafka://h/p?sasl_plain_password=***&a=b"),
        ("kafka://h/p?ssl_password=hunter2", "kafka://h/p?ssl_password=***"),
        ("kafka://h/p?schema_registry=http://me:hunter2@r", "kafka://h/p?schema_registry=http://***@r"),
        ("kafka://me:hunt?er2@h:9092/lab?a=b", "kafka://***@h:9092/lab?a=b"),
        ("kafka://me:hunt#er2@h:9092/lab", "kafka://***@h:9092/lab"),
        ("no url", "no url"),
    ],
)  # fmt: skip
def test_what_is_shown_of_a_url_has_no_secret_in_it(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_paths_are_relative_or_absolute_by_their_slashes() -> None:
    assert sqlite_path("sqlite:///runs/log.db") == "runs/log.db"
    assert sqlite_path("sqlite:////var/log.db") == "/var/log.db"
    assert sqlite_path("sqlite:///a%20b.db") == "a b.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must start with sqlite:/// or kafka://"),
        ("postgres://host/db", "must start with sqlite:/// or kafka://"),
        ("sqlite://log.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///log.db?mode=ro", "a SQLite log has no option mode"),
        ("kafka:///prefix", "must be kafka://host:port/prefix"),
        ("kafka://host:9092", "must be kafka://host:port/prefix"),
        ("kafka://user:secret:host:9092/lab", "hosts of the form host:port"),
        ("kafka://me:hunt#er2@h:9092/lab", "no # and no NUL"),
        ("kafka://me:hu]nt[@h:9092/lab", "percent-encoded"),
        ("sqlite:///a%00b.db", "no # and no NUL"),
    ],
)
def test_a_url_of_no_log_is_refused_with_the_rule(url: str, message: str) -> None:
    with pytest.raises(LogError, match=message):
        check_url(url)
