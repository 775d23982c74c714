"""The archive: `tokens` and `batches` as Parquet files, so that they may leave the log.

    FOLDER/manifest.json                       which log, and every file with its range and digest
    FOLDER/tokens-0-000000000000.parquet       offset, log_time_us, key, value of records in order

Invariant: the manifest names only files that are whole on disk, and the files of a partition join
without a gap. A killed archive goes on where its manifest ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.durable import sync
from ledger.log import EventLog, LogError, RecordBatch, Topic, TopicPartition

TOPICS: tuple[Topic, ...] = ("tokens", "batches")
"""What may leave the log. Facts never do."""
FILE_BYTES = 64 * 1024 * 1024
"""A file ends once its values have this many bytes."""


class ArchiveDamaged(LogError):
    """A file of an archive is missing or differs from its digest."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A stretch of one partition."""

    topic: Topic
    partition: int
    first_offset: int
    """Where reading it starts; its first record may lie later."""
    next_offset: int
    """Where to read on behind it."""
    records: int
    name: str
    sha256: str


@dataclass(slots=True)
class Manifest:
    """What an archive holds."""

    log: str
    """Identity of the log."""
    files: list[ArchivedFile] = field(default_factory=list[ArchivedFile])

    def of(self, place: TopicPartition) -> list[ArchivedFile]:
        """The files of one partition, in order."""
        return [each for each in self.files if (each.topic, each.partition) == place]

    def end(self, place: TopicPartition) -> int | None:
        """Behind the last archived record; null when there is none."""
        files = self.of(place)
        return files[-1].next_offset if files else None


def load_manifest(folder: Path) -> Manifest:
    """Raises LogError when `folder` is no archive."""
    try:
        raw = cast(dict[str, Any], json.loads((folder / "manifest.json").read_text()))
        return Manifest(raw["log"], [ArchivedFile(**each) for each in raw["files"]])
    except FileNotFoundError:
        raise LogError(f"there is no archive at {folder} (no manifest.json)") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{folder}/manifest.json can't be read: {error}") from error


def archive(log: EventLog, folder: Path) -> Manifest:
    """Write what `tokens` and `batches` have beyond the archive in `folder`, to the log's end.

    Raises LogError for a folder of another log, or a gap that the log no longer holds."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        return _archive(log, folder)


def archive_and_remove(log: EventLog, folder: Path) -> Manifest:
    """`archive`, and remove from the log what the archive has, each file compared with its
    digest. Nobody else can archive in between."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _archive(log, folder)
        manifest = verify(folder)
        log.remove_before(archived_positions(manifest))
        return manifest


@contextlib.contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Two that archive at once would write the same files. Raises LogError."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"another process archives to {folder}") from None
        yield


def _archive(log: EventLog, folder: Path) -> Manifest:
    manifest = Manifest(log.identity)
    if (folder / "manifest.json").exists():
        manifest = load_manifest(folder)
    if manifest.log != log.identity:
        raise LogError(f"archive {folder} is of log {manifest.log}, not of {log.identity}")
    for topic in TOPICS:
        ends = log.end_positions(topic)
        for place, start in log.start_positions(topic).items():
            done = manifest.end(place)
            if done is not None and done < start:
                raise LogError(
                    f"archive {folder} ends at {done} of {place}, and the log begins at {start}:"
                    " what lay between was removed without being archived"
                )
            for file in _write(log, folder, place, start if done is None else done, ends[place]):
                manifest.files.append(file)
                _store(folder, manifest)
    _store(folder, manifest)
    return manifest


def _write(
    log: EventLog, folder: Path, place: TopicPartition, start: int, end: int
) -> Iterator[ArchivedFile]:
    with log.reader({place: start}) as reader:
        while start < end:
            batches: list[RecordBatch] = []
            size = 0
            while size < FILE_BYTES and reader.positions[place] < end:
                polled = reader.poll(1.0)
                batches += polled
                size += sum(sum(map(len, batch.values)) for batch in polled)
            yield _write_file(folder, place, start, reader.positions[place], batches)
            start = reader.positions[place]


def _write_file(
    folder: Path, place: TopicPartition, start: int, end: int, batches: list[RecordBatch]
) -> ArchivedFile:
    name = f"{place.topic}-{place.partition}-{start:012d}.parquet"
    table = pa.table(
        {
            "offset": pa.array([o for each in batches for o in each.offsets], pa.int64()),
            "log_time_us": pa.array([t for each in batches for t in each.log_times_us], pa.int64()),
            "key": pa.array([key for each in batches for key in each.keys], pa.string()),
            "value": pa.array([value for each in batches for value in each.values], pa.binary()),
        }
    )
    partial = folder / f"{name}.partial"
    pq.write_table(table, partial, compression="zstd")
    sha256 = _sync_and_digest(partial)
    partial.replace(folder / name)
    return ArchivedFile(place.topic, place.partition, start, end, len(table), name, sha256)


def _sync_and_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _store(folder: Path, manifest: Manifest) -> None:
    partial = folder / "manifest.json.partial"
    files = [asdict(file) for file in manifest.files]
    partial.write_text(json.dumps({"log": manifest.log, "files": files}, indent=1))
    _sync_and_digest(partial)
    partial.replace(folder / "manifest.json")
    sync(folder)  # the renames themselves


def verify(folder: Path) -> Manifest:
    """The manifest, once every file was compared with its digest. Raises ArchiveDamaged."""
    manifest = load_manifest(folder)
    for file in manifest.files:
        check_file(folder, file)
    return manifest


def check_file(folder: Path, file: ArchivedFile) -> None:
    """Raise ArchiveDamaged unless the file is there and has its digest."""
    path = folder / file.name
    if not path.exists():
        raise ArchiveDamaged(f"archived file {path} is missing")
    with path.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    if sha256 != file.sha256:
        raise ArchiveDamaged(f"archived file {path} must have digest {file.sha256}, got {sha256}")


def archived_positions(manifest: Manifest) -> Mapping[TopicPartition, int]:
    """Up to where each partition is archived: what lies before may leave the log."""
    return {TopicPartition(file.topic, file.partition): file.next_offset for file in manifest.files}
