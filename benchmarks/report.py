"""The table, and what it was measured with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.stage import PEER_PYTHON

HEADINGS = ("measure", "ours", "peer or limit", "ratio", "CPU ratio", "target", "met")
OURS = ("rollbook", "kafka-python", "crc32c", "lz4", "pyruhvro", "fastavro", "pyarrow", "duckdb")
PEERS = ("quixstreams", "dlt", "confluent-kafka", "fastavro", "pyarrow", "duckdb")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; texts carry their units."""

    measure: str
    ours: str
    other: str = ""
    """What it is compared with."""
    ratio: float | None = None
    """Ours to the other: of rates, or of costs where the target is a most."""
    cpu_ratio: float | None = None
    """The same of CPU seconds, which other load on the machine disturbs less."""
    least: float | None = None
    """The target for `ratio`: at least this."""
    most: float | None = None
    """The target for `ratio`: at most this."""

    def cells(self) -> tuple[str, ...]:
        """As texts, one for each heading."""
        met = target = ""
        if self.least is not None:
            target = f">= {self.least:g}"
        elif self.most is not None:
            target = f"<= {self.most:g}"
        if target:
            met = "yes" if self.met else "NO"
        return (
            self.measure, self.ours, self.other, _number(self.ratio), _number(self.cpu_ratio),
            target, met,
        )  # fmt: skip

    @property
    def met(self) -> bool:
        """Whether the target is met; true without one."""
        if self.ratio is None:
            return True
        return (self.least is None or self.ratio >= self.least) and (
            self.most is None or self.ratio <= self.most
        )


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, aligned."""
    cells = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def machine() -> str:
    """Cores, memory, system and Python; no names."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores ({processor()}), {memory_gb:.0f} GB, {platform.system()}"
        f" {platform.machine()}, Python {platform.python_version()}; the servers on the same cores"
    )


def processor() -> str:
    """The processor's model, where the system says it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def our_versions() -> str:
    """Versions of our packages, as `name 1.2, other 3.4`."""
    found: list[str] = []
    for name in OURS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def peer_versions() -> str:
    """Versions in the peers' environment, or what to do to have one."""
    if not PEER_PYTHON.exists():
        return "not installed: run benchmarks/setup.sh"
    script = "import sys, peer_tools; print(peer_tools.versions(*sys.argv[1:]))"
    run = subprocess.run(
        [str(PEER_PYTHON), "-c", script, *PEERS],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=True,
    )
    return run.stdout.strip()


def progress(text: str) -> None:
    """Say what goes on, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
