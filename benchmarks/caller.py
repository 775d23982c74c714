"""What a call costs the thread that makes it, while a live recorder writes to the log."""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.measured import Clock, Measured
from benchmarks.workload import RUN, TRAJECTORY_FACTS, Maker, record_trajectory
from ledger.recorder import Recorder

PACED_S = 0.001
BURST = 500
BETWEEN_S = 0.05
"""Between two bursts or trajectories: time for the recorder's threads to send them on."""


class Nothing:
    """A recorder that does nothing: what Python asks for a call with so many keywords. A call that
    comes alone finds the processor's caches cold, whatever it does."""

    def bind(self, **ids: Any) -> Nothing:
        """As `Recorder.bind`."""
        return self

    def turn_completed(self, **fields: Any) -> None:
        """As `Recorder.turn_completed`."""


def call_cost(url: str, spool: str, seed: int, calls: int) -> Measured:
    """Microseconds of one `turn_completed` and of one trajectory; `calls` of the first kind."""
    maker = Maker(seed)
    trips = list(itertools.islice(maker.trips(), calls // 10))
    with Recorder(url, producer="bench", run_id=RUN, spool_dir=Path(spool)) as recorder:
        for trip in trips[:20]:
            record_trajectory(recorder, trip)
        recorder.flush()
        with Clock() as clock:
            paced = _paced(recorder, trips)
            burst = _bursts(recorder, trips)
            floor_paced = _paced(Nothing(), trips)
            floor_burst = _bursts(Nothing(), trips)
            trajectory = _trajectories(recorder, trips[:300], BETWEEN_S)
            dense = _trajectories(recorder, trips[:300], 0.0)
        recorder.flush()
        if recorder.lost:
            raise RuntimeError(f"{recorder.lost} facts were lost")
    figures = {
        **_quantiles("paced", paced),
        **_quantiles("burst", burst),
        **_quantiles("floor_paced", floor_paced),
        **_quantiles("floor_burst", floor_burst),
        **_quantiles("trajectory", trajectory),
        **_quantiles("dense", dense),
    }
    facts = len(paced) + len(burst) + TRAJECTORY_FACTS * (len(trajectory) + len(dense))
    return clock.measured(facts, **figures)


def _turns(recorder: Any, trips: list[Any]) -> list[tuple[Any, dict[str, Any]]]:
    """A call's recorder and its fields; each trajectory has bound its ids, and used them once."""
    found: list[tuple[Any, dict[str, Any]]] = []
    for trip in trips:
        attempt = recorder.bind(**trip.ids)
        attempt.turn_completed(**trip.turns[0])
        found += [(attempt, turn) for turn in trip.turns]
    return found


def _paced(recorder: Any, trips: list[Any]) -> list[int]:
    """(n,) nanoseconds of one call each, a millisecond apart."""
    took: list[int] = []
    clock = time.perf_counter_ns
    for attempt, turn in _turns(recorder, trips):
        time.sleep(PACED_S)
        start = clock()
        attempt.turn_completed(**turn)
        took.append(clock() - start)
    return took


def _bursts(recorder: Any, trips: list[Any]) -> list[int]:
    """(n,) nanoseconds of one call each, BURST of them without a pause."""
    took: list[int] = []
    clock = time.perf_counter_ns
    for number, (attempt, turn) in enumerate(_turns(recorder, trips)):
        if number % BURST == 0:
            time.sleep(BETWEEN_S)
        start = clock()
        attempt.turn_completed(**turn)
        took.append(clock() - start)
    return took


def _trajectories(recorder: Any, trips: list[Any], pause_s: float) -> list[int]:
    """(n,) nanoseconds of all the calls of a trajectory, `bind` included."""
    took: list[int] = []
    for trip in trips:
        time.sleep(pause_s)
        start = time.perf_counter_ns()
        record_trajectory(recorder, trip)
        took.append(time.perf_counter_ns() - start)
    return took


def _quantiles(name: str, took_ns: list[int]) -> dict[str, float]:
    cuts = statistics.quantiles(took_ns, n=100)
    return {f"{name}_p50_us": cuts[49] / 1000, f"{name}_p99_us": cuts[98] / 1000}
