"""Which formats files look like, by their names and the beginnings of their texts.

Invariant: it is a hint for messages, and nothing is read in a format because of it; a folder of any
size costs at most MAX_FILES beginnings.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

MAX_FILES = 300
HEAD_BYTES = 100_000
"""How much of a file is looked at."""

_CONSOLE = r".*\.(log|txt|out)"
_MARKS = tuple(
    (form, re.compile(name), re.compile(text.encode()))
    for form, name, text in (
        ("terminal-bench", r"results\.json", r'"results"\s*:\s*\['),
        ("mini-swe-agent", r".*\.traj\.json", "instance_id|trajectory_format"),
        ("mini-swe-agent", r"exit_statuses_.*\.yaml", "instances_by_exit_status"),
        ("harbor", r"result\.json", '"(trial_name|n_total_trials)"'),
        ("atif", r".*\.json", r'"schema_version"\s*:\s*"ATIF-v'),
        ("swe-bench", r".*\.json", r'"(resolved_ids|resolved|leaderboards)"\s*:\s*\['),
        ("miles", r"(.*_)?\d+\.pt", "data.pkl"),
        ("miles", r"phases\.jsonl", '"t0"'),
        ("verl", r"\d+\.jsonl", r'"input"'),
        ("verl", _CONSOLE, r"(?<![\w/])step:\d+ - "),
        ("slime", _CONSOLE, r"(?<![\w/])(perf|rollout|step) \d+: \{"),
        ("prime-rl", r"traces\.jsonl", '"traces"'),
        ("prime-rl", r"metrics\.jsonl", '"time/step"'),
    )
)
"""(format, names of its files, what stands near the beginning of one)."""


def formats_seen(path: Path) -> list[str]:
    """The formats that a file, or the files in a folder, look like, in order of their names."""
    found: set[str] = set()
    for file in islice(_files(path), MAX_FILES):
        head = b""
        for form, name, text in _MARKS:
            if form not in found and name.fullmatch(file.name):
                head = head or _head(file)
                if text.search(head):
                    found.add(form)
    return sorted(found)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (each for each in path.rglob("*") if each.is_file())
    else:
        yield path


def _head(file: Path) -> bytes:
    with contextlib.suppress(OSError), file.open("rb") as content:
        return content.read(HEAD_BYTES)
    return b""
