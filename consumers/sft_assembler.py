"""Batches for supervised fine-tuning: stored attempts -> topic `batches`, for a run of kind sft.

    read to the end ─▶ plan ─▶ nothing missing? done
         ▲                └──▶ fence ─▶ read again ─▶ append what is missing, batch by batch
         └─ a recorded cut counts: the plan is made at it again

Invariants:

1. The first recorded batch fixes cut and settings for the run. So whoever goes on after a kill
   makes the same batches, appends those that are missing, and a second run writes nothing.
2. A batch and its `batch_assembled` are one append; the run's declaration goes with the first.
3. There is one writer for a run. A newer one fences it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumers.assembling.cut import moment
from consumers.assembling.publish import batch_id_of, derived_draft, derived_id
from consumers.assembling.settings import BadSettings, sha256_of
from consumers.fenced_recorder import FencedRecorder
from consumers.payloads import fetch
from consumers.recorded_cuts import Ends, recorded_cuts
from consumers.sft_batches import SftBatch, SftSettings, training_batch
from consumers.stored_traces import SftPlan, plan_sft
from ledger.batch_log import records_of
from ledger.facts import BatchAssembled, Cut
from ledger.facts.lists import RunKind
from ledger.log import EventLog, LogError, LogUnavailable, positions_of
from ledger.wire.encoder import Draft

PRODUCER = "sft-assembler"


@dataclass(frozen=True, slots=True)
class SftRun:
    """The run that the batches are for."""

    run_id: str
    """UUID of the run."""
    parent_run_id: str | None
    """The run whose weights it starts from; null: of none that is known."""
    name: str
    """For people."""


@dataclass(slots=True)
class SftDone:
    """What came of it."""

    run_id: str
    batches: int = 0
    """In all."""
    written: int = 0
    """Of these, those that weren't in the log."""
    traces: int = 0
    tasks: int = 0
    """That the traces are of."""
    lost: int = 0
    """Traces that were left out because their payloads aren't in the log or can't be used."""


def sft_run(
    log: EventLog,
    settings: SftSettings,
    run_id: str | None = None,
    parent_run_id: str | None = None,
    name: str | None = None,
) -> SftRun:
    """The run for these settings. Its id is derived from log, parent and settings unless given;
    its parent is the run that the traces come from, where that is one. Raises BadSettings."""
    if parent_run_id is None:
        parent_run_id, *others = settings.from_runs
        if others:
            raise BadSettings(
                f"a parent must be named for traces of {len(others) + 1} runs (--parent)"
            )
    derived = derived_id("sft", log.identity, parent_run_id, settings.canonical)
    return SftRun(run_id or derived, parent_run_id, name or "SFT on stored traces")


def assemble_sft(log: EventLog, run: SftRun, settings: SftSettings) -> SftDone:
    """Append the batches of an SFT run that aren't in the log.

    Raises BadSettings, LogError, Fenced, and LogUnavailable, after which the same call goes on
    where this one was."""
    found = _look(log, run, settings)
    if not found.missing:
        return found.done(run.run_id)
    recorder = FencedRecorder(log, PRODUCER, run.run_id)
    try:
        found = _look(log, run, settings)  # somebody may have written before the fence stood
        for batch in found.missing:
            _append(log, recorder, run, settings, found, batch)
        recorder.close()
    except BaseException:
        recorder.abandon()
        raise
    return found.done(run.run_id)


@dataclass(slots=True)
class _Found:
    """What the log has, and what it should have."""

    cut: Cut
    plan: SftPlan
    missing: list[SftBatch]
    declared: bool
    """Whether the run is."""

    def done(self, run_id: str) -> SftDone:
        traces = [trace for batch in self.plan.batches for trace in batch.traces]
        tasks = {trace.task_id for trace in traces}
        written, lost = len(self.missing), len(self.plan.lost)
        return SftDone(run_id, len(self.plan.batches), written, len(traces), len(tasks), lost)


