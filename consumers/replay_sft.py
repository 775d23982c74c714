"""The batches of an SFT run, made again at their cut: log -> what came out otherwise.

Invariant: the plan is made from what lies before the recorded cut, and from the recorded settings
only; so it must have every recorded batch, in the recorded order.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumers.assembling.publish import batch_id_of
from consumers.assembling.settings import BadSettings, sha256_of
from consumers.payloads import PayloadLost, fetch
from consumers.recorded_cuts import AtCut, Ends, recorded_cuts
from consumers.replay_compare import NOTHING, Difference, Replayed, give_up
from consumers.sft_assembler import model_of
from consumers.sft_batches import SftBatch, SftSettings, training_batch
from consumers.stored_batches import StoredBatches, compare_handed, count_batch
from consumers.stored_traces import SftPlan, plan_sft
from ledger.facts import BatchAssembled
from ledger.log import EventLog, TopicPartition, positions_of


def replay_sft(log: EventLog, run_id: str, ends: Ends) -> Replayed:
    """Make an SFT run's batches again. Raises LogError, LogUnavailable."""
    replayed = Replayed(run_id)
    with StoredBatches(log, run_id) as stored:
        for recorded in recorded_cuts(log, run_id, ends.events):
            try:
                _compare(log, run_id, recorded, ends, stored, replayed)
            except BadSettings as error:
                give_up(recorded, str(error), replayed)
    return replayed


def _compare(
    log: EventLog,
    run_id: str,
    recorded: AtCut,
    ends: Ends,
    stored: StoredBatches,
    replayed: Replayed,
) -> None:
    cut = recorded.cut
    settings = SftSettings.read(cut.configuration)
    upto = positions_of(cut.positions)
    if beyond := [place for place, at in upto.items() if at > ends.places.get(place, -1)]:
        raise BadSettings(f"a cut lies at {upto[beyond[0]]} of {beyond[0]}, past the log's end")
    plan = plan_sft(log, settings, upto)
    again = {
        batch_id_of(run_id, batch.sha256(cut.configuration)): (number, batch)
        for number, batch in enumerate(plan.batches)
    }
    gone = _removed(plan, log.start_positions("tokens"))
    for number, fact in enumerate(recorded.batches):
        if fact.batch_id not in again and gone:
            why = f"payloads of {gone} traces that may be in it are not in the log any more"
            give_up(AtCut(cut, batches=[fact]), why, replayed)
            continue
        _compare_batch(log, fact, number, again, plan, settings, stored, replayed)


def _removed(plan: SftPlan, starts: Mapping[TopicPartition, int]) -> int:
    """How many good traces lack payloads that may have left the log."""
    return sum(
        starts[TopicPartition("tokens", trace.group.partition)] > 0
        and not all(plan.tokens.known(trace.group.group_id, each) for each in trace.digests)
        for trace in plan.lost
    )


def _compare_batch(
    log: EventLog,
    fact: BatchAssembled,
    number: int,
    again: dict[str, tuple[int, SftBatch]],
    plan: SftPlan,
    settings: SftSettings,
    stored: StoredBatches,
    replayed: Replayed,
) -> None:
    gone: str | None = None
    configuration = fact.cut.configuration
    planned = plan.batches[number] if number < len(plan.batches) else None
    differences = _differences(fact, planned)
    if fact.batch_id in again:
        at, batch = again[fact.batch_id]
        handed = stored.take(
            fact.batch_id, lambda other: again.get(other.batch_id, (-1, None))[0] > at
        )
        try:
            payloads = fetch(log, plan.tokens, batch.digests)
            model = model_of(plan, settings)
            packed = training_batch(fact.run_id, model, batch, payloads, settings, configuration)
            gone = compare_handed(None, handed, packed, differences)
        except PayloadLost as lost:
            gone = str(lost)
    count_batch(None, differences, gone, replayed)
    before, after = fact.trace_ids, [] if planned is None else planned.trace_ids
    for one, other in zip(before, [*after, *[None] * len(before)], strict=False):
        replayed.members.count(one != other)


def _differences(fact: BatchAssembled, planned: SftBatch | None) -> list[Difference]:
    """What `batch_assembled` says against the batch at its place in the plan."""
    if planned is None:
        return [Difference(None, None, None, "batch", fact.batch_id, NOTHING)]
    sha256 = planned.sha256(fact.cut.configuration)
    return [
        Difference(None, None, None, name, one, other)
        for name, one, other in (
            ("batch_sha256", fact.batch_sha256, sha256),
            ("batch_id", fact.batch_id, batch_id_of(fact.run_id, sha256)),
            ("trace_ids", fact.trace_ids, planned.trace_ids),
            (
                "cut.configuration_sha256",
                fact.cut.configuration_sha256,
                sha256_of(fact.cut.configuration),
            ),
        )
        if one != other
    ]
