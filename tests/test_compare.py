"""Comparisons: what a ratio was bought with stands beside it, and "speedup" is a rare word."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from api.cli import main
from ledger.accounts.compare import Part, Side, agrees, compare_step_time, compare_throughput
from ledger.accounts.sides import find_run
from ledger.book import BookError, connect
from ledger.facts.lists import Outcome, RunKind, StopReason
from tests.builders import AT, a_fact, an_id
from tests.evaluated import a_book, an_evaluation, run_of

NODE = {
    "engine_nodes": 1,
    "engine_gpus_per_node": 8,
    "engine_gpu_type": "H100",
    "engine_gpus": 8,
    "sandbox_slots": 128,
}


def side(name: str = "A", settings: dict[str, Any] | None = None, **resources: Any) -> Side:
    return Side(name, NODE | resources, settings or {})


def rates(per_hour: float, nodes: int, **fields: Any) -> dict[str, Any]:
    """A row of view `throughput`, of one hour."""
    usual = {
        "completed": per_hour,
        "attempted": per_hour,
        "attempted_equivalents": per_hour,
        "completed_per_hour": per_hour,
        "equivalents_per_hour": per_hour,
        "equivalents_per_engine_node_hour": per_hour / nodes,
        "generated_tokens": 1_000 * per_hour,
        "prefilled_tokens": 5_000 * per_hour,
    }
    return usual | fields


def steps(*seconds: float, **fields: Any) -> list[dict[str, Any]]:
    """Rows of view `step_time`."""
    usual = {"trajectories": 512, "trained_tokens": 9_000_000, "members": 512}
    every = ("loading_s", "logprobs_s", "forward_backward_s", "optimizer_s", "publishing_s",
             "engine_switch_s", "checkpoint_s", "evaluation_s", "unattributed_s", "rollout_s",
             "exposed_s")  # fmt: skip
    known = dict.fromkeys(every) | {"waiting_s": 100.0, "members_truncated": 51}
    return [usual | known | {"wall_s": each} | fields for each in seconds]


def said(comparison: Any) -> list[str]:
    return [line.name for line in comparison.of(Part.VERDICT)]


def ratios(comparison: Any, part: Part) -> dict[str, Any]:
    return {line.name: line.ratio for line in comparison.of(part) if line.ratio is not None}


def test_860_an_hour_on_one_node_and_3480_on_three_are_4_05_raw_and_1_35_per_node() -> None:
    one = side(sandbox_slots=128)
    three = side("B", engine_nodes=3, engine_gpus=24, sandbox_slots=384)
    found = compare_throughput(one, rates(860, 1), three, rates(3_480, 3))
    assert ratios(found, Part.RAW)["completed_per_hour"] == pytest.approx(4.05, abs=0.005)
    per_node = ratios(found, Part.NORMALISED)["equivalents_per_engine_node_hour"]
    assert per_node == pytest.approx(1.35, abs=0.005)
    assert ratios(found, Part.RESOURCE) == {
        "engine_nodes": 3.0,
        "engine_gpus_per_node": 1.0,
        "engine_gpus": 3.0,
        "sandbox_slots": 3.0,
    }
    assert said(found) == ["hardware differs", "settings differ"]
    notes = [line.note for line in found.of(Part.VERDICT)]
    assert notes == ["engine_nodes: 1 and 3", "sandbox_slots: 128 and 384"]


def test_850_s_and_284_s_per_step_on_one_node_are_2_99_with_their_work_beside_them() -> None:
    slow = steps(800, 900)
    fast = steps(284, 284, trained_tokens=6_000_000, members_truncated=4)
    found = compare_step_time(side(), slow, side("B"), fast)
    headline = found.of(Part.RAW)[0]
    assert (headline.a, headline.b, headline.note) == (850, 284, "A / B")
    assert headline.ratio == pytest.approx(2.99, abs=0.005)
    assert said(found) == ["same hardware", "work differs by more than 5%"]
    work = {line.name: (line.a, line.b) for line in found.of(Part.WORK)}
    assert work == {
        "trajectories per step": (512, 512),
        "trained_tokens per step": (9_000_000, 6_000_000),
        "truncated share": (pytest.approx(51 / 512), pytest.approx(4 / 512)),
    }


def test_the_two_ratios_are_never_multiplied() -> None:
    slower, faster = side(engine_nodes=1), side("B", engine_nodes=3)
    every = [
        *compare_throughput(slower, rates(860, 1), faster, rates(3_480, 3)).lines,
        *compare_step_time(slower, steps(850), faster, steps(284)).lines,
    ]
    product = (3_480 / 860) * (850 / 284)
    assert not [each for each in every if each.ratio and each.ratio > product - 0.5]


def test_a_speedup_needs_the_same_hardware_settings_and_work_within_5_percent() -> None:
    def verdict(b: Side, **fields: Any) -> list[str]:
        a = side(settings={"turn_cap": 50})
        return said(compare_step_time(a, steps(850), b, steps(425, **fields)))

    same = side("B", settings={"turn_cap": 50})
    assert verdict(same) == ["same hardware", "speedup"]
    assert verdict(same, trained_tokens=9_400_000) == ["same hardware", "speedup"]
    assert verdict(same, trained_tokens=9_500_000) == [
        "same hardware",
        "work differs by more than 5%",
    ]
    assert verdict(same, trained_tokens=None) == ["same hardware", "work unknown"]
    assert verdict(side("B", settings={"turn_cap": 40})) == ["same hardware", "settings differ"]
    assert verdict(side("B", settings={"turn_cap": 50}, engine_gpu_type="H200")) == [
        "hardware differs"
    ]
    assert verdict(side("B", settings={"turn_cap": 50}, trainer_gpus=8)) == ["hardware differs"]


def test_undeclared_hardware_is_never_the_same() -> None:
    nothing = dict.fromkeys(NODE)
    found = compare_step_time(Side("A", nothing, {}), steps(850), Side("B", nothing, {}), steps(1))
    assert said(found) == ["hardware undeclared"]
    assert found.of(Part.RESOURCE) == []


def test_every_setting_that_differs_is_a_line_also_one_that_only_one_side_has() -> None:
    a = side(settings={"limits.http_pool": 100.0, "assembler.max_staleness": 2, "model": "tiny"})
    b = side("B", {"limits.http_pool": 400.0, "model": "tiny", "turn_cap": 50})
    lines = compare_step_time(a, steps(850), b, steps(850)).of(Part.SETTING)
    assert [(line.name, line.a, line.b, line.ratio) for line in lines] == [
        ("assembler.max_staleness", 2, None, None),
        ("limits.http_pool", 100.0, 400.0, 4.0),
        ("turn_cap", None, 50, None),
    ]


def test_what_is_unknown_has_no_ratio() -> None:
    found = compare_throughput(side(), rates(0, 1), side("B"), rates(100, 1))
    assert ratios(found, Part.RAW) == {}
    assert "work unknown" in said(found)


def test_a_step_time_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="a step time needs a step, and B has none"):
        compare_step_time(side(), steps(850), side("B"), [])


def test_work_agrees_within_5_percent_either_way() -> None:
    assert [agrees(100, 105), agrees(105, 100), agrees(0, 0)] == [True, True, True]
    assert [agrees(100, 106), agrees(106, 100), agrees(0, 1)] == [False, False, False]


@cache
def _template(name: str) -> Any:
    return a_fact(name, only_required=True)


def _rollouts(run: str, first: float, seconds: float, count: int, number: int) -> list[Any]:
    """So many attempts that start and end between these seconds."""
    facts: list[Any] = []
    for i in range(count):
        ids = {
            "run_id": run,
            "group_id": an_id(f"group {number}", i),
            "trajectory_id": an_id(f"trajectory {number}", i),
        }
        start = AT + timedelta(seconds=first + seconds * i / count)
        end = start + timedelta(seconds=0.9 * seconds / count)
        facts += [
            replace(_template("trajectory_started"), **ids, occurred_at=start),
            replace(_template("reward_assigned"), **ids, occurred_at=end, value=1.0),
            replace(_template("trajectory_finished"), **ids, occurred_at=end,
                    stop_reason=StopReason.SUBMITTED),
            replace(_template("trajectory_judged"), **ids, occurred_at=end, rule_set=1,
                    outcome=Outcome.COMPLETED, trainable=True),
        ]  # fmt: skip
    return facts


def _scaled_up() -> list[Any]:
    """Six minutes on one node, then six on three: 860 and 3,480 attempts an hour. Its step began a
    second before it said what it ran on: a span of no attempt."""
    run = run_of("scaled up")
    declared = {"run_id": run, "engine_gpus_per_node": 8, "engine_gpu_type": "H100"}
    facts = [
        replace(_template("run_declared"), run_id=run, kind=RunKind.TRAIN, name="scaled up",
                occurred_at=AT),
        replace(_template("resources_declared"), **declared, engine_nodes=1, occurred_at=AT,
                limits={"docker networks": 31.0}, sandbox_slots=128),
        *_rollouts(run, 0, 360, 86, 1),
        replace(_template("resources_declared"), **declared, engine_nodes=3,
                occurred_at=AT + timedelta(seconds=360), sandbox_slots=384),
        *_rollouts(run, 360, 360, 348, 2),
    ]  # fmt: skip
    # What happens at the end of the second span is what ends it.
    facts.append(replace(_template("step_completed"), run_id=run, step=1, wall_s=721.0,
                         started_at=AT - timedelta(seconds=1),
                         occurred_at=AT + timedelta(seconds=720)))  # fmt: skip
    return [
        replace(fact, event_id=an_id("scaled up", i), producer_seq=i)
        for i, fact in enumerate(facts)
    ]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = {
        f"t{n}": " ".join("p" if slot < n % 3 else "f" for slot in range(4)) for n in range(9)
    }
    after = before | {f"t{n}": "p p p f" for n in range(6)} | {"t8": "i i i i", "new": "p p p p"}
    return a_book(
        tmp_path_factory.mktemp("compare"),
        [
            *_scaled_up(),
            *an_evaluation("before", before, temperature=1.0, parent_policy_version=0),
            *an_evaluation("after", after, temperature=0.6, parent_policy_version=20),
            *an_evaluation("sweep/3", {}),
        ],
    )


Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rollbook(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Compare:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rollbook", "compare", *arguments, "--book", str(book)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *capsys.readouterr()

    return run


def test_compare_throughput_of_two_spans_says_hardware_differs_and_no_speedup(
    rollbook: Compare,
) -> None:
    status, out, _ = rollbook("throughput", "scaled up/1", "scaled up/2", "--format", "json")
    assert status == 0
    lines = {(line["part"], line["name"]): line for line in json.loads(out)}
    assert lines["raw", "completed_per_hour"]["a"] == pytest.approx(860)
    assert lines["raw", "completed_per_hour"]["b"] == pytest.approx(3_480)
    assert lines["raw", "completed_per_hour"]["ratio"] == pytest.approx(4.05, abs=0.005)
    per_node = lines["normalised", "equivalents_per_engine_node_hour"]
    assert per_node["ratio"] == pytest.approx(1.35, abs=0.005)
    assert lines["resource", "sandbox_slots"]["ratio"] == 3.0
    assert lines["setting", "limits.docker networks"]["a"] == 31.0
    assert ("verdict", "hardware differs") in lines
    assert "speedup" not in out


def test_compare_step_time_of_a_run_with_itself_is_1(rollbook: Compare) -> None:
    status, out, _ = rollbook("step-time", "scaled up", run_of("scaled up")[:13])
    assert status == 0
    assert "wall_s per step" in out
    assert "work unknown" in out
    assert "speedup" not in out


def test_compare_pass_at_1_is_paired_and_names_what_differs(rollbook: Compare) -> None:
    status, out, _ = rollbook("pass-at-1", "before", "after/20", "--format", "json")
    assert status == 0
    lines = json.loads(out)
    first = {(line["part"], line["name"]): line for line in reversed(lines)}
    assert first["figure", "pass_at_1_macro"]["a"] == pytest.approx(0.25)
    paired = first["paired", "pass@1 on 8 common tasks"]
    # t0 to t7 had 0, 1, 2, 0, 1, 2, 0, 1 of 4; afterwards 3 of 4, but for t6 and t7.
    assert paired["a"] == pytest.approx(7 / 32)
    assert paired["b"] == pytest.approx(19 / 32)
    assert paired["difference"] == pytest.approx(12 / 32)
    assert paired["low"] < 12 / 32 < paired["high"]
    assert paired["note"] == "bootstrap"
    bounds = first["paired", "bounds over tasks of both scopes"]
    assert bounds["low"] == pytest.approx((12 / 4 - 2 / 4) / 9)
    assert bounds["high"] == pytest.approx((12 / 4 + 2 / 4) / 9)
    assert first["tasks", "lost: without a valid attempt on a side"]["note"] == "1: t8"
    assert first["tasks", "in B's scope alone"]["note"] == "1: new"
    assert (first["scope", "temperature"]["a"], first["scope", "temperature"]["b"]) == (1.0, 0.6)
    assert first["verdict", "scopes differ"]["note"] == "tasks, temperature, tasks"
    assert "training seeds" in first["verdict", "interval"]["note"]


def test_compare_names_what_it_could_have_meant(rollbook: Compare) -> None:
    status, _, errors = rollbook("throughput", "scaled up", "scaled up/2")
    assert status == 2
    assert "'scaled up' must have one span and one rule_set (RUN/NUMBER, --rule-set)" in errors
    assert ", and has span 1, rule_set 1; span 2, rule_set 1" in errors
    status, _, errors = rollbook("throughput", "before", "after", "--rule-set", "77")
    assert (status, errors) == (2, "error: a rule set must be one of 1, 2, got 77\n")
    status, _, errors = rollbook("pass-at-1", "before", "never")
    assert (status, errors) == (
        2, "error: 'never' must be the id or the name of one run, and means none\n"
    )  # fmt: skip
    status, _, errors = rollbook("pass-at-1", "before/3", "after")
    assert status == 2
    assert "and has none" in errors


def test_a_run_is_found_by_its_id_or_the_beginning_of_it_or_its_name(book: Path) -> None:
    run = run_of("before")
    with connect(book, read_only=True) as connection:
        for text in (run, run.upper(), run[:8], "before", "before/7"):
            assert str(find_run(connection, text).run_id) == run
        assert find_run(connection, "before/7").number == 7
        assert find_run(connection, "sweep/3").number is None
        assert find_run(connection, "sweep/3/5").number == 5
        for text in ("", run[:3], "befor"):
            with pytest.raises(BookError, match="and means none"):
                find_run(connection, text)
