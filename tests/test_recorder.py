"""The recorder as its callers see it: what is recorded, what is counted, what ends how."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.avro import decode
from ledger.facts import FACTS
from ledger.log import LogError
from ledger.open_log import open_log
from ledger.recorder import Recorder
from ledger.recording.calls import OWN_FACTS
from ledger.sqlite_log import SqliteLog
from ledger.tokens import Tokens, unpack
from tests.builders import a_fact, an_id, fields_of, plain
from tests.recorded import (
    GROUP,
    IDS,
    RUN,
    TRAJECTORY,
    check_numbers,
    each_once,
    eventually,
    facts_in,
    of,
    run_script,
    start_script,
    turns_in,
    values_in,
)

Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes recorders, and closes those that a failing test leaves open."""
    made: list[Recorder] = []

    def make(url: str, **options: Any) -> Recorder:
        usual = {"producer": "test", "run_id": RUN, "spool_dir": tmp_path / "spool"}
        made.append(Recorder(url, **(usual | options)))
        return made[-1]

    yield make
    for recorder in made:
        recorder.close(1.0)


@pytest.fixture
def stuck(tmp_path: Path, make: Make) -> tuple[Callable[..., Recorder], Path]:
    """Makes recorders whose log and spool are both away, until the log's directory is made."""
    (tmp_path / "file").write_text("a spool's folder can't be in a file")
    away = tmp_path / "away"

    def make_stuck(**options: Any) -> Recorder:
        spool = tmp_path / "file" / "spool"
        return make(f"sqlite:///{away}/log.db", spool_dir=spool, **options)

    return make_stuck, away


def test_each_call_records_what_was_said(log_url: str, make: Make) -> None:
    said = {
        FACTS[name].__name__: (name, a_fact(name)) for name in sorted(set(FACTS) - set(OWN_FACTS))
    }
    recorder = make(log_url)
    for name, fact in said.values():
        getattr(recorder, name)(**fields_of(fact))
    assert recorder.close()
    facts = facts_in(log_url)
    assert check_numbers(facts) == {recorder.incarnation: len(said) + 2}
    assert {fact.producer for fact in facts} == {"test"}
    found = {type(fact).__name__: fact for fact in facts}
    assert sorted(found) == sorted([*said, "ProducerAlive", "ProducerClosed"])
    for kind, (_, fact) in said.items():
        assert plain(fields_of(found[kind])) == plain(fields_of(fact))


def test_a_payload_is_named_by_the_turn_that_it_came_with(log_url: str, make: Make) -> None:
    with make(log_url) as recorder:
        recorder.turn_completed(**IDS, turn_no=3, tokens=Tokens([7, 8, 9], [0, 1, 1], [0, -1, -2]))
    (turn,) = of(facts_in(log_url), "TurnCompleted")
    with open_log(log_url) as log:
        (payload,) = map(decode, values_in(log, "tokens"))
    digest = "adf4ade2eb55657bd6b879a7375145713d0430db765c3fbd311964fef93240c9"
    assert (turn.turn_no, turn.tokens_sha256, payload.sha256) == (3, digest, digest)
    assert (payload.group_id, payload.trajectory_id, payload.turn_no) == (GROUP, TRAJECTORY, 3)
    assert unpack(payload) == Tokens([7, 8, 9], [0, 1, 1], [0.0, -1.0, -2.0])


def test_bind_fills_in_what_a_fact_has_and_a_calls_own_value_wins(
    sqlite_url: str, make: Make
) -> None:
    other = an_id("other")
    with make(sqlite_url) as recorder:
        group = recorder.bind(group_id=GROUP, task_id="django-1", slot=9)
        attempt = group.bind(slot=2, trajectory_id=TRAJECTORY)
        group.group_opened(expected_size=8)
        attempt.trajectory_started()
        attempt.turn_completed(turn_no=0, group_id=other)
        attempt.engine_sampled(engine="e0")
    facts = facts_in(sqlite_url)
    (opened,) = of(facts, "GroupOpened")
    assert (opened.group_id, opened.task_id, opened.expected_size) == (GROUP, "django-1", 8)
    (started,) = of(facts, "TrajectoryStarted")
    assert (started.group_id, started.slot, started.trajectory_id, started.task_id) == (
        GROUP,
        2,
        TRAJECTORY,
        "django-1",
    )
    (turn,) = of(facts, "TurnCompleted")
    assert (turn.group_id, turn.slot) == (other, 2)
    assert len(of(facts, "EngineSampled")) == 1


