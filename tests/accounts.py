"""Books to check accounts on: of a log's facts, as of any prefix of it.

story(chance, kind)     a run as producers, assembler and trainer tell of it, valid by construction
with Accounts(facts, tmp_path) as book: book.as_of(40); book.broken()
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import duckdb

from consumers.assembling.settings import AssemblerSettings
from ledger.book_sql import VIEWS, sql_file
from ledger.facts import BatchAssembled, Fact, RefillRequested
from ledger.facts.lists import RunKind, StopReason
from ledger.open_log import open_log
from tests.assembled import (
    Desk,
    Teller,
    Told,
    an_attempt,
    group_id,
    opened,
    the_run,
    trajectory_id,
)
from tests.books import append, projected
from tests.builders import an_id

TRAINER = an_id("trainer")
ENDINGS = ("passes", "passes", "fails", "fails", "lost", "null", "truncated", "silent")


class Accounts:
    """The views over a book, as of the first facts of its log, or the first of each partition."""

    def __init__(self, facts: Sequence[Fact], folder: Path) -> None:
        url = f"sqlite:///{folder / 'log.db'}"
        with open_log(url) as log:
            append(log, facts)
        inserted = projected(url, folder / "book")
        assert (inserted.facts, inserted.quarantined) == (len(facts), 0)
        self.connection = duckdb.connect()
        self.connection.execute(f"ATTACH '{folder / 'book'}' AS whole (READ_ONLY)")
        self.connection.execute(
            "CREATE TABLE ends (of_run BIGINT, of_groups BIGINT[], also BIGINT[], without BIGINT[])"
        )
        self.as_of(len(facts))
        tables = self.connection.execute(
            "SELECT table_name, list(column_name) FROM duckdb_columns()"
            " WHERE database_name = 'whole' GROUP BY table_name"
        ).fetchall()
        for table, columns in tables:
            if table not in (*VIEWS, "producer_numbers"):
                self.connection.execute(_filtered(table, columns))
        self.connection.execute(sql_file("views/facts.sql"))
        counted = sql_file("producer_numbers.sql")
        self.connection.execute(f"CREATE VIEW producer_numbers AS {counted}")
        for view in VIEWS:
            self.connection.execute(sql_file(f"views/{view}.sql"))
        # To plan them takes most of the time that they take on a small book. Planned once, they
        # must not rely on what the table of ends holds at that time.
        self.connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        self.connection.execute("PREPARE broken AS FROM conservation")
        self.connection.execute(
            "PREPARE dispositions AS SELECT group_id, list(disposition ORDER BY slot)"
            " FROM dispositions GROUP BY group_id"
        )

    def as_of(self, *ends: int, also: Sequence[int] = (), without: Sequence[int] = ()) -> Self:
        """The first facts only. Of several ends the first is for facts about no group, the
        others are for groups, dealt out to them: so partitions are read to different places.
        `also` and `without` are places of facts behind the end to see, and before it not to."""
        self.connection.execute("DELETE FROM ends")
        self.connection.execute(
            "INSERT INTO ends VALUES (?, ?, ?, ?)",
            [ends[0], list(ends[1:] or ends), list(also), list(without)],
        )
        return self

    def ask(self, query: str) -> list[Any]:
        """Rows, with ids as text."""
        return [
            tuple(str(each) if type(each).__name__ == "UUID" else each for each in row)
            for row in self.connection.execute(query).fetchall()
        ]

    def broken(self, *scopes: str) -> list[tuple[Any, ...]]:
        """(identity, step, group, attempt, expected, found) of each row of `conservation`."""
        return sorted(
            (
                (identity, step, group, attempt, expected, found)
                for identity, scope, _, step, group, attempt, expected, found, _ in self.ask(
                    "EXECUTE broken"
                )
                if not scopes or scope in scopes
            ),
            key=str,
        )

    def dispositions(self) -> dict[str, list[str]]:
        """Group -> what its slots have come to."""
        return dict(self.ask("EXECUTE dispositions"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def _filtered(table: str, columns: list[str]) -> str:
    if "log_offset" not in columns:
        return f"CREATE VIEW {table} AS FROM whole.{table}"
    end = "of_run"
    if "group_id" in columns:
        end = "of_groups[1 + (hash(group_id) % len(of_groups))::INTEGER]"
    return (
        f"CREATE VIEW {table} AS FROM whole.{table} WHERE (SELECT"
        f" (log_offset < {end} OR log_offset IN also) AND log_offset NOT IN without FROM ends)"
    )


def in_order(facts: Iterable[Fact]) -> list[Fact]:
    """Facts with the sequence numbers that their producers would have given them."""
    counts: Counter[str] = Counter()
    numbered: list[Fact] = []
    for fact in facts:
        numbered.append(replace(fact, producer_seq=counts[fact.incarnation]))
        counts[fact.incarnation] += 1
    return numbered


def facts_of(desk: Desk) -> list[Fact]:
    """What a desk has read, as the log has it."""
    return in_order(each for *_, each in desk.records if isinstance(each, Fact))


def attempt(tell: Teller, group: int, slot: int, ending: str, refill: int = 0) -> list[Told]:
    """One attempt that ends as told."""
    reward = {"passes": 1.0, "null": None}.get(ending, 0.0)
    stop = StopReason.TURN_CAP if ending == "truncated" else StopReason.SUBMITTED
    told = an_attempt(tell, group, slot, reward, refill=refill, turns=1, stop=stop)
    if ending == "silent":
        return told[:2]
    if ending != "lost":
        return told
    ids: dict[str, Any] = {
        "group_id": group_id(group),
        "slot": slot,
        "trajectory_id": trajectory_id(group, slot, refill),
    }
    failed = {"stage": "sandbox_start", "error_type": "TimeoutException"}
    counts = {"turns_completed": 0, "turns_failed": 0, "tool_calls": 0, "reward_due": False}
    return [
        told[0],
        tell("sandbox_failed", **ids, try_no=0, **failed),
        tell("trajectory_finished", **ids, stop_reason=StopReason.ERROR, **failed, **counts),
    ]


def story(chance: random.Random, kind: RunKind = RunKind.TRAIN, groups: int = 4) -> list[Fact]:
    """Facts of a run in the order of the log: attempts of every kind, refills, groups that are
    dropped or stale, batches that are trained on or refused, attempts nobody hears of again."""
    settings = AssemblerSettings.of(
        {
            "groups_per_batch": chance.choice([1, 2]),
            "evidence_wait_s": 0,
            "max_staleness": 1,
            "overlong": chance.choice(["score", "mask"]),
            "on_infra_failure": chance.choice(["survivors", "refill", "drop_group"]),
            "over_sampling": chance.choice(["carry_over", "first_k"]),
        },
        "here",
    )
    desk = Desk(settings).read(*the_run(kind))
    left: list[list[Told]] = []
    for group in range(groups):
        size = chance.randint(2, 4)
        desk.read(opened(Teller(seed=10 * group), group, size))
        for slot in range(size):
            tell = Teller(an_id("agent", slot), seed=10 * group + 1 + slot)
            left.append(attempt(tell, group, slot, chance.choice(ENDINGS)))
    trainer = Teller(TRAINER, seed=5_000)
    while left:
        of_one = chance.choice(left)
        desk.read(of_one.pop(0))
        left = [each for each in left if each]
        if chance.random() < 0.2:
            left += _answers(desk.decide(), desk, trainer, chance)
    for _ in range(4):
        left = _answers(desk.decide(), desk, trainer, chance)
        desk.read(*[fact for each in left for fact in each])
    _answers(desk.wait(4_000).decide(), desk, trainer, chance)
    return facts_of(desk)


def _answers(made: list[Any], desk: Desk, tell: Teller, chance: random.Random) -> list[list[Told]]:
    """The trainer takes batches, and whoever runs a group starts the refills asked for."""
    refills: list[list[Told]] = []
    for fact in made:
        if isinstance(fact, BatchAssembled) and chance.random() < 0.8:
            if chance.random() < 0.3:
                desk.read(tell("batch_refused", batch_id=fact.batch_id, reason="stale"))
                continue
            desk.read(tell("step_completed", step=fact.step, batch_id=fact.batch_id))
            if chance.random() < 0.5:
                desk.read(tell("weights_published", policy_version=3 + (fact.step or 0)))
        elif isinstance(fact, RefillRequested):
            number = next(n for n in range(100) if group_id(n) == fact.group_id)
            agent = Teller(
                an_id("refiller"), seed=1_000 + 100 * number + 10 * fact.slot + fact.refill_no
            )
            ending = chance.choice(ENDINGS)
            refills.append(attempt(agent, number, fact.slot, ending, refill=fact.refill_no))
    return refills
