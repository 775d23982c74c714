"""Which training run files of miles are of: its key, its name, its configuration.

Invariant: the key comes from what stays the same while the run goes on, and wherever its files lie.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ledger.facts.lists import RunKind
from producers.importers import configuration_of
from producers.importers.miles_dashboard import stream
from producers.importers.miles_dump import RolloutDump
from producers.importers.run import ForeignRun
from producers.importers.slime_lines import read_lines
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.times import epoch

FORM = "miles"


def dashboard_of(path: Path) -> Path | None:
    """The folder of the dashboard's streams; null where there is none."""
    for folder in (path / "dashboard", path):
        if folder.is_dir() and any(
            (folder / name).exists() for name in ("meta.json", "phases", "phases.jsonl")
        ):
            return folder
    return None


def training_run(
    path: Path, root: Path, dumps: Sequence[RolloutDump], board: Path | None, logs: Sequence[Path]
) -> ForeignRun:
    """Known by the dashboard's meta.json; without it by the first dump, metric line or phase.
    Raises BadImport."""
    meta = None
    if board is not None and (board / "meta.json").is_file():
        meta = SourceFile.read(board / "meta.json", root).json()
    if meta is not None:
        key, ref = [meta.text("run_name") or "", str(meta.number("start_ts"))], meta.ref
    elif dumps:
        key, ref = [dumps[0].source.sha256], dumps[0].source.ref()
    elif logs:
        first = SourceFile.read(logs[0], root)
        key, ref = [read_lines(first).first or first.sha256], first.ref()
    else:
        phase = _first_phase(board, root)
        key, ref = [json.dumps(phase.value, sort_keys=True)], phase.ref
    name = (meta.text("run_name") if meta else None) or path.name
    run = ForeignRun(FORM, key, kind=RunKind.TRAIN, name=name, ref=ref)
    if meta is not None:
        arguments = meta.at("args").value or {}
        run.declare(epoch(meta, "start_ts"), configuration=configuration_of(arguments))
    return run


def _first_phase(board: Path | None, root: Path) -> Json:
    first = next(stream(board, "phases", root), None) if board else None
    if first is None:
        raise BadImport(f"{root.name}: the dashboard must have a meta.json or a phase, got neither")
    return first
