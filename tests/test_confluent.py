"""Values in the Confluent framing, read and written through a server of a registry's protocol."""

from __future__ import annotations

import base64
import json
import traceback

import pytest

from ledger.avro import DecodeError, UnknownSchema, decode, encode_fact, wire_types
from ledger.facts import FACTS
from ledger.wire.confluent import (
    RegistryError,
    RegistryUnavailable,
    SchemaRegistry,
    from_single_object,
    to_single_object,
)
from ledger.wire.schema import avro_schema
from tests.builders import a_fact, a_turn
from tests.registry import Registry

TURN = a_turn(3, completion_tokens=117)
NOT_FOUND = {"error_code": 40403, "message": "Schema 7 not found"}


def test_a_value_comes_back_through_a_registry_as_it_was(server: Registry) -> None:
    value = encode_fact(TURN)
    framed = from_single_object(value, SchemaRegistry(server.url))
    assert framed == b"\x00\x00\x00\x00\x01" + value[10:]
    assert to_single_object(framed, SchemaRegistry(server.url)) == value
    assert server.subjects == {"rollbook.TurnCompleted": [1]}


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_fact_keeps_its_fingerprint_in_a_registry(server: Registry, name: str) -> None:
    registry = SchemaRegistry(server.url)
    value = encode_fact(a_fact(name))
    framed = from_single_object(value, registry)
    assert decode(to_single_object(framed, SchemaRegistry(server.url))) == a_fact(name)
    assert "__fastavro" not in server.schemas[0]


def test_a_schema_is_asked_for_once(server: Registry) -> None:
    registry = SchemaRegistry(server.url)
    for _ in range(3):
        framed = from_single_object(encode_fact(TURN), registry)
        assert decode(to_single_object(framed, registry)) == TURN
    assert server.requests == [
        "POST /subjects/rollbook.TurnCompleted/versions",
        "GET /schemas/ids/1",
    ]


def test_a_schema_is_found_by_its_number(server: Registry) -> None:
    registry = SchemaRegistry(server.url + "/")
    schema = avro_schema(wire_types()["producer_alive"].cls)
    assert registry.register("rollbook.ProducerAlive", schema) == 1
    assert registry.schema(1) == schema


def test_a_single_object_passes_unchanged_and_without_a_question(server: Registry) -> None:
    value = encode_fact(TURN)
    assert to_single_object(value, SchemaRegistry(server.url)) == value
    assert to_single_object(b"", SchemaRegistry(server.url)) == b""
    assert server.requests == []


# What the registry may answer


def test_a_number_that_no_schema_has_is_an_unknown_schema(server: Registry) -> None:
    with pytest.raises(UnknownSchema) as caught:
        to_single_object(b"\x00\x00\x00\x00\x07body", SchemaRegistry(server.url))
    assert str(caught.value) == f"schema 7 of {server.url} doesn't exist"


@pytest.mark.parametrize("value", [b"\x00", b"\x00\x00\x00\x01"])
def test_half_a_prefix_is_refused(server: Registry, value: bytes) -> None:
    with pytest.raises(DecodeError, match=f"must begin with 5 bytes, got {value.hex()}"):
        to_single_object(value, SchemaRegistry(server.url))


def test_a_foreign_schema_is_no_fact(server: Registry) -> None:
    server.schemas.append('{"type": "record", "name": "Order", "fields": []}')
    value = to_single_object(b"\x00\x00\x00\x00\x01", SchemaRegistry(server.url))
    with pytest.raises(UnknownSchema, match="belongs to no known fact"):
        decode(value)


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (200, {"schema": "syntax = ...", "schemaType": "PROTOBUF"}, UnknownSchema, "got PROTOBUF"),
        (200, {"schema": "{"}, UnknownSchema, "schema 1 of {url} must be an Avro schema: JSON"),
        (200, {"schema": '{"type": "no"}'}, UnknownSchema, "must be an Avro schema: UnknownType"),
        (200, {}, UnknownSchema, "schema 1 of {url} must be an Avro schema: KeyError('schema')"),
        (200, [1], RegistryError, "ids/1 must be answered with an object, got [1]"),
        (200, b"<html>", RegistryError, "GET {url}/schemas/ids/1 must be answered in JSON: Expec"),
        (404, b"no such page", RegistryError, "ids/1 was answered with 404: no such page"),
        (404, NOT_FOUND, UnknownSchema, "schema 1 of {url} doesn't exist"),
        (403, b"no", RegistryError, "GET {url}/schemas/ids/1 was answered with 403: no"),
        (302, b"", RegistryError, "GET {url}/schemas/ids/1 was answered with 302"),
        (429, b"slowly", RegistryUnavailable, "was answered with 429: slowly"),
        (500, b"oops", RegistryUnavailable, "GET {url}/schemas/ids/1 was answered with 500: oops"),
    ],
)
def test_a_bad_answer_is_a_clear_error(
    server: Registry, status: int, body: object, error: type[Exception], message: str
) -> None:
    server.canned = status, body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(error) as caught:
        SchemaRegistry(server.url).schema(1)
    assert type(caught.value) is error
    assert message.format(url=server.url) in str(caught.value)
    assert server.requests == ["GET /schemas/ids/1"]


