"""Logs that go and come, full disks: what the spool brings to the log, and what is counted."""

from __future__ import annotations

import logging
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ledger.open_log import open_log
from ledger.recording.spool import folder_of, orphans
from ledger.sqlite_log import SqliteLog
from ledger.tokens import Tokens
from tests.builders import an_id
from tests.kafka_lab import Lab
from tests.recorded import (
    IDS,
    Make,
    check_numbers,
    eventually,
    facts_in,
    of,
    run_script,
    spools,
    turns_in,
    values_in,
)


def test_a_log_that_is_away_at_start_gets_all_in_order_when_it_comes(
    away: tuple[str, Path], make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, folder = away
    recorder = make(url)
    tokens = Tokens([1, 2], [0, 1], [0.0, -0.5])
    for turn_no in range(2_500):
        recorder.turn_completed(**IDS, turn_no=turn_no, tokens=tokens)
    assert recorder.flush()
    assert spools(tmp_path, "spool") == ["test.spool"]
    folder.mkdir()
    for turn_no in range(2_500, 5_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
        if turn_no % 250 == 0:
            time.sleep(0.05)
    assert recorder.flush()
    eventually(lambda: spools(tmp_path, "spool") == [])
    recorder.turn_completed(**IDS, turn_no=5_000)
    assert recorder.close()
    facts = facts_in(url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(5_001))
    assert check_numbers(facts) == {recorder.incarnation: len(facts)}
    with open_log(url) as log:
        assert len(values_in(log, "tokens")) == 2_500
    assert spools(tmp_path) == []
    ours = [each for each in caplog.records if each.name.startswith("ledger.")]
    warnings = [each.message for each in ours if each.levelno >= logging.WARNING]
    assert [w for w in warnings if "facts go to the spool" in w] != []
    assert warnings[-1] == f"log {url} is back"


def test_a_log_that_goes_and_comes_again_gets_all_in_order(tmp_path: Path, make: Make) -> None:
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder.mkdir()
    url = f"sqlite:///{folder}/log.db"
    recorder = make(url)
    turn_no = 0
    for _ in range(3):
        for is_away in (False, True):
            if is_away:
                folder.rename(elsewhere)
            for _ in range(400):
                recorder.turn_completed(**IDS, turn_no=turn_no)
                turn_no += 1
            assert recorder.flush()
        elsewhere.rename(folder)
        for _ in range(400):
            recorder.turn_completed(**IDS, turn_no=turn_no)
            turn_no += 1
        eventually(lambda: spools(tmp_path, "spool") == [])
    assert recorder.close()
    facts = facts_in(url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(3_600))
    check_numbers(facts)
    assert spools(tmp_path) == []


@pytest.mark.kafka
def test_a_broker_that_is_away_at_start_and_dies_later_gets_all_in_order(
    tmp_path: Path, make: Make, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.recording.log_link.OPEN_WAIT_S", 0.5)
    url = lab.url(3)
    lab.broker.kill()
    recorder = make(url)
    groups = [an_id("group", number) for number in range(7)]
    said: list[int] = []

    def record(count: int) -> None:
        for turn_no in range(len(said), len(said) + count):
            ids = IDS | {"group_id": groups[turn_no % 7]}
            tokens = Tokens([turn_no], [1], [-0.5]) if turn_no % 10 == 0 else None
            recorder.turn_completed(**ids, turn_no=turn_no, tokens=tokens)
            said.append(turn_no)

    try:
        record(1_000)
        assert recorder.flush()
        assert spools(tmp_path, "spool") == ["test.spool"]
        lab.broker.start()
        record(1_000)
        assert recorder.flush()
        eventually(lambda: spools(tmp_path, "spool") == [], 40.0)
        record(1_000)
        lab.broker.kill()
        record(1_000)
        assert recorder.flush()
        lab.broker.start()
        record(1_000)
        assert recorder.close(60.0)
        facts = facts_in(url)
        with open_log(url) as log:
            payloads = set(values_in(log, "tokens"))
    finally:
        lab.broker.start()
    check_numbers(facts)
    turns = of(facts, "TurnCompleted")
    assert sorted(turn.turn_no for turn in turns) == said == list(range(5_000))
    for group in groups:
        numbers = [turn.turn_no for turn in turns if turn.group_id == group]
        assert numbers == sorted(numbers)
    assert len(payloads) == 500
    assert spools(tmp_path) == []


@pytest.mark.kafka
def test_close_while_the_broker_is_away_keeps_its_time_and_leaves_the_spool(
    tmp_path: Path, make: Make
) -> None:
    recorder = make("kafka://127.0.0.1:9/lab")
    recorder.turn_completed(**IDS, turn_no=0)
    begun = time.monotonic()
    assert recorder.close(3.0)
    assert time.monotonic() - begun < 5.0
    assert spools(tmp_path, "spool") == ["test.spool"]


def test_a_spool_whose_folder_vanishes_is_counted_and_another_one_made(
    away: tuple[str, Path], make: Make, tmp_path: Path
) -> None:
    url, folder = away
    recorder = make(url)
    for turn_no in range(10):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.flush()
    shutil.rmtree(tmp_path / "spool")
    for turn_no in range(10, 20):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.flush()
    assert recorder.lost >= 10
    assert list(orphans(folder_of(tmp_path / "spool", url))) == []
    folder.mkdir()
    assert not recorder.close()
    assert turns_in(url) == list(range(10, 20))


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logging.getLogger("ledger").setLevel(logging.CRITICAL)
recorder = a_recorder(queue_limit=100)
n = 0
while recorder.flush(0.5):
    recorder.turn_completed(**IDS, turn_no=n, request_id=os.urandom(10_000).hex())
    n += 1
before = recorder.lost
while n < 30_000:
    recorder.turn_completed(**IDS, turn_no=n)
    n += 1
lost = recorder.lost
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
os.mkdir(os.path.dirname(url.removeprefix("sqlite:///")))
assert recorder.flush(30)
recorder.close()
print(before, lost, recorder.lost)
"""


def test_a_full_disk_is_counted_and_reported_when_the_log_is_back(
    away: tuple[str, Path], tmp_path: Path
) -> None:
    url, _ = away
    before, lost, in_the_end = map(int, run_script(FULL, url, tmp_path / "spool").split())
    assert before == 0
    assert lost == in_the_end > 10_000
    facts = facts_in(url)
    turns = [turn.turn_no for turn in of(facts, "TurnCompleted")]
    assert turns == sorted(set(turns))
    assert len(turns) == 30_000 - lost
    reports = of(facts, "ProducerLost")
    assert sum(report.count for report in reports) == lost
    assert any("spool" in report.detail.head for report in reports)
    check_numbers(facts)
    assert spools(tmp_path) == []


def test_a_client_that_fails_in_any_way_costs_no_fact(
    sqlite_url: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    append_each = SqliteLog.append_each
    failures = 0

    def fail_sometimes(self: SqliteLog, *rest: Any) -> None:
        nonlocal failures
        if chance.random() < 0.3:
            failures += 1
            raise chance.choice([AssertionError, TypeError, RuntimeError, OSError])("of the client")
        append_each(self, *rest)

    monkeypatch.setattr(SqliteLog, "append_each", fail_sometimes)  # by which all is appended
    monkeypatch.setattr("ledger.recording.log_link.BACKOFF_S", (0.001, 0.01))
    recorder = make(sqlite_url)
    turns = 0
    while turns < 2_000 or failures <= 10:  # how often it appends depends on the machine
        assert turns < 40_000
        recorder.turn_completed(**IDS, turn_no=turns)
        if turns % 20 == 0:
            assert recorder.flush()
        turns += 1
    eventually(lambda: spools(tmp_path, "spool") == [])
    monkeypatch.undo()
    assert recorder.close()
    facts = facts_in(sqlite_url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(turns))
    check_numbers(facts)
