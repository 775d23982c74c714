"""What a monitor would have seen: engines and pools at the ticks of its clock.

Invariant: a sample counts exactly the attempts that were in a stage at its moment, so the samples
agree with the other facts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ledger.facts import PoolUse
from ledger.facts.lists import Stage
from ledger.wire.encoder import Draft
from producers.simulator.lived import Stay
from producers.simulator.plan import Span
from producers.simulator.teller import Teller


@dataclass(slots=True)
class _Engine:
    """One engine at one tick."""

    tokens: int = 0
    running: int = 0
    queued: int = 0


@dataclass(slots=True)
class _Tick:
    """All that is in flight at one tick."""

    stages: Counter[Stage] = field(default_factory=Counter[Stage])
    waiting: int = 0
    """For a sandbox slot."""
    engines: defaultdict[str, _Engine] = field(default_factory=lambda: defaultdict(_Engine))


class Samples:
    """Counts stays at ticks, and tells them."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ticks: defaultdict[int, _Tick] = defaultdict(_Tick)

    def add(self, stays: Sequence[Stay], waited_until_s: float) -> None:
        """The stays of one attempt, which had no sandbox slot until `waited_until_s`."""
        every_s = self._every_s
        for stay in stays:
            first = math.ceil(stay.start_s / every_s)
            if first * every_s >= stay.end_s:
                continue
            for number in range(first, math.ceil(stay.end_s / every_s)):
                tick = self._ticks[number]
                tick.stages[stay.stage] += 1
                if stay.engine is not None:
                    engine = tick.engines[stay.engine]
                    if number * every_s < stay.start_s + stay.queue_s:
                        engine.queued += 1
                    else:
                        engine.running += 1
                        engine.tokens += stay.tokens
                elif number * every_s < waited_until_s:
                    tick.waiting += 1

    def facts(
        self, tell: Teller, spans: Iterable[tuple[float, Span, Sequence[str]]], cluster: str
    ) -> Iterator[Draft]:
        """Samples of all ticks so far. `spans`: (start, span, its engines) in order; `cluster`:
        run id of the engines."""
        spans = list(spans)
        for number in sorted(self._ticks):
            at_s, tick = number * self._every_s, self._ticks[number]
            _, span, engines = max((s for s in spans if s[0] <= at_s), key=lambda s: s[0])
            for engine in engines:
                state = tick.engines[engine]
                sampled = {
                    "run_id": cluster,
                    "engine": engine,
                    "gpus": span.resources.engine_gpus_per_node,
                    "kv_used_tokens": state.tokens,
                    "kv_capacity_tokens": span.resources.kv_tokens_per_engine,
                    "running": state.running,
                    "queued": state.queued,
                    "retracted": 0,
                    "paused": 0,
                }
                yield tell.tell(f"{engine}/{number}", "engine_sampled", at_s, sampled)
            yield tell.tell(f"pools/{number}", "pool_sampled", at_s, _pools(tick, span))


def _pools(tick: _Tick, span: Span) -> dict[str, object]:
    in_flight = tick.stages.total()
    used, slots = in_flight - tick.waiting, span.resources.sandbox_slots
    return {
        "pools": [PoolUse("sandbox_slots", used, slots, tick.waiting)],
        "in_sandbox_start": tick.stages[Stage.SANDBOX_START],
        "in_setup": tick.stages[Stage.SETUP],
        "in_model": tick.stages[Stage.MODEL],
        "in_tool": tick.stages[Stage.TOOL],
        "in_verify": tick.stages[Stage.VERIFY],
    }
