"""Options of a Kafka log, and its secrets, which are in no message."""

from __future__ import annotations

import logging
import uuid

import pytest

from ledger.kafka import settings as kafka_settings
from ledger.log import LogError, LogUnavailable, Record
from ledger.open_log import open_log
from tests.kafka_lab import PASSWORD, Lab, kafka, wait_for


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
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr("ledger.kafka.topics.CONNECT_TIMEOUT_S", 2.0)
    with pytest.raises(LogUnavailable) as caught:
        open_log(url.replace(PASSWORD, PASSWORD + "-wrong"))
    assert f"Kafka at {lab.sasl} is unavailable, or refuses the login" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert "SaslAuthenticateRequest(***)" in caplog.text  # else this test looks at nothing
    assert PASSWORD not in caplog.text
