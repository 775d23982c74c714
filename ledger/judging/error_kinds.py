"""What raw error names mean: `ledger/rules/errors.toml`, read once and checked.

Invariant: a name has one kind; what is not in the table is `UNKNOWN`, never the nearest thing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ledger.facts import Excerpt
from ledger.facts.lists import Stage
from ledger.judging.strict_toml import read_toml

_STATUS = re.compile(r"Http\d{3}")

UNKNOWN = "unknown"
"""Kind, and class, of what the table doesn't name."""

ENDINGS = frozenset(
    {
        "clock_cap",
        "turn_cap",
        "output_cap",
        "context_cap",
        "cancelled",
        "abandoned",
        "no_activity",
        "reward_not_finite",
    }
)
"""Kinds of what ends or spoils an attempt without an exception. Some have raw names too."""


@dataclass(frozen=True, slots=True)
class ErrorKinds:
    """The table of raw names."""

    by_name: dict[str, str]
    """Raw name -> kind."""
    stages: dict[str, Stage]
    """Kind -> where it happens if the fact doesn't say so; absent: it can be anywhere."""
    vague: frozenset[str]
    """Kinds whose names say little."""
    messages: tuple[tuple[str, str], ...]
    """(part of a text, kind)"""
    kinds: frozenset[str]
    """All of them, and `ENDINGS`."""

    def of(self, error_type: str, error: Excerpt | None = None) -> str:
        """The kind of a raw name; of a vague one, by its text where that says more."""
        name = error_type if error_type in self.by_name else error_type.rpartition(".")[2]
        if name not in self.by_name and _STATUS.fullmatch(name):
            name = f"{name[:5]}*"
        kind = self.by_name.get(name, UNKNOWN)
        if kind in self.vague and error is not None:
            for part, better in self.messages:
                if part in error.head:
                    return better
        return kind


@cache
def error_kinds() -> ErrorKinds:
    """The table that comes with this version. Raises RulesError."""
    file = "errors.toml"
    return parse_kinds(resources.files("ledger").joinpath("rules", file).read_text(), file)


def parse_kinds(text: str, file: str) -> ErrorKinds:
    """The table in `text`. Raises RulesError, which names file and key."""
    top = read_toml(text, file)
    by_name: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    vague: list[str] = []
    messages: list[tuple[str, str]] = []
    kinds = top.table("kinds")
    top.nothing_else()
    for kind in kinds:
        entry = kinds.table(kind)
        entry.text("means")
        for name in entry.texts("names"):
            if name in by_name:
                raise entry.error("names", f"{name!r} is of kind {by_name[name]} already")
            by_name[name] = kind
        messages += [(part, kind) for part in entry.texts("messages", [])]
        stage = entry.one_of("stage", Stage, None)
        if stage is not None:
            stages[kind] = stage
        if entry.boolean("vague", False):
            vague.append(kind)
        entry.nothing_else()
    known = frozenset(kinds) | ENDINGS
    return ErrorKinds(by_name, stages, frozenset(vague), tuple(messages), known)
