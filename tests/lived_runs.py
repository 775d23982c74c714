"""Runs that have been lived through, for tests of what reads them afterwards.

lived(log)                  12 groups, told below: excluded members, surplus, stale groups
forged(url, change)         a copy of an SQLite log in which `change` has replaced facts
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from consumers.assembling.settings import AssemblerSettings
from ledger.avro import decode, encode_fact
from ledger.batch_log import read_batches
from ledger.facts import Fact
from ledger.facts.lists import RunKind
from ledger.log import EventLog
from tests.assembled import RUN, Teller, a_group, the_run
from tests.test_assembler import assemble, write

SETTINGS = (
    {"groups_per_batch": 2, "over_sampling": "first_k", "max_staleness": 1, "min_valid": 2},
    {"groups_per_batch": 2, "algorithm": "rloo", "max_staleness": 1},
)


def lived(
    log: EventLog, settings: tuple[dict[str, Any], ...] = SETTINGS, kind: RunKind = RunKind.TRAIN
) -> None:
    """Groups of three: every fourth has a member without a reward, two are all alike, and group 8
    is stale when it is decided. Assembled now and then while the last is half told; the later
    assemblers have other settings, and the first drop what a batch has no room for. The trainer
    takes every batch."""
    write(log, the_run(kind))
    taken: set[str] = set()
    for number in range(12):
        third = (0.5, None, 1.0, 0.0)[number % 4]
        rewards = [1.0, 1.0, 1.0] if number % 6 == 5 else [1.0, 0.0, third]
        told = a_group(number, rewards, version=3 if number < 9 else 6)
        write(log, told[: len(told) // 2])
        chosen = AssemblerSettings.of(settings[number * len(settings) // 12], "here")
        if number % 5 == 4:
            assemble(log, chosen)
        write(log, told[len(told) // 2 :])
        if number == 7:
            write(log, [Teller(seed=800)("weights_published", policy_version=6)])
        for batch in [each.batch for each in read_batches(log, RUN)]:
            if batch.batch_id not in taken:
                taken.add(batch.batch_id)
                tell = Teller(seed=810 + (batch.step or 0))
                write(log, [tell("step_completed", step=batch.step, batch_id=batch.batch_id)])
    assemble(log, AssemblerSettings.of(settings[-1], "here"))


def forged(url: str, change: Callable[[Any], Any], name: str = "forged.db") -> str:
    """The URL of a copy of an SQLite log: facts replaced by what `change` gives, at their places.
    At least one must be another."""
    path = Path(url.removeprefix("sqlite:///"))
    copy = path.with_name(name)
    changed = 0
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
        for offset, value in target.execute("SELECT offset, value FROM events").fetchall():
            fact = decode(value)
            assert isinstance(fact, Fact)
            other = change(fact)
            if other is not fact:
                changed += 1
                new = (encode_fact(other), offset)
                target.execute("UPDATE events SET value = ? WHERE offset = ?", new)
        target.commit()
    assert changed
    return f"sqlite:///{copy}"


def first_of(kind: type, **fields: Any) -> Callable[[Any], Any]:
    """A change of the first fact of a class; a field may be a function of what it was."""
    done: list[str] = []

    def change(fact: Any) -> Any:
        if not isinstance(fact, kind) or done:
            return fact
        done.append("once")
        new = {
            name: given(getattr(fact, name)) if callable(given) else given
            for name, given in fields.items()
        }
        return dataclasses.replace(fact, **new)  # type: ignore[type-var]

    return change
