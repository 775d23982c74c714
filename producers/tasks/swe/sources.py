"""Repositories that are uploaded into a sandbox: a git repository or a folder on this machine.

Invariant: only the base commit's files are uploaded, without history, so the commit that fixed the
problem is nowhere in the sandbox.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from functools import lru_cache
from pathlib import Path

from producers.tasks.task import TasksRefused


def check_source(source: Path, commit: str | None, place: str) -> str:
    """Digest of what would be uploaded: the tree of a commit, or the files of a folder. Raises
    TasksRefused if there is none."""
    if not source.is_dir():
        raise TasksRefused(f"source must be a folder, got {source} ({place})")
    if commit is None:
        return hashlib.sha256(_archive_of(source)).hexdigest()
    done = _git(
        source, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}"
    )
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip() or "no such commit"
        raise TasksRefused(f"base_commit {commit} must be in {source}: {why} ({place})")
    return done.stdout.decode().strip()


@lru_cache(maxsize=16)
def archive_of(source: Path, commit: str | None) -> bytes:
    """A .tar.gz of the files. Kept for the attempts that follow: a group starts together."""
    if commit is None:
        return _archive_of(source)
    done = _git(source, "archive", "--format=tar.gz", commit)
    if done.returncode != 0:
        raise TasksRefused(f"git archive {commit} failed: {done.stderr.decode()} ({source})")
    return done.stdout


def _archive_of(folder: Path) -> bytes:
    """Without times and owners, so that the same files give the same bytes."""

    def bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if ".git" not in name.parts and not path.is_dir():
                archive.add(path, name.as_posix(), recursive=False, filter=bare)
    return buffer.getvalue()


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
