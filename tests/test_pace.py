"""When the next group may be opened: by what training has made of those before it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ledger.facts.lists import DropReason, GroupDecision
from ledger.open_log import open_log
from producers.pace import KINDS, Course, Pace, PaceSettings, Turn
from producers.tail import Tail
from tests.builders import a_fact, an_id
from tests.recorded import RUN, Make

ENGINES = ("http://one/", "http://two")


def a_course(**settings: Any) -> Course:
    usual: dict[str, Any] = {"last_step": 3, "ahead": 2}
    return Course(PaceSettings(**(usual | settings)), ENGINES)


def a_batch(step: int, *groups: str) -> Any:
    ids = {"batch_id": an_id("batch", step), "group_ids": list(groups)}
    return a_fact("batch_assembled", seed=step, step=step, **ids)


def a_step(step: int) -> Any:
    ids = {"batch_id": an_id("batch", step), "to_version": step}
    return a_fact("step_completed", seed=step, step=step, **ids)


def at_engine(url: str, version: int) -> Any:
    return a_fact("weights_applied", engine=url, policy_version=version, success=True)


def test_so_many_groups_wait_and_no_more() -> None:
    course = a_course(ahead=2)
    assert course.may_open
    course.opened("a")
    course.opened("b")
    assert not course.may_open
    dropped = {"decision": GroupDecision.DROPPED, "drop_reason": DropReason.ZERO_VARIANCE}
    course.take(a_fact("group_decided", group_id="a", **dropped))
    assert course.may_open
    course.opened("c")
    course.take(a_fact("group_decided", group_id="b", decision=GroupDecision.BATCH))
    course.take(a_batch(1, "b", "another's"))
    assert not course.may_open, "a batch still waits to be trained on"
    course.take(a_step(1))
    assert course.may_open


def test_nothing_is_opened_behind_the_last_batch_unless_that_is_refused() -> None:
    course = a_course(last_step=2)
    course.take(a_batch(1, "a"))
    course.take(a_batch(2, "b"))
    assert course.done
    assert not course.may_open
    course.take(a_fact("batch_refused", batch_id=an_id("batch", 2)))
    assert not course.done
    assert course.may_open
    course.take(a_step(1))
    assert not course.over
    course.take(a_batch(3, "c"))
    assert (course.done, course.over) == (True, False)
    course.take(a_step(3))
    assert course.done
    assert course.over


def test_in_step_the_step_behind_a_batch_that_was_refused_is_sampled_for() -> None:
    course = a_course(sync=True)
    course.take(a_batch(1, "a"))
    course.take(a_fact("batch_refused", batch_id=an_id("batch", 1)))
    assert course.target_step == 2


def test_in_step_a_group_is_opened_once_every_engine_has_the_version_trained_from() -> None:
    course = a_course(sync=True)
    course.take(a_fact("trainer_started", policy_version=0))
    assert not course.may_open
    course.take(at_engine("http://one", 0))
    assert not course.may_open
    course.take(at_engine("http://two", 0))
    assert (course.may_open, course.target_step) == (True, 1)
    course.take(a_batch(1, "a"))
    assert not course.may_open
    course.take(a_step(1))
    assert not course.may_open, "the engines still have version 0"
    course.take(at_engine("http://one", 1))
    course.take(at_engine("http://two", 1))
    assert (course.may_open, course.target_step) == (True, 2)


def test_without_steps_to_keep_a_group_is_for_whichever_comes() -> None:
    assert a_course().target_step is None


@pytest.mark.parametrize("setting", ["last_step", "ahead"])
def test_a_pace_of_nothing_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, got 0"):
        a_course(**{setting: 0})


def test_a_turn_comes_when_the_log_says_so(sqlite_url: str, tmp_path: Path, make: Make) -> None:
    recorder = make(sqlite_url)

    async def turns() -> list[Turn | None]:
        with open_log(sqlite_url) as log:
            async with Tail(log, RUN, KINDS, log.start_positions("events")) as tail:
                pace = Pace(a_course(last_step=1, ahead=1), tail)
                following = asyncio.ensure_future(pace.follow())
                first = await pace.turn()
                pace.opened(an_id("group", 1))
                second = asyncio.ensure_future(pace.turn())
                await asyncio.sleep(0.2)
                assert not second.done()
                recorder.batch_assembled(**_told(a_batch(1, an_id("group", 1))))
                recorder.flush(10.0)
                await asyncio.sleep(0.2)
                assert not second.done(), "the trainer may still refuse it"
                recorder.step_completed(step=1, batch_id=an_id("batch", 1), wall_s=1.0)
                recorder.flush(10.0)
                found = [first, await asyncio.wait_for(second, 30.0)]
                following.cancel()
                return found

    assert asyncio.run(turns()) == [Turn(None), None]


def _told(fact: Any) -> dict[str, Any]:
    names = ("step", "batch_id", "batch_sha256", "group_ids", "configuration_sha256")
    names += ("trajectories", "tokens", "cut", "batch_positions", "low_water", "ready_at")
    return {name: getattr(fact, name) for name in names if hasattr(fact, name)}
