"""The log away, the disk full, producers killed: what the spool keeps, in which order it comes to
the log, and who drains it."""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.kafka.broker import Broker
from ledger.log import LogUnavailable, Record, Topic
from ledger.open_log import open_log
from ledger.recorder import Recorder
from ledger.recording.spool import default_root, drain_orphans, folder_of, orphans, spool_name
from ledger.recording.spool_file import Spool
from ledger.recording.spool_owner import OwnerLock
from ledger.sqlite_log import SqliteLog
from ledger.tokens import Tokens
from ledger.wire.encoder import FactEncoder
from tests.builders import a_draft, an_id
from tests.recorded import (
    IDS,
    RUN,
    check_numbers,
    each_once,
    eventually,
    facts_in,
    of,
    run_script,
    start_script,
    turns_in,
    values_in,
)

Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes recorders, and closes those that a failing test leaves open."""
    made: list[Recorder] = []

    def make(url: str, **options: Any) -> Recorder:
        usual = {"producer": "test", "run_id": RUN, "spool_dir": tmp_path / "spool"}
        made.append(Recorder(url, **(usual | options)))
        return made[-1]

    yield make
    for recorder in made:
        recorder.close(1.0)


@pytest.fixture
def away(tmp_path: Path) -> tuple[str, Path]:
    """The URL of a log that is away until its directory is made, and that directory."""
    folder = tmp_path / "away"
    return f"sqlite:///{folder}/log.db", folder


def spools(tmp_path: Path, suffix: str = "*") -> list[str]:
    """Names of what lies in spool folders, without incarnations."""
    found = (tmp_path / "spool").rglob(f"*.{suffix}")
    return sorted(path.name.split("-")[0] + path.suffix for path in found)


def numbered(start: int, stop: int, key: str = "k") -> list[Record]:
    return [Record(key, str(number).encode()) for number in range(start, stop)]


def drain_all(spool: Spool, log: Any) -> int:
    moved = 0
    while not spool.empty:
        moved += spool.drain(log, 5.0)
    return moved


class Watched:
    """A log that notes its appends, and fails before or behind some of them."""

    def __init__(self, log: SqliteLog, fails: Callable[[], str] = lambda: "") -> None:
        self.log = log
        self.fails = fails
        self.topics: list[str] = []

    def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
        fails = self.fails()
        if fails == "before":
            raise LogUnavailable("failed before the append")
        self.topics.append(topic)
        self.log.append(topic, records, timeout_s)
        if fails == "behind":
            raise LogUnavailable("failed behind the append")


def test_payloads_come_before_facts_and_the_file_goes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s" / "a.spool")
    assert spool.empty
    for n in range(0, 50, 10):
        spool.append(numbered(n, n + 5), numbered(n, n + 10))
    assert not spool.empty
    with SqliteLog(tmp_path / "log.db") as log:
        watched = Watched(log)
        assert drain_all(spool, watched) == 75
        tokens, events = values_in(log, "tokens"), values_in(log, "events")
    assert events == [str(n).encode() for n in range(50)]
    assert tokens == [str(10 * n + i).encode() for n in range(5) for i in range(5)]
    assert watched.topics == ["tokens", "events"]
    assert os.listdir(tmp_path / "s") == ["a.owner"]
    spool.close()
    assert os.listdir(tmp_path / "s") == []


def test_an_append_that_fails_anywhere_loses_nothing_and_changes_no_order(tmp_path: Path) -> None:
    chance = random.Random(7)
    spool = Spool(tmp_path / "a.spool")
    spool.append(numbered(0, 3_000, "t"), numbered(0, 5_000))
    with SqliteLog(tmp_path / "log.db") as log:
        watched = Watched(log, lambda: chance.choice(["", "before", "behind"]))
        while not spool.empty:
            try:
                spool.drain(watched, 5.0)  # type: ignore[arg-type]
            except LogUnavailable:
                continue
        tokens, events = values_in(log, "tokens"), values_in(log, "events")
    assert list(dict.fromkeys(events)) == [str(n).encode() for n in range(5_000)]
    assert list(dict.fromkeys(tokens)) == [str(n).encode() for n in range(3_000)]
    spool.close()


def test_facts_that_come_while_it_is_drained_go_behind_and_none_is_forgotten(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path / "a.spool")
    begun = threading.Event()

    def append() -> None:
        for n in range(0, 4_000, 20):
            spool.append(numbered(n, n + 1, "t"), numbered(n, n + 20))
            begun.set()
            if n % 400 == 0:
                time.sleep(0.01)

    appender = threading.Thread(target=append)
    with SqliteLog(tmp_path / "log.db") as log:
        appender.start()
        begun.wait()
        while appender.is_alive() or not spool.empty:
            spool.drain(log, 5.0)
            if not appender.is_alive() and spool.empty:
                break
        assert values_in(log, "events") == [str(n).encode() for n in range(4_000)]
        assert values_in(log, "tokens") == [str(n).encode() for n in range(0, 4_000, 20)]
    spool.close()


def test_a_crash_between_append_and_removal_only_sends_again(tmp_path: Path) -> None:
    dead = Spool(tmp_path / "a.spool")
    dead.append([], numbered(0, 5_000))
    with SqliteLog(tmp_path / "log.db") as log:
        dead.drain(log, 5.0)
        note = (tmp_path / "a.drained").read_bytes()
        dead.drain(log, 5.0)
        (tmp_path / "a.drained").write_bytes(note)
        dead.close()
        (spool,) = orphans(tmp_path)
        assert drain_all(spool, log) == 3_000
        spool.close()
        events = values_in(log, "events")
    assert len(events) == 7_000
    assert list(dict.fromkeys(events)) == [str(n).encode() for n in range(5_000)]


@pytest.mark.parametrize(
    "note",
    ["", "{", "[]", '{"tokens": 0}', '{"tokens": 0, "events": 99}', '{"tokens":0,"events":-1}'],
)
def test_a_note_that_makes_no_sense_sends_everything_again(note: str, tmp_path: Path) -> None:
    dead = Spool(tmp_path / "a.spool")
    dead.append([], numbered(0, 3))
    dead.close()
    (tmp_path / "a.drained").write_text(note)
    with SqliteLog(tmp_path / "log.db") as log:
        assert drain_orphans(log, tmp_path, 5.0) == 3
        assert values_in(log, "events") == [b"0", b"1", b"2"]
    assert sorted(path.name for path in tmp_path.glob("a.*")) == []


def test_a_note_that_cannot_be_written_does_not_stop_the_draining(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append([], numbered(0, 5_000))
    (tmp_path / "a.partial").mkdir()
    with SqliteLog(tmp_path / "log.db") as log:
        assert drain_all(spool, log) == 5_000
        assert len(values_in(log, "events")) == 5_000
    spool.close()


def test_an_append_too_much_for_the_log_is_made_smaller(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append([], numbered(0, 5_000))

    class Slow(Watched):
        def append(self, topic: Topic, records: Sequence[Record], timeout_s: float = 30.0) -> None:
            if len(records) > 100:
                raise LogUnavailable("not in time")
            super().append(topic, records, timeout_s)

    with SqliteLog(tmp_path / "log.db") as log:
        slow = Slow(log)
        while not spool.empty:
            try:
                spool.drain(slow, 5.0)  # type: ignore[arg-type]
            except LogUnavailable:
                continue
        assert values_in(log, "events") == [str(n).encode() for n in range(5_000)]
    spool.close()


def test_large_payloads_move_a_few_at_a_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.append([Record("t", bytes(3_000_000))] * 7, [])
    with SqliteLog(tmp_path / "log.db") as log:
        assert [spool.drain(log, 5.0) for _ in range(4)] == [3, 3, 1, 0]
        assert len(values_in(log, "tokens")) == 7
    spool.close()


def test_only_one_process_or_recorder_owns_a_spool(tmp_path: Path) -> None:
    first, second = OwnerLock(tmp_path / "x.owner"), OwnerLock(tmp_path / "x.owner")
    assert first.take()
    assert first.take()
    assert not second.take()
    first.release(remove=False)
    assert second.take()
    assert not first.take(0.05)
    (tmp_path / "x.owner").unlink()
    assert first.take()
    assert second.take() is False  # it notices that its own file is gone
    first.release(remove=True)
    assert os.listdir(tmp_path) == []
    second.release(remove=True)


def test_owners_that_take_and_remove_at_once_never_both_own(tmp_path: Path) -> None:
    inside = [0]
    most = [0]

    def contend(seed: int) -> None:
        chance = random.Random(seed)
        lock = OwnerLock(tmp_path / "x.owner")
        for _ in range(150):
            if lock.take(0.5):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1
                lock.release(remove=chance.random() < 0.5)

    threads = [threading.Thread(target=contend, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_two_logs_never_share_a_folder_and_one_log_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    in_a = folder_of(tmp_path, "sqlite:///log.db")
    assert in_a == folder_of(tmp_path, f"sqlite:///{tmp_path}/a/log.db")
    monkeypatch.chdir(tmp_path / "b")
    assert folder_of(tmp_path, "sqlite:///log.db") != in_a
    one = folder_of(tmp_path, "kafka://u:p@b:9092,a:9092/lab?partitions=3")
    assert one == folder_of(tmp_path, "kafka://a:9092,B:9092/lab?client_id=x")
    assert one != folder_of(tmp_path, "kafka://a:9092,b:9092/lab2")
    assert one != folder_of(tmp_path, "kafka://a:9092/lab")


def test_the_default_folder_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.delenv("ROLLBOOK_SPOOL_DIR", raising=False)
    assert default_root() == Path("/state/rollbook/spool")
    monkeypatch.setenv("ROLLBOOK_SPOOL_DIR", "/elsewhere")
    assert default_root() == Path("/elsewhere")


@pytest.mark.parametrize("producer", ["agent/7", "../../x", "*?[a]", "ä" * 300, "", "."])
def test_a_producer_of_any_name_has_its_spool_in_the_logs_folder(
    producer: str, away: tuple[str, Path], make: Make, tmp_path: Path
) -> None:
    url, folder = away
    recorder = make(url, producer=producer)
    recorder.turn_completed(**IDS, turn_no=0)
    assert recorder.flush()
    (spool,) = (tmp_path / "spool").rglob("*.spool")
    assert spool.parent == folder_of(tmp_path / "spool", url)
    recorder.close()
    folder.mkdir()
    with open_log(url) as log:
        assert drain_orphans(log, spool.parent, 5.0) == 3
    assert of(facts_in(url), "TurnCompleted")[0].producer == producer
    assert list((tmp_path / "spool").rglob("*.*")) == []


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
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.recording.log_link.OPEN_WAIT_S", 0.5)
    broker = Broker(tmp_path / "broker")
    bootstrap = broker.start()
    broker.kill()
    recorder = make(f"kafka://{bootstrap}/lab?partitions=3")
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
        broker.start()
        record(1_000)
        assert recorder.flush()
        eventually(lambda: spools(tmp_path, "spool") == [], 40.0)
        record(1_000)
        broker.kill()
        record(1_000)
        assert recorder.flush()
        broker.start()
        record(1_000)
        assert recorder.close(60.0)
        facts = facts_in(f"kafka://{bootstrap}/lab")
        with open_log(f"kafka://{bootstrap}/lab") as log:
            payloads = set(values_in(log, "tokens"))
    finally:
        broker.kill()
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


DEAD = """
recorder = a_recorder()
for n in range(3000):
    recorder.turn_completed(**IDS, turn_no=n)
