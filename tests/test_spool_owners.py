"""Whose a spool is, where it lies, and who drains what the dead left."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from pathlib import Path

import pytest

from ledger.open_log import open_log
from ledger.recording.spool import default_root, drain_orphans, folder_of, orphans
from ledger.recording.spool_owner import OwnerLock
from tests.recorded import (
    IDS,
    Make,
    eventually,
    facts_in,
    of,
    run_script,
    spools,
    start_script,
    turns_in,
)


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
