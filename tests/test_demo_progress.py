"""What a demo tells while it runs: a fold over the facts of its log."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from api.demo.display import rows_of, shown
from api.demo.progress import Figures
from ledger.facts.lists import Blame, DropReason, GroupDecision
from tests.builders import AT, a_fact, an_id

TRAIN, BEFORE = an_id("run", 1), an_id("run", 2)


def figures_of(*facts: Any) -> Figures:
    figures = Figures(TRAIN, last_step=20, since=AT)
    for fact in facts:
        figures.take(fact)
    return figures


def of_run(name: str, seed: int, run_id: str = TRAIN, **fields: Any) -> Any:
    return a_fact(name, seed=seed, run_id=run_id, **fields)


def decided(seed: int, decision: GroupDecision, mean: float, **fields: Any) -> Any:
    return of_run("group_decided", seed, decision=decision, mean=mean, **fields)


def test_before_anything_happened_the_trainer_waits_for_its_own_start() -> None:
    assert rows_of(figures_of(), {}) == [
        ("step", "0 of 20"),
        ("trainer waits for", "its own start"),
    ]


def test_figures_are_of_the_training_run_and_pass_rates_of_evaluations() -> None:
    figures = figures_of(
        of_run("reward_assigned", 1, BEFORE, value=1.0),
        of_run("reward_assigned", 2, BEFORE, value=0.0),
        of_run("reward_assigned", 3, BEFORE, value=0.0),
        of_run("reward_assigned", 4, BEFORE, value=None),
        of_run("trainer_started", 5),
        of_run("trajectory_started", 6, occurred_at=AT),
        of_run("trajectory_finished", 7, occurred_at=AT + timedelta(seconds=36)),
        of_run("trajectory_finished", 8, occurred_at=AT + timedelta(seconds=72)),
        of_run("trajectory_judged", 9, blame=Blame.INFRASTRUCTURE, trainable=False),
        of_run("trajectory_judged", 10, blame=Blame.POLICY, trainable=True),
        decided(11, GroupDecision.BATCH, 0.5, drop_reason=None),
        decided(12, GroupDecision.DROPPED, 0.0, drop_reason=DropReason.ZERO_VARIANCE),
    )
    assert rows_of(figures, {BEFORE: "before"}) == [
        ("step", "0 of 20"),
        ("pass@1 before", "33.3% of 3"),
        ("trajectories/h", "100"),
        ("failures", "1 infrastructure"),
        ("trainer waits for", "groups for step 1, 1 ready"),
    ]


def test_a_step_takes_the_groups_and_tells_reward_and_lag() -> None:
    started = of_run("trainer_started", 1)
    groups = [decided(n, GroupDecision.BATCH, n / 4, drop_reason=None) for n in (2, 3)]
    batch = of_run("batch_assembled", 4, step=1, group_ids=[an_id("group", n) for n in (2, 3)])
    figures = figures_of(started, *groups, batch)
    assert figures.waits_for == "nothing: it trains"
    figures.take(of_run("step_completed", 5, step=1, metrics={"lag_mean": 0.5}))
    assert rows_of(figures, {}) == [
        ("step", "1 of 20"),
        ("reward", "0.62"),
        ("failures", "none"),
        ("policy lag", "0.50 versions"),
        ("trainer waits for", "groups for step 2, 0 ready"),
    ]
    figures.take(of_run("step_completed", 6, step=20))
    assert figures.waits_for == "nothing: it is done"


def test_a_trainer_of_an_earlier_life_is_gone() -> None:
    before = of_run("trainer_started", 1, occurred_at=AT - timedelta(seconds=1))
    assert figures_of(before).waits_for == "its own start"


def test_a_fact_that_comes_again_counts_once() -> None:
    fact = of_run("trajectory_finished", 1)
    assert figures_of(fact, fact).runs[TRAIN].attempts == 1


def test_a_terminal_has_the_figures_and_above_them_what_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr("api.demo.display.errors", screen)
    with shown(lambda: [("step", "3 of 20"), ("policy lag", "0.40 versions")]) as live:
        live.tick()
        live.say("engine is up [/tmp/a [b]")
        live.tick()  # too soon for another look
    assert isinstance(screen.file, io.StringIO)
    told = screen.file.getvalue()
    assert "engine is up [/tmp/a [b]" in told
    assert "3 of 20" in told
    assert "0.40 versions" in told