recorder.flush()
print("flushed", flush=True)
time.sleep(60)
"""


def leave_a_spool(url: str, tmp_path: Path) -> None:
    """Have a process killed while its log is away."""
    process = start_script(DEAD, url, tmp_path / "spool")
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    process.kill()
    process.communicate()


def test_the_spool_of_a_killed_process_is_drained_by_the_next_start_on_the_same_log(
    away: tuple[str, Path], make: Make, tmp_path: Path
) -> None:
    url, folder = away
    leave_a_spool(url, tmp_path)
    with make(f"sqlite:///{tmp_path}/other.db") as other:
        other.turn_completed(**IDS, turn_no=0)
    assert spools(tmp_path, "spool") == ["script.spool"]
    folder.mkdir()
    recorder = make(url)
    eventually(lambda: spools(tmp_path, "spool") == [])
    assert turns_in(url) == list(range(3_000))
    assert recorder.close()
    assert turns_in(f"sqlite:///{tmp_path}/other.db") == [0]
    assert spools(tmp_path) == []


def test_close_drains_what_the_dead_left_before_it_ends(
    away: tuple[str, Path], make: Make, tmp_path: Path
) -> None:
    url, folder = away
    for producer in ("a", "b", "c"):
        recorder = make(url, producer=producer)
        recorder.turn_completed(**IDS, turn_no=0)
        assert recorder.close()
    folder.mkdir()
    assert make(url).close()
    assert sorted(turn.producer for turn in of(facts_in(url), "TurnCompleted")) == ["a", "b", "c"]
    assert spools(tmp_path) == []


def test_recorders_that_live_never_take_each_others_spool(
    away: tuple[str, Path], make: Make, tmp_path: Path
) -> None:
    url, folder = away
    recorders = [make(url, producer=name) for name in ("a", "b")]
    for turn_no in range(100):
        for recorder in recorders:
            recorder.turn_completed(**IDS, turn_no=turn_no)
    assert all(recorder.flush() for recorder in recorders)
    assert list(orphans(folder_of(tmp_path / "spool", url))) == []
    code = """