def test_a_bound_name_that_no_fact_has_is_refused_with_the_facts(
    sqlite_url: str, make: Make
) -> None:
    recorder = make(sqlite_url)
    recorder.bind(grup_id=GROUP).turn_completed(**IDS, turn_no=0)
    assert not recorder.close()
    (lost,) = of(facts_in(sqlite_url), "ProducerLost")
    assert "turn_completed has no field grup_id" in lost.detail.head


def test_eight_threads_record_without_a_hole_and_each_in_its_order(
    log_url: str, make: Make
) -> None:
    recorder = make(log_url)
    groups = [an_id("group", number) for number in range(8)]

    def record(number: int) -> None:
        mine = recorder.bind(**(IDS | {"group_id": groups[number], "slot": number}))
        for turn_no in range(250):
            mine.turn_completed(turn_no=turn_no, request_id="x" * 2_000)
        assert recorder.flush()

    threads = [threading.Thread(target=record, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.close()
    facts = facts_in(log_url)
    check_numbers(facts)
    for number in range(8):
        turns = [fact for fact in of(facts, "TurnCompleted") if fact.slot == number]
        assert [turn.turn_no for turn in turns] == list(range(250))
        assert [turn.producer_seq for turn in turns] == sorted(turn.producer_seq for turn in turns)


def test_tasks_of_asyncio_record_and_wait_together(log_url: str, make: Make) -> None:
    recorder = make(log_url)

    async def attempt(slot: int) -> bool:
        for turn_no in range(5):
            recorder.turn_completed(**(IDS | {"slot": slot}), turn_no=turn_no)
            await asyncio.sleep(0)
        return await recorder.aflush()

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*map(attempt, range(200)))

    assert asyncio.run(all_of_them()) == [True] * 200
    facts = facts_in(log_url)
    check_numbers(facts)
    found = [(fact.slot, fact.turn_no) for fact in of(facts, "TurnCompleted")]
    assert sorted(found) == [(slot, turn_no) for slot in range(200) for turn_no in range(5)]


def test_aflush_gives_up_in_time_and_a_cancelled_one_harms_nobody(
    stuck: tuple[Make, Path],
) -> None:
    make_stuck, away = stuck
    recorder = make_stuck()
    recorder.turn_completed(**IDS, turn_no=0)

    async def wait() -> bool:
        task = asyncio.create_task(recorder.aflush())
        await asyncio.sleep(0.05)
        task.cancel()
        return await recorder.aflush(0.1)

    assert asyncio.run(wait()) is False
    assert recorder.flush(0.1) is False
    away.mkdir()
    assert recorder.flush()
    assert turns_in(f"sqlite:///{away}/log.db") == [0]


KILLED = """
recorder = a_recorder(alive_every_s=0.2)
number = 0
while True:
    for _ in range(20):
        number += 1
        print("recorded", number, time.time(), flush=True)
        recorder.turn_completed(**IDS, turn_no=number)
        time.sleep(0.001)
    if number <= 100 and recorder.flush():
        print("flushed", number, flush=True)
"""


def test_kill_9_loses_at_most_what_came_after_the_last_pulse(
    log_url: str, make: Make, tmp_path: Path
) -> None:
    process = start_script(KILLED, log_url, tmp_path / "spool")
    assert process.stdout is not None
    lines: list[list[str]] = []
    while not lines or lines[-1][:2] != ["recorded", "700"]:
        lines.append(process.stdout.readline().split())
    process.kill()
    lines += [line.split() for line in process.communicate()[0].splitlines() if line.count(" ") > 1]
    with make(log_url):
        pass
    facts = facts_in(log_url)
    turns = of(facts, "TurnCompleted")
    check_numbers(facts)
    recorded = {int(line[1]): float(line[2]) for line in lines if line[0] == "recorded"}
    assert ["flushed", "100"] in lines
    assert [turn.turn_no for turn in turns] == list(range(1, len(turns) + 1))
    assert len(turns) >= 100
    pulse = max(fact.occurred_at for fact in of(facts, "ProducerAlive", "script")).timestamp()
    missing = [at for number, at in recorded.items() if number > len(turns)]
    assert all(pulse - 0.001 <= at <= pulse + 0.2 + 0.5 for at in missing)


class Evil:
    """What no encoder expects."""

    def __repr__(self) -> str:
        raise SystemExit("printed")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = object.__hash__

    @property
    def __class__(self) -> type:
        raise KeyError("asked")


BAD_CALLS: list[tuple[str, Callable[[Recorder], None], str]] = [
    ("unknown field", lambda r: r.turn_completed(**IDS, turn_no=1, tok=1), "no field tok"),
    ("wrong type", lambda r: r.turn_completed(**IDS, turn_no="1"), "turn_no must be int"),
    ("positional", lambda r: r.turn_completed(1, **IDS, turn_no=1), "no field positional"),
    ("missing field", lambda r: r.turn_completed(**IDS), "turn_no is required"),
    ("self", lambda r: r.turn_completed(**IDS, turn_no=1, **{"self": 2}), "no field self"),
    ("unknown value", lambda r: r.trajectory_finished(**IDS, stop_reason="bored", reward_due=True),
     "stop_reason must be one of submitted"),
    ("surrogate", lambda r: r.turn_completed(**IDS, turn_no=1, engine="\ud800"), "UTF-8"),
    ("naive time", lambda r: r.turn_completed(**IDS, turn_no=1, occurred_at=datetime(2026, 1, 1)),
     "must have a time zone"),
    ("evil", lambda r: r.turn_completed(**IDS, turn_no=Evil()), "turn_completed can't be encoded"),
    ("evil time", lambda r: r.turn_completed(**IDS, turn_no=1, time_quality=Evil()),
     "turn_completed can't be encoded"),
    ("tokens", lambda r: r.turn_completed(**IDS, turn_no=1, tokens=[1, 2]), "must be Tokens"),
    ("no length", lambda r: r.turn_completed(**IDS, turn_no=1, tokens=Tokens(5, [1], [1])),
     "turn_completed"),
    ("a lone length", lambda r: r.turn_completed(**IDS, turn_no=1, tokens=Tokens([5], [], [])),
     "columns of one length"),
    ("object", lambda r: r.run_declared(kind="train", name=object()), "name must be str"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "detail"), [pytest.param(c, d, id=n) for n, c, d in BAD_CALLS])
def test_a_bad_call_raises_nothing_and_is_counted_and_reported(
    call: Callable[[Any], None], detail: str, sqlite_url: str, make: Make
) -> None:
    recorder = make(sqlite_url)
    good = recorder.bind(**IDS)
    for turn_no in range(20):
        good.turn_completed(turn_no=turn_no)
    call(recorder)
    for turn_no in range(20, 40):
        good.turn_completed(turn_no=turn_no)
    assert recorder.flush()
    assert recorder.lost == 1
    facts = facts_in(sqlite_url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(40))
    (lost,) = of(facts, "ProducerLost")
    assert (lost.count, lost.reason.value) == (1, "invalid")
    assert detail in lost.detail.head
    check_numbers(facts)
    assert not recorder.close()
    (closed,) = of(facts_in(sqlite_url), "ProducerClosed")
    assert closed.accepted == 41


def test_a_fact_that_is_too_large_is_reported_as_such(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    recorder.run_declared(kind="train", name="r", configuration="x" * 300_000)
    recorder.turn_completed(**IDS, turn_no=0)
    assert recorder.flush()
    facts = facts_in(sqlite_url)
    (lost,) = of(facts, "ProducerLost")
    assert (lost.count, lost.reason.value, lost.first_fact) == (1, "too_large", "run_declared")
    assert len(of(facts, "TurnCompleted")) == 1


def test_a_payload_that_is_too_large_is_lost_alone(log_url: str, make: Make) -> None:
    recorder = make(log_url)
    columns = ([1] * 600_000, [1] * 600_000, [0.5] * 600_000)
    recorder.turn_completed(**IDS, turn_no=0, tokens=Tokens(*columns))
    recorder.turn_completed(**IDS, turn_no=1, tokens=Tokens(*(part[:400_000] for part in columns)))
    assert recorder.flush()
    assert turns_in(log_url) == [1]
    assert recorder.lost == 1


def test_a_closed_recorder_counts_and_raises_nothing(
    sqlite_url: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = make(sqlite_url)
    recorder.turn_completed(**IDS, turn_no=0)
    assert recorder.close()
    for turn_no in range(1, 100):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.flush()
    assert recorder.lost == 99
    assert not recorder.close()
    assert turns_in(sqlite_url) == [0]
    said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == ["turn_completed is lost, and what follows it: the recorder is closed"]


def test_facts_that_race_with_close_are_recorded_or_counted(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    counts = [0] * 4
    flushed: list[bool] = []
    begun = threading.Barrier(5)

    def record(number: int) -> None:
        begun.wait()
        for _ in range(3_000):
            recorder.turn_completed(**(IDS | {"slot": number}), turn_no=counts[number])
            counts[number] += 1
        flushed.append(recorder.flush(10.0))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.02)
    recorder.close()
    for thread in threads:
        thread.join()
    assert len(turns_in(sqlite_url)) + recorder.lost == sum(counts) == 12_000
    assert flushed == [True] * 4


def test_a_full_queue_holds_callers_no_longer_than_the_bound_and_is_reported(
    stuck: tuple[Make, Path],
) -> None:
    make_stuck, away = stuck
    recorder = make_stuck(queue_limit=100, block_s=0.1, alive_every_s=0.02)
    longest = 0.0
    begun = time.monotonic()
    for turn_no in range(30_000):
        before = time.monotonic()
        recorder.turn_completed(**IDS, turn_no=turn_no)
        longest = max(longest, time.monotonic() - before)
    assert longest < 0.1 + 0.5
    assert time.monotonic() - begun < 20.0
    lost = recorder.lost
    assert lost > 10_000
    away.mkdir()
    assert recorder.flush()
    facts = facts_in(f"sqlite:///{away}/log.db")
    turns = [turn.turn_no for turn in of(facts, "TurnCompleted")]
    assert turns == sorted(set(turns))
    assert len(turns) + lost == 30_000
    for pulse in of(facts, "ProducerAlive"):
        # What is behind a pulse was recorded behind it, however much was on the queue then.
        later = [
            turn for turn in of(facts, "TurnCompleted") if turn.producer_seq > pulse.producer_seq
        ]
        assert all(
            turn.occurred_at > pulse.occurred_at - timedelta(milliseconds=50) for turn in later
        )
    reports = of(facts, "ProducerLost")
    assert {report.reason.value for report in reports} == {"queue_full"}
    assert sum(report.count for report in reports) == lost
    detail = reports[0].detail.head
    assert detail.startswith("queue of 100 facts or ")
    assert "the directory of a SQLite log must exist" in detail
    assert "spool" in detail
    check_numbers(facts)
    recorder.close()
    (closed,) = of(facts_in(f"sqlite:///{away}/log.db"), "ProducerClosed")
    assert closed.accepted == 30_000


def test_a_queue_that_had_room_again_waits_again(stuck: tuple[Make, Path]) -> None:
    make_stuck, away = stuck
    recorder = make_stuck(queue_limit=10, block_s=5.0)
    for turn_no in range(20):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    away.mkdir()
    for turn_no in range(20, 6_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.close()
    assert turns_in(f"sqlite:///{away}/log.db") == list(range(6_000))


def test_large_payloads_fill_the_queue_by_their_size(stuck: tuple[Make, Path]) -> None:
    make_stuck, _ = stuck
    recorder = make_stuck(block_s=0.01)
    ids = [1] * 400_000
    tokens = Tokens(ids, ids, ids)
    for turn_no in range(80):
        recorder.turn_completed(**IDS, turn_no=turn_no, tokens=tokens)
    assert 30 <= recorder.lost <= 70
    recorder.close(0.1)
    assert recorder.lost == 80


def test_what_neither_log_nor_spool_took_is_counted_at_close(stuck: tuple[Make, Path]) -> None:
    make_stuck, _ = stuck
    recorder = make_stuck()
    for turn_no in range(5_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    begun = time.monotonic()
    assert not recorder.close(0.5)
    assert time.monotonic() - begun < 3.0
    assert recorder.lost == 5_000


def test_close_is_the_last_fact_and_knows_how_many_there_were(log_url: str, make: Make) -> None:
    recorder = make(log_url)
    for turn_no in range(10):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    recorder.flush()
    recorder.turn_completed(**IDS, turn_no=10)
    recorder.turn_completed(**IDS)
    assert not recorder.close()
    assert not recorder.close()
    facts = facts_in(log_url)
    closed = max(facts, key=lambda fact: fact.producer_seq)
    assert type(closed).__name__ == "ProducerClosed"
    assert closed.accepted == 12
    assert closed.last_seq == closed.producer_seq - 1 == len(facts) - 2
    assert len(of(facts, "ProducerLost")) == 1


def test_pulses_come_in_their_interval_and_count(sqlite_url: str, make: Make) -> None:
    with make(sqlite_url, alive_every_s=0.1) as recorder:
        for turn_no in range(3):
            recorder.turn_completed(**IDS, turn_no=turn_no)
        eventually(lambda: len(of(facts_in(sqlite_url), "ProducerAlive")) >= 4)
    pulses = of(facts_in(sqlite_url), "ProducerAlive")
    assert {pulse.interval_s for pulse in pulses} == {0.1}
    assert [pulse.last_seq for pulse in pulses] == [pulse.producer_seq - 1 for pulse in pulses]
    assert pulses[-1].accepted == 3
    gaps = [b.occurred_at - a.occurred_at for a, b in itertools.pairwise(pulses)]
    assert all(gap.total_seconds() < 0.1 + 0.5 for gap in gaps)


ENDINGS = {
    "end": ("", 0),
    "forgotten": ("import gc; del recorder; gc.collect()", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise ValueError('of the loop')", 1),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", -signal.SIGINT),
    "interrupt in close": (
        "threading.Timer(0.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "while True: recorder.close()",
        -signal.SIGINT,
    ),
}


@pytest.mark.parametrize("ending", [pytest.param(each, id=name) for name, each in ENDINGS.items()])
def test_a_script_that_ends_without_close_has_everything_recorded(
    ending: tuple[str, int], sqlite_url: str, tmp_path: Path
) -> None:
    code = (
        "recorder = a_recorder()\nfor n in range(3000): recorder.turn_completed(**IDS, turn_no=n)"
    )
    run_script(f"{code}\n{ending[0]}", sqlite_url, tmp_path / "spool", returns=ending[1])
    facts = facts_in(sqlite_url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(3_000))
    (closed,) = of(facts, "ProducerClosed")
    assert closed.accepted == 3_000


@pytest.mark.kafka
def test_a_script_that_just_ends_has_everything_in_kafka(kafka_url: str, tmp_path: Path) -> None:
    code = """
recorder = a_recorder()
for n in range(3000):
    recorder.turn_completed(**IDS, turn_no=n)
print(recorder.flush())
for n in range(3000, 9000):
    recorder.turn_completed(**IDS, turn_no=n)
"""
    assert run_script(code, kafka_url, tmp_path / "spool") == "True\n"
    facts = facts_in(kafka_url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(9_000))
    assert len(of(facts, "ProducerClosed")) == 1
    assert list((tmp_path / "spool").rglob("*.spool")) == []


FORKS = """
import multiprocessing
recorder = a_recorder(alive_every_s=0.2)
bound = recorder.bind(**IDS)
for _ in range(30 if "warm" in sys.argv else 1):
    bound.turn_completed(turn_no=0)
if "at once" not in sys.argv:
    recorder.flush()
def child(first, depth):
    pid = os.fork()
    if pid == 0:
        if first is not None:
            for n in range(first, first + 100):
                bound.turn_completed(turn_no=n)
        if depth:
            child(first + 100, depth - 1)
        os._exit(0 if recorder.close() else 1)
    assert os.waitpid(pid, 0)[1] == 0
def worker(first):
    for n in range(first, first + 100):
        bound.turn_completed(turn_no=n)
child(100, 1)
child(None, 0)
process = multiprocessing.get_context("fork").Process(target=worker, args=(300,))
process.start()
process.join()
assert process.exitcode == 0
bound.turn_completed(turn_no=1)
assert recorder.close()
pid = os.fork()
if pid == 0:
    bound.turn_completed(turn_no=2)
    os._exit(0 if recorder.lost == 1 and threading.active_count() == 1 else 1)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("moment", ["warm", "flushed", "at once"])
def test_a_child_of_fork_has_an_incarnation_of_its_own_and_loses_nothing(
    moment: str, log_url: str, tmp_path: Path
) -> None:
    process = start_script(FORKS, log_url, tmp_path / "spool", moment)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    facts = facts_in(log_url)
    assert len(check_numbers(facts)) == 4
    by_incarnation = {
        fact.incarnation: [
            turn.turn_no
            for turn in of(facts, "TurnCompleted")
            if turn.incarnation == fact.incarnation
        ]
        for fact in facts
    }
    first = [0] * (30 if moment == "warm" else 1) + [1]
    ranges = [range(100, 200), range(200, 300), range(300, 400)]
    assert sorted(by_incarnation.values()) == [first, *map(list, ranges)]
    assert len(of(facts, "ProducerClosed")) == 4
    assert len({fact.event_id for fact in facts}) == len(facts)


def test_a_child_that_runs_another_program_starts_nothing(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    recorder.flush()
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
    assert recorder.close()
    assert len(check_numbers(facts_in(sqlite_url))) == 1


def test_a_clock_that_steps_back_changes_times_and_no_order(
    sqlite_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([5_000_000, 3_000_000, 4_000_000, 1_000_000])
    recorder = make(sqlite_url)
    recorder.flush()
    monkeypatch.setattr("ledger.recorder.now_us", lambda: next(times))
    for turn_no in range(4):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.close()
    turns = sorted(of(facts_in(sqlite_url), "TurnCompleted"), key=lambda turn: turn.producer_seq)
    assert [(turn.turn_no, turn.occurred_at) for turn in turns] == [
        (0, datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)),
        (1, datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)),
        (2, datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)),
        (3, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ]


def test_a_signal_handler_may_record_in_the_middle_of_a_call(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    numbers = itertools.count()

    def handle(number: int, frame: object) -> None:
        recorder.turn_completed(
            **(IDS | {"slot": 1}), turn_no=next(numbers), request_id="x" * 2_000
        )

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.002)
    try:
        for turn_no in range(10_000):
            recorder.turn_completed(**IDS, turn_no=turn_no, request_id="x" * 2_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert recorder.close()
    turns = of(facts_in(sqlite_url), "TurnCompleted")
    handled = next(numbers)
    assert handled > 10
    # Sorted, since a handler may have interrupted another.
    assert sorted(turn.turn_no for turn in turns if turn.slot == 1) == list(range(handled))
    assert [turn.turn_no for turn in turns if turn.slot == 0] == list(range(10_000))


def test_secrets_of_the_url_are_in_no_message_and_no_fact(
    make: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledger.recording.log_link.OPEN_WAIT_S", 0.5)
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "file"
    folder.write_text("in the way of the spool, so that facts are lost")
    recorder = make(
        "kafka://user:hunter%2B2@127.0.0.1:9/lab?ssl_password=pillow7",
        options={"sasl_mechanism": "PLAIN"},
        spool_dir=folder / "spool",
        queue_limit=10,
        block_s=0.0,
    )
    eventually(lambda: "facts go to the spool" in caplog.text)
    for turn_no in range(20_000):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.lost > 1_000
    folder.unlink()
    assert recorder.flush()
    (spool,) = (folder / "spool").rglob("*.spool")
    with open_spool(spool) as log:
        facts = each_once(values_in(log, "events"))
    (lost, *_) = of(facts, "ProducerLost")
    assert "log kafka://***@127.0.0.1:9/lab?ssl_password=***" in lost.detail.head
    recorder.close(1.0)
    texts = [caplog.text, *(str(plain(fact)) for fact in facts)]
    texts += [str(record.args) for record in caplog.records]
    for text in texts:
        assert "hunter" not in text
        assert "pillow7" not in text


def open_spool(path: Path) -> SqliteLog:
    """A copy of a live spool, which has its own locks."""
    copy = path.with_name("copy.db")
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return SqliteLog(copy)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log": "mysql://host/x"}, "log URL must start with sqlite:/// or kafka://"),
        ({"log": "kafka://h/x?partitons=3"}, "unknown Kafka client option 'partitons'"),
        ({"log": "kafka://h/x", "options": {"acks": "0"}}, "'acks' is set by the log itself"),
        ({"run_id": "my-run"}, "producer_alive.run_id must be a lower-case UUID, got 'my-run'"),
        ({"producer": 7}, "producer_alive.producer must be str, got 7"),
        ({"queue_limit": 0}, "queue_limit >= 1"),
        ({"block_s": -1.0}, "block_s >= 0"),
        ({"alive_every_s": 0.0}, "alive_every_s > 0"),
    ],
)
def test_what_no_fact_could_be_recorded_with_is_an_error_at_once(
    changed: dict[str, Any], message: str, sqlite_url: str, tmp_path: Path
) -> None:
    usual = {"log": sqlite_url, "producer": "test", "run_id": RUN, "spool_dir": tmp_path}
    with pytest.raises((LogError, ValueError)) as raised:
        Recorder(**(usual | changed))
    assert message in str(raised.value)
