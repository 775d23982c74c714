"""The order in which several partitions are copied: by time, and around recorded cuts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from consumers.copy_order import Arrived, Bound, CopyOrder
from ledger.log import Record


@dataclass
class Polls:
    """A partition that is read a few records at a time."""

    polls: list[list[Arrived]]
    end: int
    position: int = 0

    @property
    def ended(self) -> bool:
        return self.position >= self.end

    def read(self) -> Sequence[Arrived]:
        found = self.polls.pop(0)
        self.position = found[-1].offset + 1 if self.polls else self.end
        return found


@dataclass
class Order:
    """What came out: records by name with their times, and bounds where they were reached."""

    came: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    at: dict[tuple[str | None, Bound], int] = field(
        default_factory=dict[tuple[str | None, Bound], int]
    )


def ordered(
    partitions: dict[int, list[tuple[int, str]]],
    bounds: dict[str | None, list[Bound]] | None = None,
    chance: random.Random | None = None,
) -> Order:
    """Partition -> (time, name) of its records; a name begins with its run."""
    told = {run_id for run_id in bounds or {} if run_id is not None}
    streams: dict[int, Polls] = {}
    for partition, records in partitions.items():
        arrived = [
            Arrived(offset, time, name[0] if name[0] in told else None, Record("k", name.encode()))
            for offset, (time, name) in enumerate(records)
        ]
        polls: list[list[Arrived]] = []
        while arrived:
            size = 2 if chance is None else chance.randrange(1, 5)
            polls.append(arrived[:size])
            arrived = arrived[size:]
        streams[partition] = Polls(polls, len(records))
    found = Order()

    def reached(run_id: str | None, bound: Bound) -> None:
        found.at[run_id, bound] = len(found.came)

    for time, record in CopyOrder(streams, bounds or {}, reached):
        found.came.append((time, record.value.decode()))
    return found


def test_records_of_several_partitions_come_by_time() -> None:
    found = ordered({0: [(1, "a"), (4, "b"), (5, "c")], 1: [(2, "d"), (3, "e"), (9, "f")]})
    assert found.came == [(1, "a"), (2, "d"), (3, "e"), (4, "b"), (5, "c"), (9, "f")]


def test_what_a_cut_had_read_comes_before_the_rest_of_its_run_though_it_is_younger() -> None:
    cut = ((0, 1), (1, 2))
    found = ordered(
        {0: [(1, "R0"), (2, "R1"), (3, "S2")], 1: [(1, "R3"), (7, "R4"), (8, "R5")]}, {"R": [cut]}
    )
    assert found.at == {("R", cut): 3}
    # R4 overtakes R1, and gets a time that isn't past R1's.
    assert found.came == [(1, "R0"), (1, "R3"), (2, "R4"), (2, "R1"), (3, "S2"), (8, "R5")]


def test_cuts_of_two_runs_that_no_common_order_of_partitions_has_are_both_kept() -> None:
    of_r, of_s = ((0, 2), (1, 0)), ((0, 0), (1, 2))
    partitions = {0: [(1, "S0"), (2, "R1")], 1: [(1, "R2"), (2, "S3")]}
    found = ordered(partitions, {"R": [of_r], "S": [of_s]})
    names = [name for _, name in found.came]
    assert names.index("R1") < found.at["R", of_r] <= names.index("R2")
    assert names.index("S3") < found.at["S", of_s] <= names.index("S0")


def test_a_bound_about_every_run_that_contradicts_a_cut_is_given_up() -> None:
    of_all, of_r = ((0, 1), (1, 0)), ((0, 0), (1, 1))
    found = ordered({0: [(1, "R0")], 1: [(2, "R1")]}, {None: [of_all], "R": [of_r]})
    assert found.at == {("R", of_r): 1}
    assert [name for _, name in found.came] == ["R1", "R0"]


def test_every_run_keeps_its_cuts_whatever_its_assembler_had_read() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        partitions = {
            each: sorted((chance.randrange(30), f"{chance.choice('RST')}{each}") for _ in range(20))
            for each in range(3)
        }
        bounds: dict[str | None, list[Bound]] = {
            run_id: [
                tuple(enumerate(at))
                for at in zip(
                    *[sorted(chance.choices(range(21), k=4)) for _ in range(3)], strict=True
                )
            ]
            for run_id in "RS"
        }
        found = ordered(partitions, bounds, chance)
        assert [time for time, _ in found.came] == sorted(time for time, _ in found.came)
        assert sorted(name for _, name in found.came) == sorted(
            name for records in partitions.values() for _, name in records
        )
        for run_id in "RS":
            for bound in bounds[run_id]:
                before = [name for _, name in found.came[: found.at[run_id, bound]]]
                due = [name for each, at in bound for _, name in partitions[each][:at]]
                of_run = [name for name in due if name[0] == run_id]
                assert sorted(each for each in before if each[0] == run_id) == sorted(of_run)
