"""Facts of an attempt -> an ATIF trajectory. Pure.

The ledger keeps no messages: a turn is a step with metrics and an empty message, and long texts are
their two ends. What ATIF has no field for (reward, outcome, exit codes, seconds) stands in `extra`.

Invariant: what a reader of ATIF sums up over the steps is what the ledger says of the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.atif_steps import Members, agent_step, failed_step, filled, iso, text_of
from ledger.facts import (
    Fact,
    RewardAssigned,
    RunDeclared,
    TaskDeclared,
    ToolCallCompleted,
    TrajectoryFact,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
    TurnCompleted,
    TurnFailed,
)
from ledger.tokens import Tokens

VERSION = "ATIF-v1.7"
"""The first with trajectory_id and llm_call_count."""
NOTE = (
    "Exported from a ledger, which keeps no messages; a text of more than 4,000 characters is its"
    " two ends. Reward and outcome stand in extra."
)

TurnTokens = Mapping[tuple[str, int], Tokens]
"""(trajectory id, turn number) -> what the turn added."""


@dataclass(slots=True)
class RunFacts:
    """The facts of a run that an export needs."""

    declared: RunDeclared | None = None
    tasks: dict[str, TaskDeclared] = field(default_factory=dict[str, TaskDeclared])
    attempts: dict[str, list[TrajectoryFact]] = field(
        default_factory=dict[str, list[TrajectoryFact]]
    )
    """By trajectory id, in the log's order."""

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> RunFacts:
        found = cls()
        seen: set[str] = set()
        for fact in facts:
            if fact.event_id in seen:
                continue  # delivered again
            seen.add(fact.event_id)
            if isinstance(fact, RunDeclared):
                found.declared = fact
            elif isinstance(fact, TaskDeclared):
                found.tasks[fact.task_id] = fact
            elif isinstance(fact, TrajectoryFact):
                found.attempts.setdefault(fact.trajectory_id, []).append(fact)
        return found


def atif_of(run: RunFacts, trajectory_id: str, tokens: TurnTokens | None = None) -> Members:
    """One attempt as ATIF. With `tokens`, its turns carry their token ids and logprobs."""
    facts = run.attempts[trajectory_id]
    turns = _by_number(facts, TurnCompleted)
    ids = _token_ids(trajectory_id, turns, tokens or {})
    calls: dict[int, list[ToolCallCompleted]] = {}
    for call in sorted(_of(facts, ToolCallCompleted), key=lambda each: each.tool_call_no):
        calls.setdefault(call.turn_no, []).append(call)
    failed = {each.turn_no: each for each in _of(facts, TurnFailed)}
    steps = [_first_step(run, facts)]
    for number in sorted({*turns, *calls, *failed}):
        if number in failed:
            steps.append(failed_step(failed[number]))
        if number in turns or number in calls:
            turn = turns.get(number)
            steps.append(agent_step(turn, calls.get(number, []), ids.get(number, {})))
    for i, step in enumerate(steps, 1):
        step["step_id"] = i
    return filled(
        schema_version=VERSION,
        session_id=trajectory_id,
        trajectory_id=trajectory_id,
        agent=_agent(run.declared),
        steps=steps,
        notes=NOTE,
        final_metrics=_final(facts, list(turns.values()), len(steps)),
        extra={"rollbook": _account(facts)},
    )


def _of(facts: Sequence[TrajectoryFact], kind: type[Any]) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


def _by_number(facts: Sequence[TrajectoryFact], kind: type[TurnCompleted]) -> dict[int, Any]:
    found = {}
    for fact in _of(facts, kind):
        found.setdefault(fact.turn_no, fact)
    return found


def _agent(declared: RunDeclared | None) -> Members:
    name, _, version = ((declared and declared.scaffold) or "unknown").partition(" ")
    model = declared.model if declared else None
    return filled(name=name, version=version or "unknown", model_name=model)


def _first_step(run: RunFacts, facts: Sequence[TrajectoryFact]) -> Members:
    started = next(iter(_of(facts, TrajectoryStarted)), None)
    task = run.tasks.get(started.task_id) if started else None
    text = text_of(task.statement) if task and task.statement else ""
    return filled(
        source="user", message=text, timestamp=iso(started.occurred_at if started else None)
    )


def _final(facts: Sequence[TrajectoryFact], turns: Sequence[TurnCompleted], steps: int) -> Members:
    """Sums over the turns; of an attempt without turns, what its system said of the whole."""
    end = next(iter(_of(facts, TrajectoryFinished)), None)
    foreign = end if end is not None and not turns else None

    def total(name: str) -> Any:
        told = [value for each in turns if (value := getattr(each, name)) is not None]
        return sum(told) if told else getattr(foreign, f"foreign_{name}", None)

    return filled(
        total_prompt_tokens=total("prompt_tokens"),
        total_completion_tokens=total("completion_tokens"),
        total_cached_tokens=total("cached_tokens"),
        total_cost_usd=total("cost_usd"),
        total_steps=steps,
    )


def _account(facts: Sequence[TrajectoryFact]) -> Members:
    """What the ledger says of the attempt."""
    first, end = facts[0], next(iter(_of(facts, TrajectoryFinished)), None)
    started = next(iter(_of(facts, TrajectoryStarted)), None)
    judged = next(iter(reversed(_of(facts, TrajectoryJudged))), None)
    rewards = _of(facts, RewardAssigned)
    return filled(
        run_id=first.run_id,
        group_id=first.group_id,
        slot=first.slot,
        task_id=started.task_id if started else None,
        replaces=started.replaces if started else None,
        stop_reason=str(end.stop_reason) if end else None,
        foreign_status=end.foreign_status if end else None,
        error_type=end.error_type if end else None,
        finished_at=iso(end.occurred_at) if end else None,
        rewards=[
            filled(value=each.value, verifier=each.verifier, components=each.components or None,
                    verifier_version=each.verifier_version, error_type=each.error_type)
            for each in rewards
        ] or None,
        judged=filled(rule_set=judged.rule_set, outcome=str(judged.outcome),
                       cause_class=judged.cause_class, trainable=judged.trainable,
                       blame=str(judged.blame) if judged.blame else None)
        if judged else None,
    )  # fmt: skip


def _token_ids(
    trajectory_id: str, turns: Mapping[int, TurnCompleted], tokens: TurnTokens
) -> dict[int, Members]:
    """Whole prompts and completions of the turns whose payloads are there, without a gap since the
    segment's beginning."""
    found: dict[int, Members] = {}
    prefix: list[int] | None = []
    segment = -1
    for number, turn in sorted(turns.items()):
        added = tokens.get((trajectory_id, number))
        if turn.segment != segment:
            segment, prefix = turn.segment, []
        if added is None or prefix is None:
            prefix = None
            continue
        start = next((i for i, mask in enumerate(added.loss_mask) if mask), len(added.ids))
        found[number] = {
            "prompt_token_ids": [*prefix, *added.ids[:start]],
            "completion_token_ids": list(added.ids[start:]),
            "logprobs": list(added.logprobs[start:]),
        }
        prefix = [*prefix, *added.ids]
    return found
