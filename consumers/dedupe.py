"""Which decoded facts are new to the book, which came before, which contradict one that did.

Delivery is at least once: a producer that isn't sure appends again. A fact is the same as another
if they agree in all but who recorded it (producer, incarnation, number); it then counts once. One
id with other content is a conflict.

Every id is looked up, and this is what keeps that cheap: ids of version 7 begin with their time,
so those of a chunk lie close together, mostly behind all that a table has; the few others are
looked up in the row groups that hold such times, which DuckDB finds by their smallest and largest
id. Ids that were derived from a source (another version) lie anywhere; they are in a table of
their own, narrow enough to be searched whole.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast
from uuid import UUID

import duckdb
import pyarrow as pa

from consumers.decode import DecodedFacts, Reject
from ledger.facts import FACTS
from ledger.wire.schema import hints

_HEX_TO_0 = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_UUID = b"00000000-0000-0000-0000-000000000000"
_VERSION_AT = 14
"""Where in a UUID's text its version stands."""
_WHO_RECORDED = ("producer", "incarnation", "producer_seq")


class StrangeId(ValueError):
    """A foreign writer's event id isn't a UUID in its canonical form."""


class HighestIds:
    """The highest id of version 7 in each table and partition, as far as it was needed. By
    partition, since one is read far ahead of another, and a fact that comes again comes in the
    partition of its key."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._highest: dict[str, dict[int, str]] = {}

    def of(self, name: str, partition: int) -> str:
        """Behind it no id of the partition lies in the table; "" where there is none."""
        return self._of_table(name).get(partition, "")

    def raise_to(self, name: str, partition: int, event_id: str) -> None:
        """The table has this id of that partition now."""
        self._of_table(name)[partition] = max(self.of(name, partition), event_id)

    def forget(self) -> None:
        """After a rollback: what was raised in memory may not be in the book."""
        self._highest.clear()

    def _of_table(self, name: str) -> dict[int, str]:
        if name not in self._highest:
            found = self._connection.execute(
                f"SELECT log_partition, max(event_id) FROM {name}"
                " WHERE uuid_extract_version(event_id) = 7 GROUP BY log_partition"
            ).fetchall()
            self._highest[name] = {int(place): str(event_id) for place, event_id in found}
        return self._highest[name]


@dataclass(slots=True)
class Verdict:
    """Facts of one kind by what the book should do with them."""

    new: list[DecodedFacts] = field(default_factory=list[DecodedFacts])
    derived: list[str] = field(default_factory=list[str])
    """Ids of the new ones that were derived from a source."""
    duplicates: list[DecodedFacts] = field(default_factory=list[DecodedFacts])
    """Facts that count already."""
    conflicts: list[Reject] = field(default_factory=list[Reject])


def judge(
    connection: duckdb.DuckDBPyConnection, highest: HighestIds, facts: DecodedFacts
) -> Verdict:
    """Compare facts of one kind with what the book holds, and with one another. `highest` then
    counts the new ones as inserted."""
    ids = _event_ids(facts)
    derived = _derived(ids)
    recorded = _by_partition(facts, ids, set(derived))
    known = _known(connection, highest, facts.wire.name, recorded, derived)
    for partition, some in recorded.items():
        highest.raise_to(facts.wire.name, partition, max(some))
    if len(set(ids)) < len(ids):
        known |= {event_id for event_id, count in Counter(ids).items() if count > 1}
    if not known:
        return Verdict(new=[facts], derived=derived)
    suspects = [row for row, event_id in enumerate(ids) if event_id in known]
    verdict = _compare(connection, facts.take(suspects))
    if len(suspects) < len(ids):
        verdict.new.append(
            facts.take([row for row, event_id in enumerate(ids) if event_id not in known])
        )
        verdict.derived += [event_id for event_id in derived if event_id not in known]
    return verdict


def _event_ids(facts: DecodedFacts) -> list[str]:
    return cast(list[str], facts.table["event_id"].to_pylist())


# What follows runs for every fact, so it looks at all ids at once rather than at each.


def _derived(ids: Sequence[str]) -> list[str]:
    """Those ids that were derived from a source, rather than made by a recorder.

    Raises StrangeId for one that isn't written as recorders do: it would be another text and the
    same id."""
    text = "".join(ids).encode()
    if set(map(len, ids)) != {len(_UUID)} or text.translate(_HEX_TO_0) != _UUID * len(ids):
        raise StrangeId("an event_id is written in another form than the canonical one")
    versions = text[_VERSION_AT :: len(_UUID)]
    if versions.count(b"7") == len(ids):
        return []
    return [event_id for event_id in ids if event_id[_VERSION_AT] != "7"]


def _by_partition(
    facts: DecodedFacts, ids: Sequence[str], derived: set[str]
) -> dict[int, list[str]]:
    """The ids of version 7 in each partition that has any. Records come in long stretches of one
    partition."""
    found: dict[int, list[str]] = {}
    start = 0
    for partition, records in groupby(facts.places.partitions):
        stop = start + len(list(records))
        found.setdefault(partition, []).extend(ids[start:stop])
        start = stop
    if not derived:
        return found
    kept = {place: [each for each in some if each not in derived] for place, some in found.items()}
    return {place: some for place, some in kept.items() if some}


def _known(
    connection: duckdb.DuckDBPyConnection,
    highest: HighestIds,
    name: str,
    recorded: Mapping[int, Sequence[str]],
    derived: Sequence[str],
) -> set[str]:
    """Those ids that the book has: version 7 in the kind's own table, others in any."""
    within: list[str] = []
    for partition, ids in recorded.items():
        top = highest.of(name, partition)
        if min(ids) <= top:
            within += [event_id for event_id in ids if event_id <= top]
    found = set(_kinds(connection, derived)) if derived else set[str]()
    if within:
        with _listed(connection, within) as listed:
            rows = connection.execute(
                f"SELECT event_id FROM {name} WHERE event_id BETWEEN ?::UUID AND ?::UUID"
                f" AND event_id IN (SELECT event_id::UUID FROM {listed})",
                [min(within), max(within)],
            ).fetchall()
        found |= {str(event_id) for (event_id,) in rows}
    return found


