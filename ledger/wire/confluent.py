"""The Confluent framing, for logs that are shared with a Schema Registry: a zero byte, the
registry's number of the schema (4 bytes, big-endian), the body.

Inside, a fact is always in the single-object encoding. Values are framed anew at the edge, so all
readers work on them unchanged:

    registry = SchemaRegistry("https://user:password@registry.example:8081")
    decode(to_single_object(value, registry))
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, cast

from ledger.avro import HEADER_BYTES, DecodeError, UnknownSchema, header_of, writer_schema_of
from ledger.wire.schema import Schema

MAGIC = b"\x00"
PREFIX_BYTES = 5
TIMEOUT_S = 10.0

_JSON = "application/vnd.schemaregistry.v1+json"
_SCHEMA_NOT_FOUND = "40403"
"""Its error code: a 404 without it comes from a wrong URL."""


class RegistryError(Exception):
    """The registry refused, or answered what can't be understood."""


class RegistryUnavailable(RegistryError):
    """The registry can't be reached now. The same call may succeed later."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A password is sent to nobody but the host that it was given for."""


class SchemaRegistry:
    """A client of one registry. It keeps what it learned, since a schema's number never changes.
    Thread-safe."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """`url` may carry `user:password@`, which no message shows. Raises ValueError."""
        self.url, credentials = _split(url)
        self._timeout_s = timeout_s
        self._headers = {"Accept": _JSON, "Content-Type": _JSON}
        if credentials:
            token = base64.b64encode(urllib.parse.unquote(credentials).encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._known: dict[int, tuple[Schema, bytes]] = {}
        self._ids: dict[tuple[str, bytes], int] = {}

    def schema(self, schema_id: int) -> Schema:
        """The Avro schema of a number. Raises UnknownSchema, RegistryError."""
        return self._look_up(schema_id)[0]

    def header(self, schema_id: int) -> bytes:
        """(10,) its header in the single-object encoding. Raises UnknownSchema, RegistryError."""
        return self._look_up(schema_id)[1]

    def _look_up(self, schema_id: int) -> tuple[Schema, bytes]:
        if schema_id not in self._known:
            place = f"schema {schema_id} of {self.url}"
            answer = self._call("GET", f"/schemas/ids/{schema_id}", None)
            if answer is None:
                raise UnknownSchema(f"{place} doesn't exist")
            if (kind := answer.get("schemaType", "AVRO")) != "AVRO":
                raise UnknownSchema(f"{place} must be AVRO, got {kind}")
            try:
                schema = cast(Schema, json.loads(answer["schema"]))
                self._known[schema_id] = schema, header_of(schema)
            except Exception as error:  # the parser raises whatever a foreign schema leads it to
                raise UnknownSchema(f"{place} must be an Avro schema: {error!r}") from None
        return self._known[schema_id]

    def register(self, subject: str, schema: Schema) -> int:
        """The number of a schema, which is registered under `subject` if it isn't yet.

        Raises RegistryError, with the registry's reason when it refuses."""
        key = (subject, header_of(schema))
        if key not in self._ids:
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
            answer = self._call("POST", path, {"schema": json.dumps(schema)})
            if answer is None or type(answer.get("id")) is not int:
                raise RegistryError(f"{self.url}{path} must answer with an id, got {answer}")
            self._ids[key] = answer["id"]
        return self._ids[key]

    def _call(self, method: str, path: str, body: object) -> dict[str, Any] | None:
        """The registry's answer; None when it has no such schema."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers, method=method)
        place = f"{method} {self.url}{path}"
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read(500).decode("utf-8", "replace")
            if error.code == 404 and _SCHEMA_NOT_FOUND in reason:
                return None
            kind = RegistryUnavailable if error.code >= 500 or error.code == 429 else RegistryError
            raise kind(f"{place} was answered with {error.code}: {reason}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RegistryUnavailable(f"{place} got no answer: {reason}") from None
        except ValueError as error:
            raise RegistryError(f"{place} must be answered in JSON: {error}") from None
        if not isinstance(answer, dict):
            raise RegistryError(f"{place} must be answered with an object, got {answer!r}")
        return cast(dict[str, Any], answer)


def _split(url: str) -> tuple[str, str]:
    """The URL without its credentials, and those. Messages don't show it: where it is wrong, any
    part of it may be a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if right and "@" not in parts.path and not parts.query and not parts.fragment:
            credentials, _, host = parts.netloc.rpartition("@")
            return f"{parts.scheme}://{host}{parts.path.rstrip('/')}", credentials
    except ValueError:
        pass
    raise ValueError(
        "a registry's URL must be http(s)://user:password@host:port with user and password, if"
        " any, percent-encoded"
    )


def to_single_object(value: bytes, registry: SchemaRegistry) -> bytes:
    """A value in either framing -> in the single-object encoding.

    Raises DecodeError for less than a whole prefix, UnknownSchema, RegistryError."""
    if value[:1] != MAGIC:
        return value
    if len(value) < PREFIX_BYTES:
        raise DecodeError(f"a Confluent value must begin with 5 bytes, got {value.hex()}")
    schema_id = int.from_bytes(value[1:PREFIX_BYTES], "big")
    return registry.header(schema_id) + value[PREFIX_BYTES:]


def from_single_object(value: bytes, registry: SchemaRegistry) -> bytes:
    """An encoded fact or payload -> in the Confluent framing, its schema registered under the
    record's full name (RecordNameStrategy), `rollbook.TurnCompleted`.

    Raises DecodeError, UnknownSchema, RegistryError."""
    schema = writer_schema_of(value).schema
    plain = {name: part for name, part in schema.items() if not name.startswith("__fastavro")}
    schema_id = registry.register(schema["name"], plain)
    return MAGIC + schema_id.to_bytes(4, "big") + value[HEADER_BYTES:]
