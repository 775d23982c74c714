"""Erasing a run by copying without it, and backups: each a drill from end to end."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from consumers.audit import audit
from consumers.copy_log import copy_log
from consumers.erasure import Erasure, stretches
from ledger.avro import encode, wire_types
from ledger.book import connect
from ledger.facts.lists import RunKind
from ledger.log import LogError, Record
from ledger.open_log import open_log
from ledger.recorder import Recorder
from ledger.tokens import Tokens
from tests.books import projected, rows
from tests.builders import a_fact, an_id

KEPT, ERASED = an_id("run", 1), an_id("run", 2)


def record_two_runs(url: str, spool: Path) -> None:
    with Recorder(url, producer="agent", run_id=KEPT, spool_dir=spool) as recorder:
        for i in range(30):
            recorder.turn_completed(
                run_id=ERASED if i % 3 == 1 else KEPT,
                group_id=an_id("group", i),
                slot=0,
                trajectory_id=an_id("trajectory", i),
                turn_no=i,
                tokens=Tokens([i, i + 1], [0, 1], [0.0, -0.5]),
            )


def test_a_run_is_erased_from_the_copy_and_the_audit_finds_no_hole(
    log_url: str, tmp_path: Path
) -> None:
    record_two_runs(log_url, tmp_path)
    with open_log(log_url) as source, open_log(f"sqlite:///{tmp_path}/copy.db") as target:
        copied = copy_log(source, target, uuid.UUID(ERASED))
    # 20 turns and their payloads, the pulse and the end of the recorder
    assert (copied.records, copied.erased, copied.unreadable) == (42, 20, [])
    assert ERASED.encode() not in (tmp_path / "copy.db").read_bytes()
    projected(f"sqlite:///{tmp_path}/copy.db", tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT count(*) FROM turn_completed") == [(20,)]
    assert rows(tmp_path / "book", "SELECT sum(last_seq - first_seq + 1) FROM facts_erased") == [
        (10,)
    ]
    with connect(tmp_path / "book", read_only=True) as book:
        assert audit(book) == []


def test_a_whole_copy_gives_the_same_facts(log_url: str, tmp_path: Path) -> None:
    record_two_runs(log_url, tmp_path)
    with open_log(log_url) as source, open_log(f"sqlite:///{tmp_path}/copy.db") as target:
        source.append("events", [Record("any", b"garbage")])
        assert copy_log(source, target).records == 30 + 33
    projected(log_url, tmp_path / "book")
    projected(f"sqlite:///{tmp_path}/copy.db", tmp_path / "copied")
    query = "SELECT * EXCLUDE (log_partition, log_offset) FROM facts ORDER BY event_id"
    assert rows(tmp_path / "book", query) == rows(tmp_path / "copied", query)
    assert rows(tmp_path / "copied", "SELECT value FROM quarantine") == [(b"garbage",)]


def test_records_nobody_can_read_are_not_taken_along_when_a_run_is_erased(
    sqlite_url: str, tmp_path: Path
) -> None:
    record_two_runs(sqlite_url, tmp_path)
    with open_log(sqlite_url) as source, open_log(f"sqlite:///{tmp_path}/copy.db") as target:
        source.append("events", [Record(ERASED, b"garbage with a secret")])
        copied = copy_log(source, target, uuid.UUID(ERASED))
    assert copied.unreadable == ["events/0 offset 32"]
    assert b"secret" not in (tmp_path / "copy.db").read_bytes()


def foreign(name: str, **fields: object) -> bytes:
    """A fact by a writer that doesn't check what it writes, with only what it must have."""
    fact = a_fact(name, only_required=True)
    given = {each: getattr(fact, each) for each in fact.__dataclass_fields__} | fields
    return encode(wire_types()[name], given)


def test_what_other_runs_say_of_an_erased_run_names_an_alias(
    sqlite_url: str, tmp_path: Path
) -> None:
    erased = uuid.UUID(ERASED)
    told = f'{{"resume": "s3://runs/{erased.hex.upper()}/last", "init": "{ERASED}"}}'
    with Recorder(sqlite_url, producer="agent", run_id=KEPT, spool_dir=tmp_path) as recorder:
        recorder.run_declared(kind=RunKind.EVAL, name="e", parent_run_id=ERASED, configuration=told)
    with open_log(sqlite_url) as source, open_log(f"sqlite:///{tmp_path}/copy.db") as target:
        copied = copy_log(source, target, erased)
    assert (copied.records, copied.erased, copied.renamed) == (3, 0, 1)
    kept = (tmp_path / "copy.db").read_bytes().lower()
    assert ERASED.encode() not in kept
    assert erased.hex.encode() not in kept
    alias = uuid.UUID(copied.alias)
    projected(f"sqlite:///{tmp_path}/copy.db", tmp_path / "book")
    assert rows(tmp_path / "book", "SELECT parent_run_id, configuration FROM runs") == [
        (alias, f'{{"resume": "s3://runs/{alias.hex}/last", "init": "{alias}"}}')
    ]
    # That facts were renamed is told by the run that has nothing but a copy's own facts.
    assert rows(
        tmp_path / "book", f"SELECT fact, producer FROM facts WHERE run_id = '{alias}'"
    ) == [("producer_closed", "copy-log")]


def test_a_run_is_erased_however_a_foreign_writer_writes_its_id(
    sqlite_url: str, tmp_path: Path
) -> None:
    odd = {"incarnation": an_id("incarnation").upper()}
    written = [ERASED.upper(), f"urn:uuid:{ERASED}", uuid.UUID(ERASED).hex, "no UUID at all"]
    values = [
        foreign("producer_alive", run_id=run_id, producer_seq=number, **odd)
        for number, run_id in enumerate(written)
    ]
    with open_log(sqlite_url) as source, open_log(f"sqlite:///{tmp_path}/copy.db") as target:
        source.append("events", [Record(ERASED.upper(), value) for value in values])
        copied = copy_log(source, target, uuid.UUID(ERASED))
    assert (copied.records, copied.erased, copied.renamed) == (1, 3, 1)
    assert ERASED.encode() not in (tmp_path / "copy.db").read_bytes().lower()
    projected(f"sqlite:///{tmp_path}/copy.db", tmp_path / "book")
    assert rows(
        tmp_path / "book",
        "SELECT erased_incarnation::VARCHAR, first_seq, last_seq FROM facts_erased",
    ) == [(an_id("incarnation"), 0, 2)]


def test_an_alias_takes_the_place_of_an_id_in_any_form_and_of_nothing_else() -> None:
    erasure = Erasure(uuid.UUID(ERASED))
    alias = erasure.alias
    for before, after in (
        (ERASED, alias),
        (f"<{ERASED.upper()}>", f"<{alias}>"),
        (ERASED.replace("-", "") + ERASED, alias.replace("-", "") + alias),
        (KEPT, KEPT),
        (ERASED[:-1], ERASED[:-1]),
    ):
        assert erasure.renamed(before.encode()) == after.encode()


def test_a_log_is_only_copied_to_an_empty_one(sqlite_url: str, tmp_path: Path) -> None:
    with open_log(sqlite_url) as source, open_log(f"sqlite:///{tmp_path}/copy.db") as target:
        target.append("tokens", [Record("any", b"there already")])
        with pytest.raises(LogError, match="copied to an empty one, and tokens/0 ends at 1"):
            copy_log(source, target)


def test_stretches_are_the_unbroken_runs_of_numbers() -> None:
    assert stretches([5, 1, 2, 3, 9, 2]) == [(1, 3), (5, 5), (9, 9)]
    assert stretches([]) == []