from ledger.recording.spool import folder_of, orphans
from pathlib import Path
print(len(list(orphans(folder_of(Path(spool), url)))))
"""
    assert run_script(code, url, tmp_path / "spool") == "0\n"
    assert spools(tmp_path, "spool") == ["a.spool", "b.spool"]
    folder.mkdir()
    assert all(recorder.close() for recorder in recorders)
    assert turns_in(url, "a") == turns_in(url, "b") == list(range(100))


def test_a_child_of_fork_does_not_keep_its_parents_spool_alive(
    away: tuple[str, Path], make: Make, tmp_path: Path
) -> None:
    url, folder = away
    code = """
recorder = a_recorder()
recorder.turn_completed(**IDS, turn_no=0)
recorder.flush()
if os.fork() == 0:
    sys.stdout.close()
    os.close(1); os.close(2)
    time.sleep(4)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = start_script(code, url, tmp_path / "spool")
    process.communicate(timeout=30)
    folder.mkdir()
    with open_log(url) as log:
        assert drain_orphans(log, folder_of(tmp_path / "spool", url), 5.0) == 2


def test_a_damaged_spool_is_set_aside_and_stops_nobody(
    away: tuple[str, Path], make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, folder = away
    leave_a_spool(url, tmp_path)
    place = folder_of(tmp_path / "spool", url)
    garbage = random.Random(1).randbytes(10_000)
    (place / "garbage-1.spool").write_bytes(garbage)
    (place / "cut-2.spool").write_bytes(next(place.glob("script*.spool")).read_bytes()[:5_000])
    (place / "empty-3.spool").write_bytes(b"")
    folder.mkdir()
    recorder = make(url)
    recorder.turn_completed(**IDS, turn_no=9_999)
    eventually(lambda: spools(tmp_path, "spool") == [])
    assert recorder.close()
    assert sorted(turns_in(url)) == [*range(3_000), 9_999]
    assert (place / "garbage-1.damaged").read_bytes() == garbage
    assert spools(tmp_path, "damaged") == ["cut.damaged", "garbage.damaged"]
    ours = [each for each in caplog.records if each.name.startswith("ledger.")]
    errors = [each.message for each in ours if each.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all("can't be read, its facts stay in" in error for error in errors)
    assert make(url).close()
    assert spools(tmp_path, "damaged") == ["cut.damaged", "garbage.damaged"]


def test_a_second_damaged_file_of_one_name_does_not_replace_the_first(tmp_path: Path) -> None:
    for content in (b"first" * 300, b"second" * 300):
        (tmp_path / "a.spool").write_bytes(content)
        assert list(orphans(tmp_path)) == []
    assert (tmp_path / "a.damaged").read_bytes() == b"first" * 300
    assert (tmp_path / "a.damaged2").read_bytes() == b"second" * 300


def test_what_a_dead_owner_left_beside_no_spool_is_cleared_away(tmp_path: Path) -> None:
    for name in ("a.owner", "a.spool-wal", "a.spool-shm", "a.spool-lock", "a.drained"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "note.txt").write_bytes(b"somebody else's")
    assert list(orphans(tmp_path)) == []
    assert os.listdir(tmp_path) == ["note.txt"]
    assert list(orphans(tmp_path / "nowhere")) == []


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
    append = SqliteLog.append
    failures = 0

    def fail_sometimes(self: SqliteLog, topic: Topic, *rest: Any) -> None:
        nonlocal failures
        if chance.random() < 0.3:
            failures += 1
            raise chance.choice([AssertionError, TypeError, RuntimeError, OSError])("of the client")
        append(self, topic, *rest)

    monkeypatch.setattr(SqliteLog, "append", fail_sometimes)
    monkeypatch.setattr("ledger.recording.log_link.BACKOFF_S", (0.001, 0.01))
    recorder = make(sqlite_url)
    for turn_no in range(2_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
        if turn_no % 20 == 0:
            assert recorder.flush()
    eventually(lambda: spools(tmp_path, "spool") == [])
    monkeypatch.undo()
    assert recorder.close()
    assert failures > 10
    facts = facts_in(sqlite_url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(2_000))
    check_numbers(facts)


def test_records_that_are_drained_are_the_bytes_that_were_spooled(tmp_path: Path) -> None:
    encoder = FactEncoder("p", RUN)
    records = encoder.encode([a_draft("turn_completed", seed=n) for n in range(3)]).events
    dead = Spool(tmp_path / spool_name("p", encoder.incarnation))
    dead.append([], records)
    dead.close()
    with SqliteLog(tmp_path / "log.db") as log:
        assert drain_orphans(log, tmp_path, 5.0) == 3
        values = values_in(log, "events")
    assert values == [record.value for record in records]
    assert [fact.producer_seq for fact in each_once(values)] == [0, 1, 2]


def test_an_orphan_that_the_log_refuses_stays(tmp_path: Path) -> None:
    dead = Spool(tmp_path / "a.spool")
    dead.append([], numbered(0, 3))
    dead.close()
    with SqliteLog(tmp_path / "log.db") as log:
        with pytest.raises(LogUnavailable, match="failed before the append"):
            drain_orphans(Watched(log, lambda: "before"), tmp_path, 5.0)  # type: ignore[arg-type]
        assert drain_orphans(log, tmp_path, 5.0) == 3
    assert [path.name for path in tmp_path.glob("a*")] == []
