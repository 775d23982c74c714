"""What a machine has of what Rollbook can use: one finding for each part, and how to get it.

Invariant: a check changes nothing on the machine, and none stops the others.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.engine.install import EngineServerError, has_gpu, plan
from deploy.kafka.jars import BrokerError, cache_dir, find_java

MEMORY_GB = 6.0
"""The demo's: engine and trainer each import torch."""
DISK_GB = 12.0
"""Packages with torch and SGLang, and what a run writes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of the machine."""

    part: str
    """What was looked for."""
    needed_for: str
    """What doesn't work without it."""
    found: str
    """What is there; empty: nothing."""
    get_it: str | None = None
    """How to get it; null: it is there."""

    @property
    def missing(self) -> bool:
        """Whether something is left to do."""
        return self.get_it is not None


def machine_findings(folder: Path, versions: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that can be said without running anything. `versions`: of the installed
    distributions, by normal name; `folder`: where runs are to be kept."""
    yield _python()
    yield _memory()
    yield _disk(folder)
    yield _java()
    yield _kafka()
    yield _engine(versions)
    yield _megatron(versions)
    yield _browser()
    gpu = "yes" if has_gpu() else "none: engine and trainer run on the CPU"
    yield Finding("GPU", "training and serving at speed", gpu)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    return Finding("Python", "everything", version, "install Python 3.11 or newer" if old else None)


def _memory() -> Finding:
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    least = f"use a machine with {MEMORY_GB:g} GB or more"
    return Finding(
        "memory", "the demo", f"{gigabytes:.0f} GB", least if gigabytes < MEMORY_GB else None
    )


def _disk(folder: Path) -> Finding:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free / 1e9
    return Finding(
        "disk",
        "packages, logs and checkpoints",
        f"{free:.0f} GB free at {there}",
        f"free {DISK_GB:g} GB" if free < DISK_GB else None,
    )


def _java() -> Finding:
    what = ("Java", "a Kafka on this machine")
    try:
        return Finding(*what, find_java())
    except BrokerError as error:
        return Finding(*what, "", str(error))


def _kafka() -> Finding:
    what = ("Kafka's jars", "a Kafka on this machine")
    libs = cache_dir() / "libs"
    if libs.is_dir():
        return Finding(*what, str(libs))
    if (maven := shutil.which("mvn")) is not None:
        return Finding(*what, f"not yet: `rollbook broker start` fetches them with {maven}")
    return Finding(*what, "", "install maven, then `rollbook broker start`")


def _engine(versions: Mapping[str, str]) -> Finding:
    what = ("SGLang", "an engine on this machine")
    try:
        steps = plan(versions, has_gpu())
    except EngineServerError as error:
        return Finding(*what, versions.get("sglang", ""), str(error))
    missing = "`rollbook engine install`" if steps else None
    return Finding(*what, versions.get("sglang", ""), missing)


def _megatron(versions: Mapping[str, str]) -> Finding:
    found = versions.get("megatron-core", "")
    return Finding(
        "Megatron-core",
        "training",
        f"{found}, torch {versions.get('torch', 'none')}" if found else "",
        None if found and "torch" in versions else "`pip install 'rollbook[trainer]'`",
    )


def _browser() -> Finding:
    found = next(
        (path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), ""
    )
    return Finding(
        "Chromium", "tests of the live page", found, None if found else "install chromium"
    )


def tried(part: str, needed_for: str, attempt: Callable[[], str], get_it: str) -> Finding:
    """A finding of something that has to be tried: `attempt` says what is there, or raises."""
    try:
        return Finding(part, needed_for, attempt())
    except Exception as error:  # whatever keeps it from running is the finding
        return Finding(part, needed_for, "", f"{get_it} ({error})")
