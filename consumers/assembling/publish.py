"""A plan as drafts of facts.

Every fact is derived, so its id is: from what it is about and what it says. The same plan gives
the same ids, whoever makes it.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from consumers.assembling.batching import Dropped, NextBatch
from consumers.assembling.context import Judged, Refill, Verdict
from consumers.assembling.cut import moment
from consumers.assembling.group_state import GroupState
from consumers.assembling.plan import Plan
from consumers.assembling.run_state import RunState
from ledger.facts import Cut, TimeQuality, TrajectoryJudged
from ledger.facts.lists import GroupDecision, RunKind
from ledger.judgement import RuleSet, judgement_fact_fields
from ledger.log import Positions
from ledger.wire.checks import to_micros
from ledger.wire.encoder import Draft

_IDS = uuid.UUID("0b8e7c8a-6f0d-5d0e-9a39-3f6f1c1f7d11")
"""Namespace of the ids of decisions and batches."""

NO_ALGORITHM = "none"
"""In evaluations nobody gets an advantage."""

_SAID = ("outcome", "cause_stage", "cause_class", "blame", "trainable", "errors", "evidence")
"""What a judgement says, beside whom it is about."""


def derived_id(*parts: object) -> str:
    """The same UUID (version 5) for the same parts."""
    return str(uuid.uuid5(_IDS, "/".join(str(part) for part in parts)))


def batch_id_of(run_id: str, sha256: str) -> str:
    """UUID derived from a batch's hash."""
    return derived_id("batch", run_id, sha256)


def drafts_of(
    state: RunState, plan: Plan, rules: RuleSet, cut: Cut, low_water: Positions
) -> list[Draft]:
    """(n,) drafts, what a group's decision rests on before it."""
    drafts: list[Draft] = []
    for group, refill in plan.refills:
        drafts += _judgements(group, (refill.judged,), rules)
        drafts.append(_refill(state, group, refill, cut))
    for group, verdict in plan.verdicts:
        drafts += _judgements(group, verdict.judged, rules)
        drafts.append(_decision(state, group, verdict, cut))
    drafts += [_dropped(dropped, cut) for dropped in plan.dropped]
    if plan.batch is not None:
        drafts.append(_assembled(state, plan.batch, cut, low_water))
    return drafts


def _judgements(group: GroupState, judged: tuple[Judged, ...], rules: RuleSet) -> list[Draft]:
    """Judgements that aren't recorded yet, or say otherwise than those that are."""
    drafts: list[Draft] = []
    for each in judged:
        recorded = group.judged.get(each.attempt.trajectory_id)
        fields = judgement_fact_fields(rules, each.attempt, each.judgement)
        if recorded is not None:
            if _says_the_same(recorded, fields):
                continue
            fields = judgement_fact_fields(rules, each.attempt, each.judgement, recorded.event_id)
        drafts.append(Draft("trajectory_judged", fields, 0))
    return drafts


def _says_the_same(recorded: TrajectoryJudged, fields: dict[str, Any]) -> bool:
    return all(getattr(recorded, name) == fields[name] for name in _SAID)


def derived_draft(run_id: str, cut: Cut, name: str, about: object, /, **fields: Any) -> Draft:
    """A fact derived at a cut; `about` makes its id."""
    envelope = {
        "event_id": derived_id(name, about),
        "run_id": run_id,
        "occurred_at": cut.log_time,
        "time_quality": TimeQuality.DERIVED,
    }
    return Draft(name, envelope | fields, to_micros(cut.log_time))


def _refill(state: RunState, group: GroupState, refill: Refill, cut: Cut) -> Draft:
    attempt, opened = refill.judged.attempt, group.opened
    assert opened is not None
    deadline_us = state.settings.deadline_us(group.first_log_time_us)
    return derived_draft(
        state.run_id,
        cut,
        "refill_requested",
        attempt.trajectory_id,
        group_id=group.group_id,
        slot=attempt.slot,
        trajectory_id=attempt.trajectory_id,
        task_id=opened.task_id,
        refill_no=refill.refill_no,
        reason=refill.reason,
        answer_by=moment(deadline_us),
    )


def _decision(state: RunState, group: GroupState, verdict: Verdict, cut: Cut) -> Draft:
    training = state.kind is RunKind.TRAIN
    return derived_draft(
        state.run_id,
        cut,
        "group_decided",
        group.group_id,
        group_id=group.group_id,
        rule_set=state.settings.rules,
        decision=verdict.decision,
        drop_reason=verdict.drop_reason,
        members=list(verdict.members),
        mean=verdict.mean,
        std=verdict.std,
        algorithm=state.settings.algorithm.value if training else NO_ALGORITHM,
        cut=cut,
    )


def _dropped(dropped: Dropped, cut: Cut) -> Draft:
    """A queued group's second and last decision. Who votes stays as it was decided."""
    before = dropped.queued.decided
    return derived_draft(
        before.run_id,
        cut,
        "group_decided",
        f"{before.group_id}/dropped",
        group_id=before.group_id,
        rule_set=before.rule_set,
        decision=GroupDecision.DROPPED,
        drop_reason=dropped.reason,
        members=[replace(member, advantage=None) for member in before.members],
        mean=before.mean,
        std=before.std,
        algorithm=before.algorithm,
        cut=cut,
    )


def _assembled(state: RunState, batch: NextBatch, cut: Cut, low_water: Positions) -> Draft:
    sha256 = batch.sha256(cut.configuration_sha256)
    batch_id = batch_id_of(state.run_id, sha256)
    lag_min, lag_max = batch.lags(cut.policy_version)
    return derived_draft(
        state.run_id,
        cut,
        "batch_assembled",
        batch_id,
        batch_id=batch_id,
        batch_sha256=sha256,
        step=batch.step,
        group_ids=[each.group.group_id for each in batch.groups],
        lag_min=lag_min,
        lag_max=lag_max,
        ready_at=batch.ready_at,
        held_s=(cut.log_time - batch.ready_at).total_seconds(),
        cut=cut,
        low_water={str(place): offset for place, offset in sorted(low_water.items())},
        model=state.model,
    )
