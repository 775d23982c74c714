"""The assembler of one run: log -> decisions and batches -> log.

    read events and tokens ─▶ RunState ─▶ plan ─▶ facts and batch ─▶ one fenced append ─┐
              ▲                                                                       │
              └──────────────────────── read back ◀────────────────────────────────────┘

Invariants:

1. Recorded decisions are authoritative. It decides nothing before it has read the log to its end
   behind its own fence, and nothing more before it has read back what it appended; so it may be
   killed at any moment, and no group is decided twice.
2. The facts of a cut and the batch that they announce are one append: all or nothing.
3. There is one assembler for a run. A newer one fences this one, which then ends with Fenced.
4. Groups that can't be decided for lack of room wait, and nothing is lost by it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from consumers.assembling.cut import Now, cut_of
from consumers.assembling.low_water import find_low_water
from consumers.assembling.plan import Plan, context_of, looked, plan, refuse
from consumers.assembling.publish import drafts_of
from consumers.assembling.reading import feed
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import AssemblerSettings
from consumers.batches import digests_of, training_batch
from consumers.fenced_recorder import FencedRecorder
from consumers.payloads import PayloadLost, fetch
from consumers.recorded_cuts import Ends
from ledger.batch_log import records_of
from ledger.facts.lists import GroupDecision, RunKind
from ledger.judgement import Peers, load_rules
from ledger.log import EventLog, LogError, LogUnavailable, Positions, Reader, Record, reached
from ledger.wire.encoder import now_us

logger = logging.getLogger(__name__)

PRODUCER = "assembler"
POLL_S = 0.1
MAX_RECORDS = 2_000
"""One poll; payloads are large."""
TICK_S = 1.0
"""How often the log's end is asked for, and time is let pass."""
UNSETTLED_MAX = 10
"""After so many vain tries, with the log there, a writer is given up."""
READ_BACK_S = 120.0
"""What was appended is read back within this, or something is wrong with the log."""


@dataclass(slots=True)
class Done:
    """What an assembler did."""

    decided: int = 0
    """Groups, those dropped from the queue again included."""
    dropped: int = 0
    """Of these, groups dropped."""
    batches: int = 0
    refills: int = 0


