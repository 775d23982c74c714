"""The dashboard's JSONL streams of miles: phases, trajectories, metrics, topology, engine series.

A stream is one file `NAME.jsonl`, or hourly ones in a folder `NAME/`.

Invariant: an interval that was still open when it was written (`t1` of -1) counts only while no
later line closes it, and is then no interval but a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from producers.importers.source import Json, SourceFile
from producers.importers.times import epoch

_OPEN = -1.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of one process; seconds since the epoch."""

    name: str
    start: float
    end: float
    row: Json


@dataclass(slots=True)
class Span:
    """One request, or one stretch of an agent's own work; seconds since the epoch."""

    row: Json
    """The line that ended it."""
    start: float | None
    """Null: no line tells of its start."""
    end: float
    detail: str


@dataclass(slots=True)
class Lifetime:
    """What the stream says of one attempt at a sample."""

    started: Json | None = None
    ended: Json | None = None
    requests: list[Span] = field(default_factory=list[Span])
    tools: list[Span] = field(default_factory=list[Span])


def stream(folder: Path, name: str, root: Path) -> Iterator[Json]:
    """The lines of a stream, oldest file first. Raises BadImport."""
    flat, parts = folder / f"{name}.jsonl", folder / name
    files = [flat] if flat.is_file() else []
    if parts.is_dir():
        files += sorted(parts.glob("*.jsonl"))
    for file in files:
        yield from SourceFile.read(file, root).json_lines()


def phases(rows: Iterable[Json]) -> tuple[list[Phase], int]:
    """The closed intervals of the trainer's lowest rank, by start; and how many are open still.
    Every rank writes its own, and rank 0's clock is the step's."""
    closed: dict[tuple[object, ...], tuple[int, Phase]] = {}
    opened: dict[tuple[object, ...], int] = {}
    for row in rows:
        if row.need_text("role") != "train":
            continue
        rank = row.integer("rank")
        start, end = _seconds(row, "t0"), _seconds(row, "t1")
        name = row.need_text("name")
        key = (name, start, row.text("node"), rank)
        if end == _OPEN:
            opened[key] = rank or 0
        else:
            closed[key] = (rank or 0, Phase(name, start, end, row))
    lowest = min((rank for rank, _ in closed.values()), default=0)
    found = sorted(
        (phase for rank, phase in closed.values() if rank == lowest),
        key=lambda phase: (phase.start, phase.end),
    )
    still_open = sum(rank == lowest for key, rank in opened.items() if key not in closed)
    return found, still_open


def lifetimes(rows: Iterable[Json]) -> dict[int, list[Lifetime]]:
    """Sample index -> its attempts, oldest first. A sample that was aborted and resumed has more
    than one."""
    events: defaultdict[int, list[Json]] = defaultdict(list)
    for row in rows:
        index = row.integer("sample_index")
        if index is not None and index >= 0:
            events[index].append(row)
    return {index: _lifetimes(found) for index, found in events.items()}


def _lifetimes(rows: Sequence[Json]) -> list[Lifetime]:
    found: list[Lifetime] = []
    starts: dict[tuple[str, int | None], float] = {}
    for row in sorted(rows, key=lambda row: (_seconds(row, "ts"), _ORDER[row.need_text("kind")])):
        kind, at, turn = row.need_text("kind"), _seconds(row, "ts"), row.integer("turn")
        if kind == "attempt_start" or not found:
            starts.clear()
            found.append(Lifetime())
        life = found[-1]
        if kind == "attempt_start":
            life.started = row
        elif kind == "attempt_end":
            life.ended = row
        elif kind in ("gen_start", "tool_start"):
            starts[kind, turn] = at
        elif kind in ("gen_end", "tool_end"):
            start = starts.pop((kind.replace("end", "start"), turn), None)
            spans = life.requests if kind == "gen_end" else life.tools
            spans.append(Span(row, start, at, row.text("detail") or ""))
    return found


class _Order(dict[str, int]):
    """Kinds in the order in which they happen at one moment; others come in between."""

    def __missing__(self, _: str) -> int:
        return 2


_ORDER = _Order(attempt_start=0, gen_end=1, tool_end=1, tool_start=3, gen_start=3, attempt_end=4)


def _seconds(row: Json, name: str) -> float:
    seconds = row.number(name)
    if seconds is None:
        raise row.at(name).wrong("seconds since the epoch")
    epoch(row, name)  # refuses what is no time
    return seconds
