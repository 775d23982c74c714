"""Repositories that are uploaded into a sandbox: a git repository or a folder on this machine.

Invariant: only the base commit's files are uploaded, without history, so the commit that fixed the
problem is nowhere in the sandbox. All of them are: `git archive` would leave out what
`.gitattributes` marks as export-ignore, which often are the tests.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path

from producers.tasks.task import TaskError, TasksRefused


def check_source(source: Path, commit: str | None, place: str) -> str:
    """Digest of what would be uploaded: the tree of a commit, or the files of a folder. Raises
    TasksRefused if there is none."""
    if not source.is_dir():
        raise TasksRefused(f"source must be a folder, got {source} ({place})")
    if commit is None:
        return hashlib.sha256(_pack(source)).hexdigest()
    tree = f"{commit}^{{tree}}"
    done = _git(source, "rev-parse", "--verify", "--quiet", "--end-of-options", tree)
    if done.returncode != 0:
        why = done.stderr.strip() or "no such commit"
        raise TasksRefused(f"base_commit {commit} must be in {source}: {why} ({place})")
    return done.stdout.strip()


@lru_cache(maxsize=16)
def archive_of(source: Path, commit: str | None) -> bytes:
    """A .tar.gz of the files. Kept for the attempts that follow: a group starts together. Raises
    TaskError."""
    if commit is None:
        return _pack(source)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "files")
        files.mkdir()
        places = {"GIT_INDEX_FILE": f"{folder}/index", "GIT_WORK_TREE": str(files)}
        for arguments in (("read-tree", commit), ("checkout-index", "--all")):
            done = _git(source, *arguments, env=places)
            if done.returncode != 0:
                raise TaskError(f"git {arguments[0]} of {commit}: {done.stderr.strip()} ({source})")
        return _pack(files)


def _pack(folder: Path) -> bytes:
    """The same files give the same bytes: without times and owners."""

    def bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if ".git" not in name.parts and (path.is_symlink() or path.is_file()):
                archive.add(path, name.as_posix(), recursive=False, filter=bare)
    return buffer.getvalue()


def _git(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
