"""Everything that was decided of a run, decided again at its cuts: log -> what came out otherwise.

    recorded decision ──────────────┐                      recorded batch, topic `batches` ──┐
    state at its cut ─ decide ─▶ compare ─▶ differences ◀─ compare ◀─ payloads ─ pack ─ the same

Invariants:

1. Nothing is appended, and nothing behind the ends of the log at the start is read.
2. A batch is compared twice: what `batch_assembled` says of it, and every token that was handed to
   the trainer.
3. What has left the log is read from its archive, if `log` is an ArchivedLog; else it is told as
   gone, by name.
"""

from __future__ import annotations

from dataclasses import replace

from consumers.assembling.batching import NextBatch
from consumers.assembling.run_state import RunState
from consumers.assembling.settings import sha256_of
from consumers.batches import digests_of, training_batch
from consumers.folded_cuts import Fold, Moment
from consumers.payloads import PayloadLost, fetch
from consumers.recorded_cuts import Ends, recorded_cuts
from consumers.replay_compare import (
    NOTHING,
    Difference,
    Replayed,
    batch_again,
    compare_batch,
    compare_groups,
    give_up,
    payload_gone,
)
from consumers.replay_sft import replay_sft
from consumers.stored_batches import StoredBatches, compare_handed, count_batch
from ledger.batches import TrainingBatch
from ledger.facts import BatchAssembled
from ledger.log import EventLog


def replay_run(log: EventLog, run_id: str, ends: Ends) -> Replayed:
    """Decide a run of any kind again. Raises LogError, LogUnavailable."""
    first = next(recorded_cuts(log, run_id, ends.events), None)
    if first is not None and first.of_sft:
        return replay_sft(log, run_id, ends)
    return replay_batches(log, run_id, ends)


def replay_batches(log: EventLog, run_id: str, ends: Ends | None = None) -> Replayed:
    """Decide a train or eval run again, up to `ends` or to where the log ends now.

    Raises LogError, LogUnavailable."""
    ends = ends or Ends.of(log)
    starts = log.start_positions("tokens")
    replayed = Replayed(run_id)
    with Fold(log, run_id, ends) as fold, StoredBatches(log, run_id) as stored:
        for found in fold.moments():
            if not isinstance(found, Moment):
                give_up(*found, replayed)
                continue
            compare_groups(found, starts, replayed)
            for fact in found.recorded.batches:
                compare_whole_batch(log, found, fact, stored, replayed)
    return replayed


def compare_whole_batch(
    log: EventLog, at: Moment, fact: BatchAssembled, stored: StoredBatches, replayed: Replayed
) -> None:
    """One batch: what was recorded of it, and what the trainer was handed."""
    batch = batch_again(at)
    differences = compare_batch(at, fact, batch)
    gone: str | None = None
    if batch is not None:
        handed = stored.take(fact.batch_id, lambda other: (other.step or 0) > (fact.step or 0))
        try:
            again = packed_again(log, at, batch)
            gone = compare_handed(fact.step, handed, again, differences)
        except PayloadLost as lost:
            gone = str(lost)
        except KeyError as missing:  # a recorded member names what its group doesn't have
            gone = _why_missing(log, at, batch)
            if gone is None:
                what = f"payload or attempt {missing}"
                differences.append(Difference(fact.step, None, None, what, "trained on", NOTHING))
    count_batch(fact.step, differences, gone, replayed)


def _why_missing(log: EventLog, at: Moment, batch: NextBatch) -> str | None:
    """Which payload of a batch has left the log; null: none."""
    starts = log.start_positions("tokens")
    found = (payload_gone(at.state, queued.group, starts) for queued in batch.groups)
    return next((why for why in found if why is not None), None)


def packed_again(log: EventLog, at: Moment, batch: NextBatch) -> TrainingBatch:
    """The batch from its payloads, under the configuration as it was recorded: later versions
    have more settings, which would be another hash. Raises PayloadLost, and KeyError for what
    isn't there."""
    state: RunState = at.state
    payloads = fetch(log, state.tokens, digests_of(batch))
    version = state.versions.newest
    packed = training_batch(state.run_id, state.model, batch, payloads, version, at.settings)
    configuration = at.recorded.cut.configuration
    sha256 = batch.sha256(sha256_of(configuration))
    return replace(packed, batch_sha256=sha256, configuration=configuration)