class Assembler:
    """Decides the groups of one run and assembles its batches. Used by one thread."""

    def __init__(self, log: EventLog, run_id: str, settings: AssemblerSettings) -> None:
        """Raises RulesError for a rule set that there isn't."""
        self._log = log
        self._run_id = run_id
        self._settings = settings
        self._rules = load_rules(settings.rules)
        self._state = RunState(run_id, settings, Peers())
        self._ends: Positions = {}
        self._next_tick = 0.0
        self._read_back_by = time.monotonic() + READ_BACK_S
        self._unsettled = 0
        self.done = Done()

    def run(
        self, stop: threading.Event, *, follow: bool, ready: Callable[[], None] | None = None
    ) -> None:
        """Decide what can be decided; with `follow`, go on until `stop`. `ready` is called once
        the log has been read to its end.

        Raises Fenced when a newer assembler of the run exists, LogUnavailable when the log is away
        at the start (later it waits), LogError for a run that has no groups to decide."""
        recorder = FencedRecorder(self._log, PRODUCER, self._run_id)
        try:
            positions, newest = find_low_water(self._log, self._run_id, now_us())
            if newest is not None:
                self._state.resume(newest)
            self._state.low_water.passed(0, positions)
            with self._log.reader(positions) as reader:
                self._read_to_end(reader, recorder, stop)
                if self._state.kind is None and not follow and not stop.is_set():
                    raise LogError(f"run {self._run_id} is not declared in this log (run_declared)")
                self._check_kind()
                if ready is not None and not stop.is_set():
                    ready()
                self._follow(reader, recorder, stop, follow)
            recorder.close()
        except BaseException:
            recorder.abandon()
            raise

    def _follow(
        self, reader: Reader, recorder: FencedRecorder, stop: threading.Event, follow: bool
    ) -> None:
        while not stop.is_set():
            if recorder.in_doubt:
                self._clear_up(reader, recorder, stop)
                continue
            self._read(reader, recorder)
            self._tick(reader)
            recorder.pulse()
            if recorder.unread:
                if time.monotonic() > self._read_back_by:
                    raise LogError(f"what {recorder.name} appended can't be read back")
                continue
            self._read_back_by = time.monotonic() + READ_BACK_S
            if not self._decide(reader, recorder) and not follow and self._at_end(reader):
                break

    def _decide(self, reader: Reader, recorder: FencedRecorder) -> bool:
        """Append what can be decided by what was read; whether there was anything."""
        state = self._state
        self._check_kind()
        if state.kind is None:
            return False
        now = state.clock.now(time.monotonic(), self._settings.lease_s)
        silent = state.leases.silent(now, self._settings.lease_s)
        due = [*state.due(now), *sorted(state.leases.newly_bereft(silent))]
        found = plan(state, context_of(state, self._rules, now, silent), due)
        try:
            records = self._payload(found)
        except LogUnavailable as error:  # all of it is planned anew once the log is back
            state.timers.due_again(due)
            self._wait(error)
            return True
        looked(state, found)
        self._tell_problems()
        if not found:
            return False
        self._append(found, records, now, reader.positions, recorder)
        return True

    def _append(
        self,
        found: Plan,
        records: list[Record],
        now: Now,
        positions: Positions,
        recorder: FencedRecorder,
    ) -> None:
        state, low_water = self._state, Positions()
        cut = cut_of(positions, now, state.versions.newest, self._settings)
        if found.batch is not None:  # whose fact has the low-water positions
            low_water = state.low_water.positions(positions, state.batches.values())
            state.forget_batches(low_water)
        recorder.append(drafts_of(state, found, self._rules, cut, low_water), records)
        self._count(found)

    def _payload(self, found: Plan) -> list[Record]:
        """Records of the batch, if there is one. A group whose payloads were removed from the log
        is dropped, and there is no batch at this cut. Raises LogUnavailable."""
        state, batch = self._state, found.batch
        if batch is None:
            return []
        try:
            payloads = fetch(self._log, state.tokens, digests_of(batch))
        except PayloadLost as lost:
            state.problems.append(str(lost))
            refuse(found, lost.group_id)
            return []
        version, model = state.versions.newest, state.model
        packed = training_batch(self._run_id, model, batch, payloads, version, self._settings)
        return records_of(packed)

    def _read(self, reader: Reader, recorder: FencedRecorder) -> None:
        try:
            for batch in reader.poll(POLL_S, MAX_RECORDS):
                feed(self._state, batch, recorder.read_back)
        except LogUnavailable as error:
            self._wait(error)

    def _wait(self, error: LogUnavailable) -> None:
        """The log is away."""
        logger.warning("waiting for the log: %s", error)
        self._state.clock.broken()
        time.sleep(TICK_S)

    def _read_to_end(self, reader: Reader, recorder: FencedRecorder, stop: threading.Event) -> None:
        """Read everything that the log has now, unless stopped. Raises LogUnavailable."""
        ends = Ends.of(self._log).places
        while not stop.is_set() and not reached(reader.positions, ends):
            for batch in reader.poll(POLL_S, MAX_RECORDS):
                feed(self._state, batch, recorder.read_back)

    def _at_end(self, reader: Reader) -> bool:
        """Whether everything in the log was read. Not as long as it can't be asked."""
        try:
            return reached(reader.positions, Ends.of(self._log).places)
        except LogUnavailable as error:
            self._wait(error)
            return False

    def _clear_up(self, reader: Reader, recorder: FencedRecorder, stop: threading.Event) -> None:
        """Find out what became of an append, and repeat it if it is not in the log."""
        self._state.clock.broken()
        try:
            if recorder.settle():
                self._read_to_end(reader, recorder, stop)
                if not stop.is_set():
                    recorder.resolve()
                self._unsettled = 0
                return
            Ends.of(self._log)  # the log is there, so it is the writer that can't go on
            self._unsettled += 1
        except LogUnavailable as error:
            logger.warning("waiting for the log: %s", error)
        if self._unsettled >= UNSETTLED_MAX:
            raise LogError(f"{recorder.name} can't append any more: start another assembler")
        stop.wait(TICK_S)

    def _tick(self, reader: Reader) -> None:
        if time.monotonic() < self._next_tick:
            return
        self._next_tick = time.monotonic() + TICK_S
        state, positions = self._state, reader.positions
        try:
            ends = Ends.of(self._log).places
        except LogUnavailable as error:
            logger.warning("waiting for the log: %s", error)
            state.clock.broken()
            return
        # By the end as of the last look: a busy log is always a little ahead.
        if reached(positions, self._ends):
            state.clock.caught_up(time.monotonic())
        else:
            state.clock.broken()
        self._ends = ends
        state.low_water.passed(state.clock.us, positions)
        state.forget_evidence()
        self._tell_problems()

    def _check_kind(self) -> None:
        if self._state.kind is RunKind.SFT:
            raise LogError(f"run {self._run_id} is an SFT run: it has no groups to decide")

    def _tell_problems(self) -> None:
        for problem in self._state.problems:
            logger.warning("refused: %s", problem)
        self._state.problems.clear()

    def _count(self, found: Plan) -> None:
        verdicts = [verdict for _, verdict in found.verdicts]
        self.done.decided += len(verdicts) + len(found.dropped)
        self.done.dropped += len(found.dropped) + sum(
            verdict.decision is GroupDecision.DROPPED for verdict in verdicts
        )
        self.done.batches += found.batch is not None
        self.done.refills += len(found.refills)