def _look(log: EventLog, run: SftRun, settings: SftSettings) -> _Found:
    ends = Ends.of(log)
    recorded = [fact for at in recorded_cuts(log, run.run_id, ends.events) for fact in at.batches]
    upto = positions_of(recorded[0].cut.positions) if recorded else ends.places
    plan = plan_sft(log, settings, upto)
    _check(run, settings, plan, recorded)
    cut = recorded[0].cut if recorded else _cut(ends, plan, settings)
    ids = {fact.batch_id for fact in recorded}
    missing = [
        batch
        for batch in plan.batches
        if batch_id_of(run.run_id, batch.sha256(settings.canonical)) not in ids
    ]
    known = run.run_id in plan.stored.declared or bool(recorded)
    return _Found(cut, plan, missing, known)


def _check(
    run: SftRun, settings: SftSettings, plan: SftPlan, recorded: Sequence[BatchAssembled]
) -> None:
    declared = plan.stored.declared
    if unknown := [each for each in settings.from_runs if each not in declared]:
        raise LogError(f"run {unknown[0]} is not declared in this log (--from)")
    if (own := declared.get(run.run_id)) is not None and own.kind is not RunKind.SFT:
        raise LogError(f"run {run.run_id} must be of kind sft, got {own.kind} (--run)")
    if recorded and recorded[0].cut.configuration != settings.canonical:
        raise BadSettings(
            f"run {run.run_id} has batches by other settings already, and must keep to them: give"
            f" another --run (recorded: {recorded[0].cut.configuration})"
        )
    models = sorted({model for each in settings.from_runs if (model := declared[each].model)})
    if len(models) > 1:
        raise BadSettings(f"traces must be of one model, got {' and '.join(models)} (--from)")
    ids = {batch_id_of(run.run_id, each.sha256(settings.canonical)) for each in plan.batches}
    if any(fact.batch_id not in ids for fact in recorded):
        raise LogError(
            f"batches of run {run.run_id} can't be made again, {len(plan.lost)} traces have lost"
            " their payloads: give --archive"
        )
    if not plan.batches:
        runs = ", ".join(settings.from_runs)
        lost = f"; {len(plan.lost)} have no usable payloads" if plan.lost else ""
        raise LogError(
            f"no whole trace of {runs} has a reward of at least {settings.reward_min}{lost}"
        )


def _cut(ends: Ends, plan: SftPlan, settings: SftSettings) -> Cut:
    return Cut(
        positions={str(place): at for place, at in sorted(ends.places.items())},
        log_time=moment(plan.stored.last_log_time_us),
        policy_version=None,
        configuration=settings.canonical,
        configuration_sha256=sha256_of(settings.canonical),
    )


def _append(
    log: EventLog,
    recorder: FencedRecorder,
    run: SftRun,
    settings: SftSettings,
    found: _Found,
    batch: SftBatch,
) -> None:
    payloads = fetch(log, found.plan.tokens, batch.digests)
    model = model_of(found.plan, settings)
    packed = training_batch(run.run_id, model, batch, payloads, settings, settings.canonical)
    drafts: list[Draft] = []
    if not found.declared:
        drafts.append(_declaration(run, settings, found.cut, model))
    drafts.append(
        derived_draft(
            run.run_id,
            found.cut,
            "batch_assembled",
            packed.batch_id,
            batch_id=packed.batch_id,
            batch_sha256=packed.batch_sha256,
            trace_ids=batch.trace_ids,
            cut=found.cut,
        )
    )
    recorder.append(drafts, records_of(packed))
    if recorder.in_doubt:
        raise LogUnavailable(
            "the log went away while a batch was appended: the same command goes on from there"
        )
    found.declared = True


def model_of(plan: SftPlan, settings: SftSettings) -> str | None:
    """Name of the model whose tokens the traces have; null: none is declared."""
    return plan.stored.declared[settings.from_runs[0]].model


def _declaration(run: SftRun, settings: SftSettings, cut: Cut, model: str | None) -> Draft:
    return derived_draft(
        run.run_id,
        cut,
        "run_declared",
        run.run_id,
        kind=RunKind.SFT,
        name=run.name,
        parent_run_id=run.parent_run_id,
        configuration=settings.canonical,
        model=model,
    )
