"""`rollbook judge`: an old log is judged anew by appending, and a second run appends nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api.cli import main
from consumers.judge import judge_log
from ledger.facts import Fact
from ledger.judgement import load_rules
from ledger.open_log import open_log
from tests.attempts import a_trial, fact, finished, peers, reward, sandbox_failed
from tests.books import append
from tests.builders import AT, a_turn, an_id
from tests.recorded import check_numbers, facts_in, of


def ids(number: int) -> dict[str, Any]:
    return {"slot": number, "trajectory_id": an_id("attempt", number)}


def an_attempt(number: int, *makers: Callable[..., Fact]) -> list[Fact]:
    """A start, a turn, and what `makers` make for this attempt, each with an id of its own."""
    made = [fact("trajectory_started", **ids(number)), a_turn(0, **ids(number))]
    made += [make(**ids(number)) for make in makers]
    return [replace(each, event_id=an_id(f"attempt {number}", i)) for i, each in enumerate(made)]


def ended(stop_reason: str, stage: str | None = None, **fields: Any) -> Callable[..., Fact]:
    return lambda **its: finished(stop_reason, stage, **its, **fields)


def scored(value: float | None, **fields: Any) -> Callable[..., Fact]:
    return lambda **its: reward(value, **its, **fields)


def lost(**its: Any) -> Fact:
    return sandbox_failed(in_command=True, **its)


STORY = [
    *an_attempt(0, ended("submitted"), scored(1.0)),
    *an_attempt(1, ended("submitted"), scored(0.0)),
    *an_attempt(2, lost, ended("error", "tool", error_type="SandboxNotRunningException")),
    *an_attempt(3, ended("submitted", "verify"), scored(None, error_type="parse_error")),
    *an_attempt(4),
]
"""Two scored attempts, one that lost its sandbox, one that broke its verifier, one that runs."""


def judgements(url: str, rule_set: int) -> list[tuple[Any, ...]]:
    """(attempt's number, class, blame, trainable) in the log's order."""
    numbers = {an_id("attempt", i): i for i in range(10)}
    return [
        (numbers[each.trajectory_id], each.cause_class, each.blame, each.trainable)
        for each in of(facts_in(url), "TrajectoryJudged")
        if each.rule_set == rule_set
    ]


FIRST = [
    (0, None, None, True),
    (1, None, None, True),
    (2, "sandbox_lost_in_command", "policy", False),
    (3, "verifier_broken_by_patch", "policy", False),
]


def test_every_ended_attempt_is_judged_once_under_each_rule_set(log_url: str) -> None:
    with open_log(log_url) as log:
        append(log, STORY)
        first = judge_log(log, load_rules(1))
        assert (first.judged, first.written, first.in_flight) == (4, 4, 1)
        assert [tuple(each) for each in first.counts] == [
            ("completed", None, None, None, 2),
            ("errored", "policy", "sandbox_lost_in_command", "reward_missing", 1),
            ("completed", "policy", "verifier_broken_by_patch", "reward_missing", 1),
        ]
        assert judge_log(log, load_rules(2)).written == 4
    assert judgements(log_url, 1) == FIRST
    assert [each[1:3] for each in judgements(log_url, 2)] == [
        (None, None),
        (None, None),
        ("sandbox_lost", "policy"),
        ("verifier_crashed", "policy"),
    ]


def test_a_second_run_appends_nothing(log_url: str) -> None:
    with open_log(log_url) as log:
        append(log, STORY)
        judge_log(log, load_rules(1))
        ends = log.end_positions("events")
        again = judge_log(log, load_rules(1))
        assert (again.judged, again.written) == (4, 0)
        assert log.end_positions("events") == ends


def test_two_runs_at_once_append_the_same_facts(sqlite_url: str, tmp_path: Path) -> None:
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    for url in (sqlite_url, other_url):
        with open_log(url) as log:
            append(log, STORY)
            judge_log(log, load_rules(1))
    one, other = (
        [(each.event_id, each.occurred_at) for each in of(facts_in(url), "TrajectoryJudged")]
        for url in (sqlite_url, other_url)
    )
    assert one == other
    assert len(set(one)) == 4


def test_later_evidence_gives_a_later_judgement_and_leaves_the_first(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        append(log, STORY)
        judge_log(log, load_rules(1))
        append(log, [*peers("sandbox_failed", "task-1", "task-2"), a_trial("parse_error")])
        assert judge_log(log, load_rules(1)).written == 2
        assert judge_log(log, load_rules(1)).written == 0
    assert judgements(sqlite_url, 1) == [
        *FIRST,
        (2, "sandbox_lost", "infrastructure", False),
        (3, "verifier_crashed", "verifier", False),
    ]


def test_a_judgement_that_comes_back_is_a_fact_of_its_own(sqlite_url: str) -> None:
    """A trial that crashed, one that did not, one that crashed again: three judgements."""
    with open_log(sqlite_url) as log:
        append(log, STORY)
        for i, error_type in enumerate(["parse_error", None, "parse_error"]):
            append(log, [a_trial(error_type, i, occurred_at=AT + timedelta(hours=i))])
            assert judge_log(log, load_rules(1)).written == (4 if i == 0 else 1)
    said = [each[1] for each in judgements(sqlite_url, 1) if each[0] == 3]
    assert said == ["verifier_crashed", "verifier_broken_by_patch", "verifier_crashed"]


def test_a_judgement_delivered_again_is_no_newer_for_it(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        append(log, STORY)
        judge_log(log, load_rules(1))
        old = of(facts_in(sqlite_url), "TrajectoryJudged")
        append(log, [a_trial("parse_error")])
        judge_log(log, load_rules(1))
        append(log, old)
        assert judge_log(log, load_rules(1)).written == 0


def test_only_one_run(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        append(log, STORY)
        elsewhere = an_attempt(5, ended("submitted"), scored(1.0))
        append(log, [replace(each, run_id=an_id("run", 1)) for each in elsewhere])
        assert judge_log(log, load_rules(1), an_id("run", 1)).written == 1
    assert judgements(sqlite_url, 1) == [(5, None, None, True)]


def test_the_producer_of_judgements_is_closed_and_has_no_hole(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        append(log, STORY)
        judge_log(log, load_rules(1))
    facts = [each for each in facts_in(sqlite_url) if each.producer == "judge"]
    assert list(check_numbers(facts).values()) == [5]
    (closed,) = of(facts, "ProducerClosed")
    assert (closed.accepted, closed.last_seq) == (4, 3)


def test_an_abandoned_attempt_stays_abandoned_under_another_rule_set(sqlite_url: str) -> None:
    evidence = [json.dumps({"abandoned": {"silent_s": 300.0, "producer_silent": True}})]
    by_the_reaper = fact(
        "trajectory_judged", **ids(4), rule_set=1, outcome="abandoned", cause_class="abandoned",
        blame="infrastructure", trainable=False, evidence=evidence,
    )  # fmt: skip
    with open_log(sqlite_url) as log:
        append(log, [*STORY, by_the_reaper])
        assert judge_log(log, load_rules(1)).in_flight == 0
        assert judge_log(log, load_rules(2)).written == 5
    assert judgements(sqlite_url, 1) == [(4, *by_the_reaper_says(by_the_reaper)), *FIRST]
    assert judgements(sqlite_url, 2)[-1] == (4, "abandoned", "policy", False)


def by_the_reaper_says(judged: Any) -> tuple[Any, ...]:
    return judged.cause_class, judged.blame, judged.trainable


def test_what_cannot_be_read_is_passed_over_by_name(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        append(log, [*STORY, a_turn(-1, **ids(0)), b"garbage"])
        result = judge_log(log, load_rules(1))
    assert result.written == 4
    assert [each.split(":")[0] for each in result.unreadable] == [
        f"events/0 offset {len(STORY)}",
        f"events/0 offset {len(STORY) + 1}",
    ]


def rollbook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["rollbook", "judge", *arguments])
    status = 0
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    return status, *capsys.readouterr()


def test_the_command_prints_counts_and_says_what_it_wrote(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_log(sqlite_url) as log:
        append(log, STORY)
    status, out, errors = rollbook(
        monkeypatch, capsys, "--log", sqlite_url, "--rules", "2", "--format", "json"
    )
    assert status == 0
    assert json.loads(out)[0] == {
        "outcome": "completed",
        "blame": None,
        "class": None,
        "excluded": None,
        "attempts": 2,
    }
    assert errors == (
        "rule set 2, as a leaderboard counts: 4 ended attempts judged, 4 judgements new,"
        " 1 attempts in flight\n"
    )
    assert "4 ended attempts judged, 4 judgements new" in rollbook(
        monkeypatch, capsys, "--log", sqlite_url
    )[2]  # fmt: skip


def test_the_command_refuses_bad_input(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_log(sqlite_url) as log:
        append(log, [b"garbage"])
    status, _, errors = rollbook(monkeypatch, capsys, "--log", sqlite_url, "--rules", "7")
    assert (status, errors) == (2, "error: there is no rule set 7 (rule sets: 1, 2)\n")
    status, _, errors = rollbook(monkeypatch, capsys, "--log", sqlite_url, "--run", "seven")
    assert (status, "--run" in errors) == (2, True)
    status, _, errors = rollbook(monkeypatch, capsys, "--log", sqlite_url)
    assert (status, "passed over: events/0 offset 0" in errors) == (1, True)
