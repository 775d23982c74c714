"""What importers of training steps share: where the seconds went, and console output."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase

SUFFIXES = (".log", ".txt", ".out")
"""Names of files with console output end so."""


def console_files(folder: Path) -> list[Path]:
    """The files in a folder that hold console output, by name."""
    return sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES and each.is_file())


def end_to_end(spent: Iterable[tuple[Phase, float]]) -> list[PhaseSpan]:
    """(phase, seconds) laid one behind the other from a step's start; those of no time left out."""
    at_s, spans = 0.0, list[PhaseSpan]()
    for phase, seconds in spent:
        if seconds > 0:
            spans.append(PhaseSpan(phase, at_s, seconds))
            at_s += seconds
    return spans
