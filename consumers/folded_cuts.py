"""The state of a run at each of its recorded cuts: a fold of what the log has before them.

Invariant: the state at a cut has everything before the cut's positions and nothing behind them,
whatever the order in which partitions are read. A cut that it can't be brought to is told with the
reason, and the fold goes on at the next one.

In the log that it was made in, a cut is as late as the newest fact before it. In a copy on Kafka,
whose brokers give times of their own, facts lie before a cut and are dated after it. Of those no
time is known but that: they are taken to be as old as whoever waits for peers' evidence wants them,
and young for deadlines and leases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from consumers.assembling.context import Context
from consumers.assembling.cut import Now, moment
from consumers.assembling.plan import context_of
from consumers.assembling.reading import feed
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings, BadSettings
from consumers.recorded_cuts import AtCut, Ends, LogFeed, recorded_cuts
from ledger.attempt import Attempt
from ledger.facts import Cut, Fact
from ledger.judgement import Evidence, Peers, RulesError, load_rules
from ledger.log import EventLog, LogError, Positions, RecordBatch, positions_of
from ledger.wire.checks import to_micros


class BadCut(LogError):
    """A cut that nothing can be decided at again; the message says value, rule and place."""


def settings_of(
    cut: Cut, over: Mapping[str, object] | None = None, place: str = "a cut's configuration"
) -> AssemblerSettings:
    """What a cut was decided by, some of it replaced. Raises BadSettings."""
    try:
        recorded = json.loads(cut.configuration)
    except ValueError as error:
        raise BadSettings(f"a cut's configuration must be JSON: {error}") from None
    if not isinstance(recorded, dict):
        raise BadSettings(f"a cut's configuration must be a JSON object, got {recorded!r}")
    return AssemblerSettings.of({**recorded, **(over or {})}, place)


@dataclass(slots=True)
class Moment:
    """A run as it was at one cut."""

    recorded: AtCut
    state: RunState
    settings: AssemblerSettings
    """Those that were decided by."""
    timeless: bool = False
    """Whether facts before the cut are dated after it, so that it can't be told what time ended."""

    def context(self, settings: AssemblerSettings) -> Context:
        """What decisions at this cut depend on under `settings`. Evidence is what the recorded
        judgements wrote out. Raises RulesError, and ValueError for a run without a kind."""
        # Time is taken to be settled. A group that was complete is decided alike either way, and
        # one that was closed by time alone can't have been closed otherwise.
        now = Now(to_micros(self.recorded.cut.log_time), settled=True)
        silent = self.state.leases.silent(now, settings.lease_s)

        def evidence(attempt: Attempt) -> Evidence:
            return self.recorded.evidence.get(attempt.trajectory_id, Evidence())

        rules = load_rules(settings.rules)
        return replace(context_of(self.state, rules, now, silent, evidence), settings=settings)


class Fold:
    """The state of one run, brought from cut to cut. Used by one thread; to be closed.

    A limit: payloads are checked by the `vocabulary_size` of the first cut. Where a later assembler
    had another one, a payload that only one of the two refuses comes out otherwise."""

    def __init__(
        self, log: EventLog, run_id: str, ends: Ends, each: Callable[[Fact], None] | None = None
    ) -> None:
        """`each` is called with every fact that is taken."""
        self._log = log
        self._run_id = run_id
        self._ends = ends
        self._each = each
        self._state: RunState | None = None
        self._reached: Positions = {}
        self._timeless = False
        self._feed = LogFeed(log, log.start_positions("events") | log.start_positions("tokens"))

    def moments(self) -> Iterator[Moment | tuple[AtCut, str]]:
        """All cuts in order. One that can't be gone to comes with the reason."""
        for recorded in recorded_cuts(self._log, self._run_id, self._ends.events):
            if recorded.of_sft:
                yield recorded, "it is of an SFT run"
                continue
            try:
                yield self._to(recorded)
            except (BadCut, BadSettings, RulesError) as error:
                yield recorded, str(error)

    def to_end(self, last: Moment) -> Moment:
        """The state where the log ended; nothing was recorded there."""
        for batch in self._feed.up_to(self._ends.places):
            feed(last.state, batch, self._each)
        now = max(moment(last.state.clock.us), last.recorded.cut.log_time)
        at_end = AtCut(replace(last.recorded.cut, log_time=now))
        return Moment(at_end, last.state, last.settings, last.timeless)

    def close(self) -> None:
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _to(self, recorded: AtCut) -> Moment:
        places, settings = self._places(recorded.cut), settings_of(recorded.cut)
        load_rules(settings.rules)
        if self._state is None:
            self._state = RunState(self._run_id, settings, Peers())
        state = self._state
        state.settings = settings
        for batch in self._feed.up_to(places):
            feed(state, self._dated(batch, recorded.cut, settings), self._each)
        state.problems.clear()
        state.forget_evidence()
        if state.kind is None:
            raise BadCut(f"run {self._run_id} is not declared before its first cut")
        return Moment(recorded, state, settings, self._timeless)

    def _dated(self, batch: RecordBatch, cut: Cut, settings: AssemblerSettings) -> RecordBatch:
        """Records before a cut, none of whose facts is dated after it."""
        cut_us = to_micros(cut.log_time)
        if batch.topic != "events" or max(batch.log_times_us, default=0) <= cut_us:
            return batch  # payloads may be: they don't move the log's clock
        self._timeless = True
        waited_us = cut_us - int(settings.evidence_wait_s * 1_000_000)
        times_us = [each if each <= cut_us else waited_us for each in batch.log_times_us]
        return replace(batch, log_times_us=times_us)

    def _places(self, cut: Cut) -> Positions:
        try:
            places = positions_of(cut.positions)
        except ValueError as error:
            raise BadCut(f"positions of a cut: {error}") from None
        ends = self._ends.places
        for place, at in places.items():
            if place not in ends:
                raise BadCut(f"the log has no partition {place}, which a cut names")
            if at > ends[place]:
                raise BadCut(f"a cut lies at {at} of {place}, and the log ends at {ends[place]}")
            if at < (reached := self._reached.get(place, 0)):
                raise BadCut(f"a cut lies at {at} of {place}, and one before it at {reached}")
        self._reached |= places
        return places