def test_a_failure_is_not_remembered(server: Registry) -> None:
    registry = SchemaRegistry(server.url)
    framed = from_single_object(encode_fact(TURN), registry)
    server.canned = 503, b"starting"
    with pytest.raises(RegistryUnavailable):
        to_single_object(framed, registry)
    server.canned = None
    assert decode(to_single_object(framed, registry)) == TURN


def test_a_schema_that_the_registry_refuses_is_an_error_with_its_reason(server: Registry) -> None:
    server.canned = 409, b'{"error_code": 409, "message": "incompatible with version 1"}'
    with pytest.raises(RegistryError, match=r"versions was answered with 409: .*incompatible with"):
        from_single_object(encode_fact(TURN), SchemaRegistry(server.url))


def test_a_registration_without_a_number_is_an_error(server: Registry) -> None:
    server.canned = 200, b'{"id": "one"}'
    with pytest.raises(RegistryError, match=r"versions must answer with an id, got {'id': 'one'}"):
        from_single_object(encode_fact(TURN), SchemaRegistry(server.url))


def test_a_registry_that_is_away_is_unavailable() -> None:
    with Registry() as closed:
        url = closed.url
    with pytest.raises(RegistryUnavailable, match=r"ids/1 got no answer: .*Connection refused"):
        SchemaRegistry(url).schema(1)


def test_a_registry_that_does_not_answer_is_unavailable_after_the_timeout(
    server: Registry,
) -> None:
    server.pause_s = 0.5
    with pytest.raises(RegistryUnavailable, match="ids/1 got no answer: timed out"):
        SchemaRegistry(server.url, timeout_s=0.05).schema(1)


# Passwords


def test_user_and_password_of_the_url_are_sent(server: Registry) -> None:
    server.password = base64.b64encode("jo:p@ss/ä".encode()).decode()
    registry = SchemaRegistry(f"http://jo:p%40ss%2F%C3%A4@{server.host}")
    framed = from_single_object(encode_fact(TURN), registry)
    assert decode(to_single_object(framed, registry)) == TURN


def test_no_error_shows_the_password(server: Registry) -> None:
    server.password = "another"
    registry = SchemaRegistry(f"http://jo:hunter2@{server.host}")
    with pytest.raises(RegistryError) as caught:
        registry.schema(1)
    assert str(caught.value) == (
        f"GET {server.url}/schemas/ids/1 was answered with 401:"
        ' {"error_code": 40101, "message": "Unauthorized"}'
    )
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in f"{shown} {registry!r} {registry.url}"


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "ftp://registry:8081",
        "file:///etc/passwd",
        "http://",
        "http://jo:hunter2@",
        "http://jo:hunter2@registry:port",
        "http://jo:hunter2/x@registry:8081",
        "http://jo:12/hunter2@registry:8081",
        "http://jo:hunter2?@registry:8081",
        "http://registry:8081?password=hunter2",
        "http://jo:hunter2@[registry:8081",
        "http://jo:hunter2@re\u2100gistry:8081",
    ],
)
def test_a_url_of_no_registry_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"URL must be http\(s\)://user:password@host:port"
    ) as caught:
        SchemaRegistry(url)
    assert "hunter2" not in str(caught.value)
