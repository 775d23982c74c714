"""What was not trained on, and what it took: attempts by their one reason, and GPU time that adds
up to what was declared."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ledger.facts import Fact
from ledger.facts.lists import ExclusionReason, GroupDecision, Outcome, Stage
from ledger.open_log import open_log
from tests.accounts import story
from tests.books import append, numbered, projected, rows
from tests.builders import an_id
from tests.decided_runs import Slot, TellRun, at

TRAIN, REASONS, NO_GPUS = an_id("train"), an_id("reasons"), an_id("no gpus")
CLUSTER, FIRST, SECOND = an_id("cluster"), an_id("first"), an_id("second")
Ask = Callable[[str], list[Any]]
INFRASTRUCTURE = ExclusionReason.INFRASTRUCTURE


def turn(end_s: float, running_s: float, tokens: int, **fields: Any) -> dict[str, Any]:
    """A request that ran for so long until then, and prefilled and decoded so many tokens."""
    usual = {"engine": "engine-0", "client_s": running_s, "prompt_tokens": 100 + tokens - 1}
    return {"end_s": end_s, **usual, "cached_tokens": 100, "completion_tokens": 1} | fields


def a_run_on_two_gpus() -> list[Any]:
    """Two attempts that share two seconds, and two that share one but not at a time."""
    run = TellRun(TRAIN, seed=1)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    run.say("resources_declared", engine_nodes=1, engines=1, engine_gpus_per_node=2,
            occurred_at=at(0))  # fmt: skip
    trained = Slot(1.0, turns=[turn(4, 4, 40)])
    lost = Slot(None, INFRASTRUCTURE, turns=[turn(4, 2, 60)])
    run.group(0, None, [trained, lost])
    # In the engine for a quarter of a second, after half a second in its queue.
    queued = turn(10.25, 9, 30, engine_s=0.75, queue_s=0.5)
    run.group(1, "zero_variance", [Slot(0.0, turns=[queued]), Slot(0.0, turns=[turn(11, 0.5, 30)])])
    run.group(2, "stale", [Slot(1.0, end_s=100.0)])
    ids = {"group_id": run.group_id(0), "slot": 1, "trajectory_id": run.trajectory_id(0, 1)}
    failed = {"stage": Stage.TOOL, "error_type": "Gone"}
    box: dict[str, Any] = {"backend": "e2b", "template": "base"}
    run.say("sandbox_failed", **ids, **box, **failed, try_no=0, seconds=3.0)
    run.say("sandbox_started", **ids, **box, try_no=1, sandbox_id="s1", occurred_at=at(5))
    run.say("sandbox_failed", **ids, **box, **failed, try_no=1, occurred_at=at(12))
    run.say("sandbox_started", **ids, **box, try_no=2, sandbox_id="s2", occurred_at=at(13))
    run.say("sandbox_stopped", **ids, **box, try_no=2, sandbox_id="s2", reason="finished",
            occurred_at=at(18), lifetime_s=4.5)  # fmt: skip
    ids = {"group_id": run.group_id(0), "slot": 0, "trajectory_id": run.trajectory_id(0, 0)}
    run.say("sandbox_started", **ids, **box, try_no=0, sandbox_id="s3", occurred_at=at(1))
    run.batch(1, [0])
    run.step(1)
    return run.facts


def a_run_with_every_reason() -> list[Any]:
    """Without GPUs: what each attempt was, and steps that were done in vain."""
    run = TellRun(REASONS, seed=2)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    run.group(0, None, [Slot(1.0), Slot(0.0, masked=True), Slot(0.0, late=True)])
    run.group(1, "over_sampled", [Slot(1.0), Slot(None, ExclusionReason.REWARD_MISSING)])
    run.group(2, "stale", [Slot(1.0), Slot(None, INFRASTRUCTURE)])
    abandoned = Slot(None, ExclusionReason.NO_ACTIVITY, outcome=Outcome.ABANDONED)
    run.group(3, None, [Slot(1.0), abandoned])
    run.group(4, None, [Slot(1.0), Slot(0.0)])
    run.group(5, None, [Slot(1.0)])
    run.group(6, None, [Slot(1.0)], GroupDecision.EVALUATED)
    run.group(7, None, [Slot(1.0)])
    run.say("trajectory_started", group_id=an_id("open"), slot=0, trajectory_id=an_id("open"),
            task_id="task")  # fmt: skip
    run.batch(1, [0])
    run.batch(2, [3])
    run.batch(3, [4])
    run.batch(4, [5])
    run.step(1)
    run.step(2, wall_s=30.0)
    run.say("trainer_started", resumed_from="here", resumed_step=1)
    run.step(2, batch=3)
    run.say("batch_refused", batch_id=run.batch_id(4), reason="stale")
    return run.facts


def two_runs_on_one_engine() -> list[Any]:
    first, second = TellRun(FIRST, seed=3), TellRun(SECOND, seed=4)
    for run, start_s, end_s in ((first, 0, 10), (second, 5, 15)):
        run.say("run_declared", kind="train", pass_threshold=0.5)
        run.say("resources_declared", engine_nodes=1, engines=1, engine_gpus_per_node=1,
                occurred_at=at(start_s))  # fmt: skip
        asked = turn(10, 10 - start_s, 20, engine="shared")
        run.group(0, "stale", [Slot(1.0, start_s=start_s, end_s=end_s, turns=[asked])])
    first.say("engine_sampled", run_id=CLUSTER, engine="shared", gpus=1)
    return [*first.facts, *second.facts]


def a_run_without_gpus() -> list[Any]:
    run = TellRun(NO_GPUS, seed=5)
    run.say("run_declared", kind="train", pass_threshold=0.5)
    run.group(0, "stale", [Slot(1.0, turns=[turn(4, 4, 40, engine="other")])])
    return run.facts


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    facts = [
        *a_run_on_two_gpus(),
        *a_run_with_every_reason(),
        *two_runs_on_one_engine(),
        *a_run_without_gpus(),
    ]
    return book_of(numbered(facts), tmp_path_factory.mktemp("waste"))


def book_of(facts: Sequence[Fact], folder: Path) -> Ask:
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        append(log, facts)
    inserted = projected(url, folder / "book")
    assert (inserted.facts, inserted.quarantined) == (len(facts), 0)
    return lambda query: rows(folder / "book", query)


def test_gpu_time_of_a_second_goes_to_those_that_run_in_it_and_sums_to_what_was_declared(
    ask: Ask,
) -> None:
    found = ask(
        "SELECT kind, reason, trajectories, gpu_s, gpu_s_by_tokens, declared_gpu_s,"
        f" share_of_gpu_s FROM waste WHERE run_id = '{TRAIN}' ORDER BY kind, reason"
    )
    assert found == [
        # Two GPUs for 100 seconds. No request ran in 95 of them.
        ("idle", "idle", None, 190.0, 190.0, 200.0, 0.95),
        # Alone in their second, which they have to themselves.
        ("no gradient", "zero_variance", 2, pytest.approx(2), pytest.approx(2), 200.0,
         pytest.approx(0.01)),
        # Two seconds alone, and two by half; by tokens these go 10 to 30.
        ("used", "trained", 1, pytest.approx(6), pytest.approx(5), 200.0, pytest.approx(0.03)),
        ("waste", "infrastructure", 1, pytest.approx(2), pytest.approx(3), 200.0,
         pytest.approx(0.01)),
        ("waste", "stale", 1, 0.0, 0.0, 200.0, 0.0),
    ]  # fmt: skip
    assert sum(each[3] for each in found) == pytest.approx(200)
    assert sum(each[4] for each in found) == pytest.approx(200)


def test_a_second_is_split_by_running_time_also_between_those_that_do_not_meet(ask: Ask) -> None:
    assert ask(
        "SELECT running_s, gpu_s, gpu_s_by_tokens FROM gpu_shares"
        f" JOIN members USING (run_id, trajectory_id) WHERE run_id = '{TRAIN}'"
        " AND drop_reason = 'zero_variance' ORDER BY slot"
    ) == [
        (0.25, pytest.approx(2 / 3), pytest.approx(1)),
        (0.5, pytest.approx(4 / 3), pytest.approx(1)),
    ]


def test_tokens_and_sandboxes_of_what_was_lost(ask: Ask) -> None:
    assert ask(
        "SELECT reason, generated_tokens, prefilled_tokens, sandbox_s, sandboxes_untimed FROM waste"
        f" WHERE run_id = '{TRAIN}' AND kind IN ('used', 'waste') ORDER BY reason"
    ) == [
        # Three tries: one that failed after 3 s, one that was lost after 7, one that told 4.5.
        ("infrastructure", 1, 59, 14.5, 0),
        ("stale", None, None, None, None),
        # Its sandbox is up, or nobody told of its end.
        ("trained", 1, 39, None, 1),
    ]


def test_every_attempt_has_one_reason(ask: Ask) -> None:
    assert ask(
        "SELECT kind, reason, trajectories, gpu_s, trainer_s FROM waste"
        f" WHERE run_id = '{REASONS}' ORDER BY kind, reason"
    ) == [
        ("open", "decided", 1, None, None),
        ("open", "in_flight", 1, None, None),
        ("used", "evaluated", 1, None, None),
        ("used", "trained", 3, None, None),
        ("waste", "abandoned", 1, None, None),
        ("waste", "infrastructure", 1, None, None),
        ("waste", "late", 1, None, None),
        ("waste", "masked", 1, None, None),
        ("waste", "over_sampled", 1, None, None),
        ("waste", "refused", 1, None, None),
        # Its step lies behind the checkpoint that the trainer went on from: 30 s in vain.
        ("waste", "retrained", 1, None, 30.0),
        ("waste", "reward_missing", 1, None, None),
        ("waste", "stale", 1, None, None),
    ]


def test_runs_that_share_engines_sum_to_the_gpus_that_they_share(ask: Ask) -> None:
    assert ask(
        "SELECT run_id, reason, gpu_s, declared_gpu_s FROM waste"
        f" WHERE cluster_id = '{CLUSTER}' ORDER BY gpu_s DESC, reason"
    ) == [
        (UUID(FIRST), "stale", pytest.approx(7.5), 15.0),
        (None, "idle", pytest.approx(5.0), 15.0),
        (UUID(SECOND), "stale", pytest.approx(2.5), 15.0),
    ]


def test_gpu_time_is_unknown_where_no_gpus_are_declared(ask: Ask) -> None:
    assert ask(
        "SELECT kind, reason, generated_tokens, gpu_s, gpu_s_by_tokens, declared_gpu_s FROM waste"
        f" WHERE run_id = '{NO_GPUS}'"
    ) == [("waste", "stale", 1, None, None, None)]


@pytest.mark.parametrize("seed", [1, 2])
def test_attempts_of_an_assembled_run_come_to_what_their_slots_do(
    seed: int, tmp_path: Path
) -> None:
    ask = book_of(story(random.Random(seed), groups=6), tmp_path)
    differing = """
        SELECT dispositions.slot, disposition, dispositions.reason, state, waste_reason
        FROM dispositions LEFT JOIN trajectory_uses AS uses USING (group_id, trajectory_id)
        WHERE dispositions.trajectory_id IS NOT NULL
            AND (disposition <> state OR (disposition IN ('dropped', 'excluded')
                AND dispositions.reason <> waste_reason))"""
    assert ask(differing) == []
    assert ask("SELECT sum(trajectories) FROM waste") == ask("SELECT count(*) FROM trajectories")
    assert ask("SELECT slot FROM contamination WHERE known = 'at_decision'") == []
    assert ask("FROM fabricated_zero") == []
