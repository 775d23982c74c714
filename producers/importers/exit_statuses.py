"""`exit_statuses_<epoch>.yaml` of mini-swe-agent: what became of each instance, one file for each
time that the program was started on a folder.

Invariant: an instance keeps one trajectory file, and a later start overwrites it; so every listing
before the last one is an attempt of its own, of which nothing else is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ledger.facts.lists import StopReason
from producers.importers.source import BadImport, SourceFile

ENDED = {
    "Submitted": StopReason.SUBMITTED,
    "LimitsExceeded": StopReason.TURN_CAP,
    "TimeExceeded": StopReason.CLOCK_CAP,
}
"""Statuses of attempts that leave a trajectory; every other one is an exception's class."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One attempt, as a listing tells it."""

    status: str
    """Verbatim."""
    ref: str
    file: str
    """The listing's own name, which tells when the program was started."""


@dataclass(slots=True)
class ExitStatuses:
    """All listings of a folder."""

    listed: dict[str, list[Listed]] = field(default_factory=dict[str, list[Listed]])
    """Instance -> its attempts, in order."""
    files: list[str] = field(default_factory=list[str])
    """Names, in order."""

    @property
    def attempts(self) -> int:
        return sum(map(len, self.listed.values()))


def read_exit_statuses(folder: Path, root: Path) -> ExitStatuses:
    """Raises BadImport for a file of another form."""
    found = ExitStatuses()
    for path in sorted(folder.glob("exit_statuses_*.yaml"), key=_epoch):
        source = SourceFile.read(path, root)
        found.files.append(source.name)
        for status, instances in _statuses(source).items():
            for instance_id in instances:
                ref = source.ref(f"/instances_by_exit_status/{status}")
                found.listed.setdefault(instance_id, []).append(Listed(status, ref, path.name))
    return found


def _epoch(path: Path) -> float:
    text = path.stem.removeprefix("exit_statuses_")
    try:
        return float(text)
    except ValueError:
        raise BadImport(
            f"{path.name} must be exit_statuses_<seconds since the epoch>.yaml, got {text!r}"
        ) from None


def _statuses(source: SourceFile) -> dict[str, list[str]]:
    value = source.yaml()
    inner: Any = value.get("instances_by_exit_status") if isinstance(value, dict) else None
    lists = cast(dict[Any, Any], inner if isinstance(inner, dict) else {"": None})
    if not all(isinstance(each, list) for each in lists.values()):
        raise BadImport(
            f"{source.name} must have instances_by_exit_status, a list of ids for each status"
        )
    return {str(status): [str(each) for each in ids] for status, ids in lists.items()}
