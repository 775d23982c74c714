"""Recorders in threads, tasks, signal handlers, forks, and processes that end in any way."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.builders import an_id
from tests.recorded import IDS, Make, check_numbers, facts_in, of, run_script, start_script


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


IMPORTS = """
from ledger.open_log import check_log
check_log(url, {})
before = set(sys.modules)
recorder = a_recorder()
recorder.bind(**IDS).turn_completed(turn_no=0)
assert recorder.flush(30.0) and recorder.close()
print(sorted(set(sys.modules) - before))
"""


def test_no_thread_of_a_recorder_imports_anything(log_url: str, tmp_path: Path) -> None:
    # A fork in the middle of that would leave its child a lock that nobody gives back.
    assert run_script(IMPORTS, log_url, tmp_path / "spool") == "[]\n"


def test_a_child_that_runs_another_program_starts_nothing(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    recorder.flush()
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
    assert recorder.close()
    assert len(check_numbers(facts_in(sqlite_url))) == 1


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
