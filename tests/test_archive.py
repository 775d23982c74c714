"""The archive drill: what left the log is read from Parquet as if it never had."""

from __future__ import annotations

import fcntl
import random
from pathlib import Path

import pytest

from consumers.archive import (
    ArchiveDamaged,
    archive,
    archive_and_remove,
    archived_positions,
    load_manifest,
    verify,
)
from consumers.archived_log import ArchivedLog
from ledger.log import EventLog, LogError, PositionOutOfRange, Record, TopicPartition
from ledger.open_log import open_log
from tests.builders import an_id

Rows = list[tuple[str, int, int, int, str, bytes]]


def append_numbered(log: EventLog, count: int, start: int = 0) -> None:
    for topic in ("tokens", "batches"):
        log.append(
            topic,
            [
                Record(an_id("group", i % 20), f"{topic} {i} ".encode() + b"\0" * (i % 50))
                for i in range(start, start + count)
            ],
        )


def read_all(log: EventLog, topics: tuple[str, ...] = ("tokens", "batches")) -> Rows:
    found: Rows = []
    for topic in topics:
        starts, ends = log.start_positions(topic), log.end_positions(topic)  # type: ignore[arg-type]
        for place in starts:
            with log.reader({place: starts[place]}) as reader:
                while reader.positions[place] < ends[place]:
                    for batch in reader.poll(5.0, 37):
                        columns = (batch.offsets, batch.log_times_us, batch.keys, batch.values)
                        for offset, time_us, key, value in zip(*columns, strict=True):
                            found.append(
                                (place.topic, place.partition, offset, time_us, key, value)
                            )
    return found


def test_what_left_the_log_reads_as_if_it_never_had(log_url: str, tmp_path: Path) -> None:
    with open_log(log_url) as log:
        append_numbered(log, 500)
        before = read_all(log)
        manifest = archive(log, tmp_path / "archive")
        assert sum(file.records for file in manifest.files) == 1000
        verify(tmp_path / "archive")
        log.remove_before(archived_positions(manifest))
        append_numbered(log, 100, start=500)
        assert len(read_all(log)) == 200
        archived = ArchivedLog(log, tmp_path / "archive")
        after = read_all(archived)
        assert set(before) < set(after)
        assert len(after) == 1200
        places = [row[:3] for row in after]
        assert places == sorted(places, key=lambda row: (row[0] != "tokens", row[1], row[2]))


def test_reading_resumes_anywhere_in_the_archive(sqlite_url: str, tmp_path: Path) -> None:
    place = TopicPartition("tokens", 0)
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    with open_log(sqlite_url) as log:
        append_numbered(log, 300)
        manifest = archive(log, tmp_path / "archive")
        log.remove_before({place: 200})
        archived = ArchivedLog(log, tmp_path / "archive")
        assert archived.start_positions("tokens") == {place: 0}
        assert manifest.end(place) == 300
        offsets: list[int] = []
        position = 0
        while position < 300:
            with archived.reader({place: position}) as reader:
                for batch in reader.poll(1.0, chance.randrange(1, 90)):
                    offsets += batch.offsets
                position = reader.positions[place]
        assert offsets == list(range(300))


def test_several_places_can_be_read_in_step(log_url: str, tmp_path: Path) -> None:
    with open_log(log_url) as log:
        append_numbered(log, 60)
        before = read_all(log)
        archive_and_remove(log, tmp_path / "archive")
        append_numbered(log, 20, start=60)
        late = read_all(log)
        archived = ArchivedLog(log, tmp_path / "archive")
        starts = archived.start_positions("tokens") | archived.start_positions("batches")
        ends = log.end_positions("tokens") | log.end_positions("batches")
        readers = {place: archived.reader({place: at}) for place, at in starts.items()}
        found: Rows = []
        while any(readers[place].positions[place] < end for place, end in ends.items()):
            for place, reader in readers.items():
                if reader.positions[place] < ends[place]:
                    for batch in reader.poll(5.0, 7):
                        assert len(batch) <= 7
                        columns = (batch.offsets, batch.log_times_us, batch.keys, batch.values)
                        for row in zip(*columns, strict=True):
                            found.append((place.topic, place.partition, *row))
        for reader in readers.values():
            reader.close()
    assert sorted(found) == sorted(before + late)


