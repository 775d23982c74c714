"""What both peers need: facts decoded with fastavro into Arrow tables, and the result line.

Run with the packages of benchmarks/requirements.txt, not with ours: nothing here imports them.
"""

from __future__ import annotations

import io
import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

HEADER_BYTES = 10
"""Avro's single-object encoding: two bytes of marker, eight of fingerprint."""

_SCHEMAS = Path(__file__).parent.parent / "schemas"


def kinds_by_header() -> dict[bytes, tuple[str, Any]]:
    """Name and parsed schema of every kind of fact, by the first ten bytes of its records."""
    found: dict[bytes, tuple[str, Any]] = {}
    for file in _SCHEMAS.glob("*.avsc"):
        schema = fastavro.parse_schema(json.loads(file.read_text()))
        digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        found[b"\xc3\x01" + bytes.fromhex(digest)] = (file.stem, schema)
    return found


class Decoder:
    """Collects records and gives them as one Arrow table for each kind."""

    def __init__(self) -> None:
        self._kinds = kinds_by_header()
        self._rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._arrow: dict[str, pa.Schema] = {}

    def add(self, partition: int, offset: int, log_time_ms: int, value: bytes) -> None:
        """Decode one record."""
        name, schema = self._kinds[value[:HEADER_BYTES]]
        row: Any = fastavro.schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schema)
        row["log_partition"] = partition
        row["log_offset"] = offset
        row["log_time_ms"] = log_time_ms
        self._rows[name].append(row)

    def tables(self) -> Iterable[tuple[str, pa.Table]]:
        """What was added since the last call."""
        rows, self._rows = self._rows, defaultdict(list)
        for name, of_kind in rows.items():
            if name not in self._arrow:
                self._arrow[name] = pa.schema(_fields(name, self._kinds))
            yield name, pa.Table.from_pylist(of_kind, schema=self._arrow[name])


def _fields(name: str, kinds: dict[bytes, tuple[str, Any]]) -> list[pa.Field]:
    schema = next(schema for kind, schema in kinds.values() if kind == name)
    named: dict[str, pa.DataType] = {}
    fields = [pa.field(each["name"], _type(each["type"], named)) for each in schema["fields"]]
    return [
        *fields,
        pa.field("log_partition", pa.int32()),
        pa.field("log_offset", pa.int64()),
        pa.field("log_time_ms", pa.int64()),
    ]


def _type(avro: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """The Arrow type of an Avro type that fastavro has parsed."""
    scalars = {
        "string": pa.string(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "bytes": pa.binary(),
    }
    if isinstance(avro, list):
        return _type(next(each for each in avro if each != "null"), named)
    if isinstance(avro, str):
        return scalars.get(avro) or named[avro]
    if avro.get("logicalType") == "timestamp-micros":
        return pa.timestamp("us", tz="UTC")
    kind = avro["type"]
    if kind == "array":
        return pa.list_(_type(avro["items"], named))
    if kind == "map":
        return pa.map_(pa.string(), _type(avro["values"], named))
    if kind == "enum":
        found: pa.DataType = pa.string()
    elif kind == "record":
        found = pa.struct([(each["name"], _type(each["type"], named)) for each in avro["fields"]])
    else:
        return _type(kind, named)
    named[avro["name"]] = found
    return found


class Clock:
    """Wall and CPU seconds since the first record."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def start(self) -> None:
        """Begin, unless it runs."""
        if not self._wall:
            self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Remember how long it took."""
        self.seconds = time.perf_counter() - self._wall
        self.cpu_s = time.process_time() - self._cpu

    def line(self, facts: int) -> str:
        """The fields of benchmarks.measured.Measured, as JSON."""
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        return json.dumps(
            {"facts": facts, "seconds": self.seconds, "cpu_s": self.cpu_s, "peak_mb": peak_mb}
        )


def versions(*names: str) -> str:
    """Installed versions, as `name 1.2, other 3.4`."""
    return ", ".join(f"{name} {version(name)}" for name in names)