@contextlib.contextmanager
def _listed(connection: duckdb.DuckDBPyConnection, ids: Sequence[str]) -> Generator[str]:
    """A view of ids. As a parameter, a list costs DuckDB's client 0.2 ms for each of its items."""
    connection.register("listed_ids", pa.table({"event_id": pa.array(ids, pa.string())}))
    try:
        yield "listed_ids"
    finally:
        connection.unregister("listed_ids")


def _kinds(connection: duckdb.DuckDBPyConnection, ids: Sequence[str]) -> dict[str, str]:
    """Derived event id -> the kind of fact that the book has under it."""
    with _listed(connection, ids) as listed:
        rows = connection.execute(
            "SELECT event_id, fact FROM derived_ids"
            f" WHERE event_id IN (SELECT event_id::UUID FROM {listed})"
        ).fetchall()
    return {str(event_id): str(fact) for event_id, fact in rows}


def _compare(connection: duckdb.DuckDBPyConnection, suspects: DecodedFacts) -> Verdict:
    """Facts whose ids came before, in the book or among themselves."""
    ids = _event_ids(suspects)
    content = suspects.table.select(_compared(suspects.wire.name)).to_pylist()
    stored = _stored(connection, suspects)
    kinds = _kinds(connection, ids)
    other = {each: kind for each, kind in kinds.items() if kind != suspects.wire.name}
    first: dict[str, int] = {}
    again: list[int] = []
    verdict = Verdict()
    for row, event_id in enumerate(ids):
        if row in stored:
            same = stored[row]
        elif event_id in first:
            same = _equal(content[row], content[first[event_id]])
        elif event_id in other:
            same = False
        else:
            first[event_id] = row
            continue
        if same:
            again.append(row)
        else:
            verdict.conflicts.append(_conflict(suspects, row, event_id, other.get(event_id)))
    verdict.new = [suspects.take(list(first.values()))] if first else []
    verdict.derived = _derived(list(first)) if first else []
    verdict.duplicates = [suspects.take(again)] if again else []
    return verdict


def _equal(one: Any, other: Any) -> bool:
    """Equality as the database has it: nan is nan."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):  # a map is pairs
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other or (one != one and other != other)


def _conflict(facts: DecodedFacts, row: int, event_id: str, other: str | None) -> Reject:
    detail = f"event_id {event_id} is in the book with other content"
    if other is not None:
        detail = f"event_id {event_id} is in the book as a {other}"
    number = facts.table.slice(row, 1).select(["incarnation", "producer_seq"]).to_pylist()[0]
    return Reject(facts.places.at(row), "conflict", detail, event_id, **number)


def _compared(name: str) -> list[str]:
    return [column for column in hints(FACTS[name]) if column not in _WHO_RECORDED]


def _stored(connection: duckdb.DuckDBPyConnection, suspects: DecodedFacts) -> dict[int, bool]:
    """Row -> whether the book's fact of the same id and kind has the same content."""
    name = suspects.wire.name
    ids = [UUID(event_id) for event_id in suspects.table["event_id"].to_pylist()]
    # Cast by the table itself, so that what is compared is what would be stored.
    connection.execute(f"CREATE TEMP TABLE suspects AS SELECT 0 AS suspect, * FROM {name} LIMIT 0")
    rows = pa.array(range(len(ids)), pa.int32())
    connection.register("suspect_rows", suspects.table.add_column(0, "suspect", rows))
    connection.execute("INSERT INTO suspects FROM suspect_rows")
    same = " AND ".join(
        f's."{column}" IS NOT DISTINCT FROM t."{column}"' for column in _compared(name)
    )
    found = connection.execute(
        f"SELECT s.suspect, {same} FROM temp.suspects AS s JOIN {name} AS t"
        " ON s.event_id = t.event_id WHERE t.event_id BETWEEN ? AND ?",
        [min(ids), max(ids)],
    ).fetchall()
    connection.unregister("suspect_rows")
    connection.execute("DROP TABLE temp.suspects")
    return {int(row): bool(equal) for row, equal in found}