def test_archiving_again_adds_only_what_is_new(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with open_log(sqlite_url) as log:
        append_numbered(log, 10)
        archive(log, folder)
        files = {
            file.name: (folder / file.name).stat().st_mtime_ns for file in verify(folder).files
        }
        append_numbered(log, 5, start=10)
        archive(log, folder)
        assert [file.records for file in load_manifest(folder).files] == [10, 10, 5, 5]
        for name, written in files.items():
            assert (folder / name).stat().st_mtime_ns == written
        # A file that a killed archive left half written is written again.
        (folder / "tokens-0-000000000015.parquet.partial").write_bytes(b"half")
        append_numbered(log, 1, start=15)
        archive(log, folder)
        assert len(verify(folder).files) == 6


def test_a_damaged_file_is_named_and_never_read(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with open_log(sqlite_url) as log:
        append_numbered(log, 10)
        manifest = archive(log, folder)
        log.remove_before({TopicPartition("tokens", 0): 10})
        broken = folder / manifest.files[0].name
        content = bytearray(broken.read_bytes())
        content[len(content) // 2] ^= 1
        broken.write_bytes(content)
        with pytest.raises(
            ArchiveDamaged, match=r"tokens-0-000000000000\.parquet must have digest"
        ):
            verify(folder)
        with pytest.raises(ArchiveDamaged):
            read_all(ArchivedLog(log, folder))
        broken.unlink()
        with pytest.raises(ArchiveDamaged, match="is missing"):
            verify(folder)


def test_records_that_left_the_log_unarchived_are_an_error(sqlite_url: str, tmp_path: Path) -> None:
    place = TopicPartition("tokens", 0)
    with open_log(sqlite_url) as log:
        append_numbered(log, 10)
        archive(log, tmp_path / "archive")
        append_numbered(log, 10, start=10)
        log.remove_before({place: 15})
        with pytest.raises(LogError, match="ends at 10 of tokens/0, and the log begins at 15"):
            archive(log, tmp_path / "archive")
        with pytest.raises(LogError, match="the log begins at 15"):
            ArchivedLog(log, tmp_path / "archive")


def test_an_archive_of_another_log_is_refused(tmp_path: Path) -> None:
    with (
        open_log(f"sqlite:///{tmp_path}/a.db") as one,
        open_log(f"sqlite:///{tmp_path}/b.db") as two,
    ):
        append_numbered(one, 1)
        archive(one, tmp_path / "archive")
        with pytest.raises(LogError, match="is of log"):
            archive(two, tmp_path / "archive")
        with pytest.raises(LogError, match="is of log"):
            ArchivedLog(two, tmp_path / "archive")
        with pytest.raises(LogError, match="there is no archive"):
            ArchivedLog(two, tmp_path / "nothing")


def test_facts_are_never_removed(log_url: str) -> None:
    with open_log(log_url) as log:
        log.append("events", [Record(an_id("run"), b"fact")])
        with pytest.raises(LogError, match="facts are never removed"):
            log.remove_before({TopicPartition("events", 0): 0})


def test_times_are_found_in_the_archive(sqlite_url: str, tmp_path: Path) -> None:
    place = TopicPartition("tokens", 0)
    with open_log(sqlite_url) as log:
        append_numbered(log, 10)
        times = [row[3] for row in read_all(log, ("tokens",))]
        archive(log, tmp_path / "archive")
        log.remove_before({place: 10})
        append_numbered(log, 1, start=10)
        archived = ArchivedLog(log, tmp_path / "archive")
        assert archived.positions_at("tokens", times[0]) == {place: 0}
        assert archived.positions_at("tokens", times[-1] + 1) == {place: 10}
        with pytest.raises(PositionOutOfRange):
            archived.reader({place: 99})


def test_two_do_not_archive_to_one_folder_at_once(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with open_log(sqlite_url) as log:
        append_numbered(log, 10)
        archive_and_remove(log, folder)
        assert log.start_positions("tokens") == {TopicPartition("tokens", 0): 10}
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(LogError, match="another process archives to"):
                archive(log, folder)
