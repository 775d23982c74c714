"""What failed, how often and at what cost; how long sandboxes and verifiers take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumers.assembling.settings import AssemblerSettings
from ledger.facts import Fact
from ledger.facts.lists import Blame, EngineStage, Outcome, RunKind, Stage, StopReason
from ledger.open_log import open_log
from tests.accounts import facts_of
from tests.assembled import RUN, Desk, Teller, an_attempt, opened, the_run, trajectory_id
from tests.assembled import group_id as a_group_id
from tests.books import append, numbered, projected, rows
from tests.builders import AT, an_id

HAZARD, DROPPING, EMPTY = an_id("hazard"), an_id("dropping"), an_id("empty")
HOUR = datetime(2026, 1, 2, 3, tzinfo=UTC)
Ask = Callable[[str], list[Any]]


def ids(group: int, slot: int) -> dict[str, Any]:
    return {
        "group_id": a_group_id(group),
        "slot": slot,
        "trajectory_id": trajectory_id(group, slot),
    }


def a_run_that_failed() -> list[Fact]:
    """Four attempts: one whose third sandbox came up, one that never had any, one whose sandbox
    went away under a command, and one that ran out of turns. The assembler judges them."""
    tell = Teller()
    first = an_attempt(tell, 0, 0, 1.0)
    slow = {"stage": Stage.SANDBOX_START, "backend": "e2b", "template": "base"}
    first[1:1] = [
        tell("sandbox_failed", **ids(0, 0), **slow, try_no=0, error_type="RateLimitException",
             seconds=2.0),
        tell("sandbox_failed", **ids(0, 0), **slow, try_no=1, error_type="TimeoutException",
             seconds=30.0),
        tell("sandbox_started", **ids(0, 0), try_no=2, sandbox_id="s0", backend="e2b",
             template="base", vcpus=2.0, start_s=1.9),
        tell("turn_failed", **ids(0, 0), turn_no=0, stage=EngineStage.QUEUE, error_type="Http503",
             seconds=1.5, tokens_so_far=0),
    ]  # fmt: skip
    first[-1] = replace(first[-1], turns_failed=1)
    end = {"turns_completed": 0, "turns_failed": 0, "tool_calls": 0, "reward_due": False}
    second = [
        tell("trajectory_started", **ids(0, 1), task_id="task 0"),
        *(
            tell("sandbox_failed", **ids(0, 1), **slow, try_no=n, error_type="TimeoutException",
                 seconds=10.0)
            for n in range(3)
        ),
        tell("trajectory_finished", **ids(0, 1), stop_reason=StopReason.ERROR,
             stage=Stage.SANDBOX_START, error_type="TimeoutException", **end),
    ]  # fmt: skip
    third = an_attempt(tell, 0, 2, 0.0, turns=1)[:3]
    gone = "SandboxNotRunningException"
    third += [
        tell("tool_call_completed", **ids(0, 2), turn_no=0, tool_call_no=0, error_type=gone,
             wall_s=4.0, sandbox_id="s2"),
        tell("sandbox_failed", **ids(0, 2), try_no=0, stage=Stage.TOOL, error_type=gone,
             seconds=4.0, in_command=False, sandbox_id="s2"),
        tell("trajectory_finished", **ids(0, 2), stop_reason=StopReason.ERROR, stage=Stage.TOOL,
             error_type=gone, turns_completed=1, turns_failed=0, tool_calls=1, reward_due=False),
    ]  # fmt: skip
    fourth = an_attempt(tell, 0, 3, 0.0, stop=StopReason.TURN_CAP, stage=Stage.MODEL)
    desk = Desk(AssemblerSettings.of({"evidence_wait_s": 0}, "here")).read(*the_run())
    for told in ([opened(tell, 0, 4)], first, second, third, fourth):
        desk.read(*told)
    desk.decide()
    return facts_of(desk)


def a_judged_attempt(
    tell: Teller, run_id: str, number: int, seconds: float, reward: float | None, **judged: Any
) -> list[Fact]:
    """One that lasted so long; with a judgement, it was lost."""
    of: dict[str, Any] = {
        "run_id": run_id,
        "group_id": an_id(f"{run_id} group", number // 8),
        "slot": number % 8,
        "trajectory_id": an_id(run_id, number),
    }
    start, end = {"occurred_at": AT}, {"occurred_at": AT + timedelta(seconds=seconds)}
    told: list[Fact] = [tell("trajectory_started", **of, **start, task_id="task")]
    stop = StopReason.ERROR if judged else StopReason.SUBMITTED
    told.append(tell("trajectory_finished", **of, **end, stop_reason=stop, reward_due=not judged))
    if reward is not None:
        told.append(tell("reward_assigned", **of, **end, value=reward, verifier="tests"))
    usual = {"rule_set": 1, "outcome": Outcome.COMPLETED, "trainable": not judged}
    told.append(tell("trajectory_judged", **of, **end, **(usual | judged)))
    return told


LOST: dict[str, Any] = {
    "outcome": Outcome.ERRORED,
    "cause_stage": Stage.TOOL,
    "cause_class": "sandbox_lost",
    "blame": Blame.INFRASTRUCTURE,
}


def a_run_whose_failures_last_longer() -> list[Fact]:
    """150 attempts would pass after 600 s and 350 fail after 1,500 s; each is lost half a time an
    hour. When they are lost is not drawn, but laid out as it is expected to be."""
    tell = Teller(seed=1)
    facts: list[Fact] = [
        tell("run_declared", run_id=HAZARD, kind=RunKind.TRAIN, pass_threshold=0.5)
    ]
    number, hazard_per_s = 0, 0.5 / 3600
    for reward, attempts, lasts_s in ((1.0, 150, 600.0), (0.0, 350, 1_500.0)):
        lost = round(attempts * (1 - math.exp(-hazard_per_s * lasts_s)))
        for nth in range(attempts):
            if nth < lost:
                seconds = -math.log(1 - (nth + 0.5) / attempts) / hazard_per_s
                facts += a_judged_attempt(tell, HAZARD, number, seconds, None, **LOST)
            else:
                facts += a_judged_attempt(tell, HAZARD, number, lasts_s, reward)
            number += 1
    return facts


def a_run_that_lost_one_in_twenty() -> list[Fact]:
    """20 groups of 8; of the 160 attempts 8 were lost, 2 of them in one group."""
    tell = Teller(seed=2)
    facts: list[Fact] = [
        tell("group_opened", run_id=DROPPING, group_id=an_id(f"{DROPPING} group", group),
             task_id="task", expected_size=8)
        for group in range(20)
    ]  # fmt: skip
    lost = {0, 1, 8, 16, 24, 32, 40, 48}
    for number in range(160):
        facts += a_judged_attempt(
            tell, DROPPING, number, 10, 1.0, **(LOST if number in lost else {})
        )
    return facts


def sandboxes() -> Iterable[Fact]:
    """Of one template, at two hours."""
    tell = Teller(seed=3)
    starts = (1.2, 1.6, 1.9, 2.4, 8.0)
    of = {"run_id": EMPTY, "backend": "e2b", "template": "swe", "try_no": 0}
    for nth, start_s in enumerate(starts):
        who = ids(3, nth) | {"occurred_at": HOUR + timedelta(minutes=nth), "sandbox_id": f"b{nth}"}
        yield tell("sandbox_started", **of, **who, vcpus=4.0, start_s=start_s)
        yield tell("sandbox_prepared", **of, **who, setup_s=None if nth == 4 else 0.5 + nth)
        who.pop("sandbox_id")
        yield tell("reward_assigned", **who, run_id=EMPTY, verifier="tests", verify_s=10.0 + nth,
                   value=None if nth == 0 else 0.0)  # fmt: skip
        for wall_s, sandbox_s in ((1.0, 0.75), (2.0, 1.5), (3.0, None)):
            yield tell(
                "tool_call_completed", **who, run_id=EMPTY, turn_no=0, tool_call_no=0,
                sandbox_id=f"b{nth}", wall_s=wall_s, sandbox_s=sandbox_s,
            )  # fmt: skip
    who = ids(3, 5) | {"occurred_at": HOUR, "seconds": 60.0}
    failed = {"stage": Stage.SANDBOX_START, "error_type": "TimeoutException"}
    yield tell("sandbox_failed", **of, **who, **failed)
    later = who | {"occurred_at": HOUR + timedelta(hours=2)}
    yield tell("sandbox_failed", **(of | {"try_no": 1}), **later, **failed)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    folder = tmp_path_factory.mktemp("failures")
    facts = [
        *a_run_that_failed(),
        *a_run_whose_failures_last_longer(),
        *a_run_that_lost_one_in_twenty(),
        *sandboxes(),
    ]
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        append(log, numbered(facts))
    inserted = projected(url, folder / "book")
    assert (inserted.facts, inserted.quarantined) == (len(facts), 0)
    return lambda query: rows(Path(folder / "book"), query)


def test_failures_have_a_row_per_stage_class_and_blame(ask: Ask) -> None:
    assert ask(
        "SELECT stage, class, blame, failures, trajectories, trajectories_ended, slots, tries,"
        f" trajectories_judged, slots_opened, seconds, tokens FROM failures WHERE run_id = '{RUN}'"
        " ORDER BY stage, class"
    ) == [
        # Both requests of the first attempt, that of the third, two of the last; one was answered
        # with a 503, and made again.
        ("model", "engine_unavailable", "infrastructure", 1, 1, 0, 1, 6, 4, 4, 1.5, 0),
        ("model", "turn_cap", "policy", 1, 1, 1, 1, 6, 4, 4, None, None),
        ("sandbox_start", "sandbox_busy", "infrastructure", 1, 1, 0, 1, 6, 4, 4, 2.0, None),
        ("sandbox_start", "timeout", "infrastructure", 4, 2, 1, 2, 6, 4, 4, 60.0, None),
        ("tool", "sandbox_lost_idle", "infrastructure", 1, 1, 1, 1, 5, 4, 4, 4.0, None),
    ]


def test_shares_are_of_tries_at_the_stage_of_attempts_and_of_slots(ask: Ask) -> None:
    assert ask(
        "SELECT share_of_tries, share_of_trajectories, share_of_slots, share_of_groups,"
        " trajectories_unjudged, failures_untimed FROM failures"
        f" WHERE run_id = '{RUN}' AND class = 'timeout'"
    ) == [(pytest.approx(4 / 6), 0.5, 0.5, 1.0, 0, 0)]


def test_what_it_cost_is_null_where_nothing_was_ended_or_no_gpus_are_declared(ask: Ask) -> None:
    found = ask(
        "SELECT class, ended_s, ended_generated_tokens, ended_gpu_s FROM failures"
        f" WHERE run_id = '{RUN}' ORDER BY class"
    )
    assert [each[0] for each in found if each[1] is None] == ["engine_unavailable", "sandbox_busy"]
    assert {each[0]: each[2] for each in found} == {
        "engine_unavailable": None,
        "sandbox_busy": None,
        "sandbox_lost_idle": 2,
        "timeout": None,
        "turn_cap": 4,
    }
    assert {each[3] for each in found} == {None}


def test_survivors_pass_more_often_than_all_would_have(ask: Ask) -> None:
    ((lost, attempts, share, survivors, rate, reweighted, per_hour),) = ask(
        "SELECT lost, attempts, lost_share, survivors, pass_rate, pass_rate_reweighted,"
        f" lost_per_hour FROM failure_hazard WHERE run_id = '{HAZARD}' AND stage = 'all'"
    )
    assert (lost, attempts, survivors) == (78, 500, 422)
    assert round(share, 2) == 0.16
    assert round(rate, 3) == 0.327
    assert round(per_hour, 2) == 0.50
    assert round(reweighted, 2) == 0.30


def test_hazard_by_stage_counts_each_try_and_each_lost_attempt(ask: Ask) -> None:
    assert ask(
        "SELECT stage, active_hours * 3600, untimed, failures, lost, lost_per_hour, attempts"
        f" FROM failure_hazard WHERE run_id = '{RUN}' AND stage IN ('sandbox_start', 'tool')"
        " ORDER BY stage"
    ) == [
        ("sandbox_start", pytest.approx(63.9), 0, 5, 1, pytest.approx(3600 / 63.9), None),
        ("tool", pytest.approx(4.0), 4, 1, 1, pytest.approx(900.0), None),
    ]


def test_dropping_whole_groups_costs_a_third_where_one_in_twenty_is_lost(ask: Ask) -> None:
    ((groups, slots, lost, share, hit, counted, independent),) = ask(
        "SELECT groups, slots, slots_lost, share_of_slots, groups_hit, share_of_groups,"
        f" share_if_independent FROM drop_group_cost WHERE run_id = '{DROPPING}'"
    )
    assert (groups, slots, lost, share, hit, counted) == (20, 160, 8, 0.05, 7, 0.35)
    assert round(independent, 3) == 0.337


def test_the_median_start_takes_1_9_seconds_and_failed_tries_are_counted_apart(ask: Ask) -> None:
    assert ask(
        "SELECT backend, template, vcpus, hour, tries, failed, timed, p50_s, p90_s, p99_s, failed_s"
        f" FROM sandbox_start WHERE run_id = '{EMPTY}' ORDER BY hour"
    ) == [
        ("e2b", "swe", 4.0, HOUR, 6, 1, 5, 1.9, 8.0, 8.0, 60.0),
        ("e2b", "swe", 4.0, HOUR + timedelta(hours=2), 1, 1, 0, None, None, None, 60.0),
    ]


def test_set_up_and_verification_by_the_sandbox_they_ran_in(ask: Ask) -> None:
    of = f"WHERE run_id = '{EMPTY}'"
    assert ask(
        f"SELECT template, vcpus, tries, failed, timed, p50_s, seconds FROM sandbox_setup {of}"
    ) == [("swe", 4.0, 5, 0, 4, 1.5, 8.0)]
    assert ask(
        "SELECT template, vcpus, tries, failed, failed_share, timed, p50_s, p99_s"
        f" FROM verify_time {of}"
    ) == [("swe", 4.0, 5, 1, 0.2, 4, 12.0, 14.0)]


def test_the_tunnel_is_what_commands_take_longer_by_the_client(ask: Ask) -> None:
    assert ask(
        "SELECT backend, template, calls, timed, p50_s, p90_s, wall_s, sandbox_s, tunnel_s,"
        f" share_of_wall FROM tunnel_overhead WHERE run_id = '{EMPTY}'"
    ) == [("e2b", "swe", 15, 10, 0.25, 0.5, 15.0, 11.25, 3.75, 0.25)]
