"""Records on their way into the book: bad ones go to quarantine, old ones get defaults."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import fastavro
import pytest

from consumers.rebuild import project
from ledger import avro
from ledger.avro import MARKER, encode, encode_fact, header_of, wire_types
from ledger.facts import Fact
from ledger.open_log import open_log
from tests.books import append, numbered, projected, rows
from tests.builders import a_fact, a_turn, an_id


def test_an_id_that_is_no_uuid_is_quarantined(sqlite_url: str, tmp_path: Path) -> None:
    wire = wire_types()["turn_completed"]
    foreign = wire.check.datum(all_fields(a_turn(1)))
    values = [encode(wire, foreign | {name: "run-7"}) for name in ("run_id", "event_id")]
    member = a_fact("group_decided", producer_seq=2)
    values.append(encode_fact(member).replace(member.members[0].trajectory_id.encode(), b"x" * 36))
    with open_log(sqlite_url) as log:
        append(log, [a_turn(0), *values])
        done = project(log, tmp_path / "book")
    assert (done.facts, done.quarantined) == (1, 3)
    details = rows(tmp_path / "book", "SELECT detail FROM quarantine ORDER BY log_offset")
    assert [detail for (detail,) in details] == [
        "turn_completed.run_id must be a lower-case UUID, got 'run-7'",
        "turn_completed.event_id must be a lower-case UUID, got 'run-7'",
        f"group_decided.members[0].trajectory_id must be a lower-case UUID, got {'x' * 36!r}",
    ]


def test_bad_records_go_to_quarantine_and_the_rest_goes_on(log_url: str, tmp_path: Path) -> None:
    good = numbered([a_turn(i) for i in range(20)])
    whole = encode_fact(a_turn(99))
    unknown = MARKER + b"12345678" + whole[10:]
    tokens = wire_types()["turn_tokens"].header + b"\0"
    bad = [b"", b"garbage", unknown, whole[:-1], whole + b"\0", tokens, whole[:10] + b"\xff" * 40]
    with open_log(log_url) as log:
        append(log, [*good[:10], *bad, *good[10:]])
    done = projected(log_url, tmp_path / "book")
    assert (done.facts, done.quarantined) == (20, 7)
    found = rows(
        tmp_path / "book",
        "SELECT reason, count(*), min(size_bytes), bool_and(length(detail) > 20)"
        " FROM quarantine GROUP BY ALL ORDER BY 1",
    )
    assert found == [
        ("undecodable", 6, 0, True),
        ("unknown_schema", 1, len(unknown), True),
    ]
    assert rows(tmp_path / "book", "SELECT value FROM quarantine WHERE size_bytes = 7") == [
        (b"garbage",)
    ]
    assert rows(tmp_path / "book", "SELECT problem FROM book_problems ORDER BY 1") == [
        ("quarantined: undecodable",),
        ("quarantined: unknown_schema",),
    ]


def test_a_payload_in_the_wrong_topic_is_misplaced(sqlite_url: str, tmp_path: Path) -> None:
    wire = wire_types()["turn_tokens"]
    payload = {
        "run_id": an_id("run"),
        "group_id": an_id("group"),
        "trajectory_id": an_id("trajectory"),
        "turn_no": 0,
        "sha256": "0" * 64,
        "token_ids": b"",
        "loss_mask": b"",
        "logprobs": b"",
    }
    with open_log(sqlite_url) as log:
        append(log, [encode(wire, wire.check.datum(payload)), a_turn(0)])
    assert projected(sqlite_url, tmp_path / "book").facts == 1
    assert rows(tmp_path / "book", "SELECT reason, detail FROM quarantine") == [
        ("misplaced", "turn_tokens belongs in topic tokens, found in events")
    ]


def test_facts_of_an_older_schema_fill_new_fields_with_their_defaults(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = wire_types()["turn_completed"]
    old = json.loads(json.dumps(avro.avro_schema(wire.cls)))
    old["fields"] = [each for each in old["fields"] if each["name"] != "segment_reason"]
    parsed = fastavro.parse_schema(old)
    known = dict(avro.writer_schemas())
    known[header_of(parsed)] = avro.WriterSchema(wire, parsed, "turn_completed.0.avsc")
    monkeypatch.setattr(avro, "writer_schemas", lambda: known)
    monkeypatch.setattr("consumers.decode.writer_schemas", lambda: known)
    fields = all_fields(a_turn(3))
    out = io.BytesIO()
    datum = wire.check.datum(fields)
    del datum["segment_reason"]
    fastavro.schemaless_writer(out, parsed, datum)
    with open_log(sqlite_url) as log:
        append(log, [header_of(parsed) + out.getvalue()])
        project(log, tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT turn_no, segment_reason FROM turn_completed") == [
        (3, None)
    ]


def all_fields(fact: Fact) -> dict[str, object]:
    return {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
