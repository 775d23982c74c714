"""Terminal-Bench: three-valued results, failure modes beside rewards, several runs as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign import booked, imported, put, read, refused
from tests.foreign_terminal_bench import TIMES, a_trial, put_results

FORM = "terminal-bench"
CLOCKLESS = dict.fromkeys(TIMES)


def test_a_submission_of_two_runs_is_one_evaluation_with_two_attempts_a_task(
    tmp_path: Path, sqlite_url: str
) -> None:
    """easy: 2 of 2, mixed: 1 of 2 of which the other has no verdict: pass@1 0.75, pass@2 1."""
    first = [a_trial("easy", True), a_trial("mixed", True, "agent_timeout")]
    second = [a_trial("easy", True, number=1), a_trial("mixed", None, "parse_error", 1)]
    put_results(tmp_path / "sub" / "one", first, "one")
    put_results(tmp_path / "sub" / "two", second, "two")
    said = imported(FORM, tmp_path / "sub", sqlite_url)
    assert said.status == 0
    assert said.figures["attempts"] == (4, 4, "agrees")
    assert said.figures["accuracy (pass@1)"] == (0.75, 0.75, "agrees")
    assert said.figures["pass@2"] == (None, 1.0, "not stated")
    assert said.figures["not scored"] == (1, 1, "agrees")
    assert said.figures["input tokens"] == (4000, 4000, "agrees")
    assert said.figures["trial seconds"] == (400.0, 400.0, "agrees")
    assert said.figures["environment setup seconds"] == (80.0, 80.0, "agrees")
    assert said.figures["agent seconds"] == (240.0, 240.0, "agrees")
    assert said.figures["test seconds"] == (40.0, 40.0, "agrees")
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT task_id, slot, foreign_status, reward, tests_passed, outcome, blame, trainable"
        " FROM trajectories ORDER BY task_id, slot",
    ) == [
        ("easy", 0, "unset", 1.0, 1, "completed", None, True),
        ("easy", 1, "unset", 1.0, 1, "completed", None, True),
        ("mixed", 0, "agent_timeout", 1.0, 1, "truncated", "policy", True),
        ("mixed", 1, "parse_error", None, None, "completed", "policy", False),
    ]


def test_an_import_is_decided_as_an_evaluation_and_declares_its_scope(
    tmp_path: Path, sqlite_url: str
) -> None:
    put_results(tmp_path / "sub", [a_trial("easy", True), a_trial("hard", False)])
    imported(FORM, tmp_path / "sub", sqlite_url)
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT kind, name, tasks, attempts_per_task, slots, dataset, scaffold, model FROM runs",
    ) == [("eval", "sub", 2, 1, 2, "terminal-bench-core@0.1.1", "an-agent", "a-model")]
    assert booked(
        sqlite_url, tmp_path, "SELECT decision, mean FROM group_decided ORDER BY mean"
    ) == [("evaluated", 0.0), ("evaluated", 1.0)]
    (configuration,) = booked(sqlite_url, tmp_path, "SELECT configuration FROM runs")[0]
    assert '"api_key":"***"' in configuration


def test_a_second_import_writes_nothing_wherever_the_files_lie(
    tmp_path: Path, sqlite_url: str
) -> None:
    trials = [a_trial("easy", True), a_trial("hard", None, "unknown_agent_error", **CLOCKLESS)]
    put_results(tmp_path / "here", trials)
    put_results(tmp_path / "there" / "deeper", trials)
    one, *_ = read(FORM, tmp_path / "here")
    other, *_ = read(FORM, tmp_path / "there")
    assert [each.fields["event_id"] for each in one.drafts()] == [
        each.fields["event_id"] for each in other.drafts()
    ]
    imported(FORM, tmp_path / "here", sqlite_url)
    count = booked(sqlite_url, tmp_path, "SELECT count(*) FROM facts")
    said = imported(FORM, tmp_path / "here", sqlite_url)
    assert "0 facts new, 12 known" in said.notes
    assert booked(sqlite_url, tmp_path, "SELECT count(*) FROM facts") == count


def test_attempts_of_unequal_number_and_a_task_without_a_verdict_keep_their_own_n(
    tmp_path: Path, sqlite_url: str
) -> None:
    """one: 1 of 1, three: 1 of 3, none: 0 of 2 without a verdict. pass@2 is over three and none."""
    trials = [
        a_trial("one", True),
        *[a_trial("three", number == 0, number=number) for number in range(3)],
        *[a_trial("none", None, "test_timeout", number) for number in range(2)],
    ]
    put_results(tmp_path / "run", trials, pass_at_k={"2": 1 / 3})
    said = imported(FORM, tmp_path / "run", sqlite_url)
    assert said.status == 0
    assert said.figures["pass@2"][:2] == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert said.figures["accuracy (pass@1)"][:2] == (pytest.approx(2 / 6), pytest.approx(2 / 6))
    assert booked(
        sqlite_url, tmp_path, "SELECT task_id, expected_size FROM opened_groups ORDER BY task_id"
    ) == [("none", 2), ("one", 1), ("three", 3)]
    assert booked(sqlite_url, tmp_path, "SELECT attempts_per_task FROM runs") == [(None,)]


def test_a_total_that_the_trials_do_not_bear_out_is_a_finding(
    tmp_path: Path, sqlite_url: str
) -> None:
    put_results(tmp_path / "run", [a_trial("easy", True), a_trial("hard", False)], n_resolved=2)
    said = imported(FORM, tmp_path / "run", sqlite_url)
    assert said.status == 1
    assert said.figures["n_resolved"] == (2, 1, "differs")
    assert "1 of " in said.notes
    assert "differ without a reason" in said.notes


def test_an_older_file_has_uuids_and_no_clocks(tmp_path: Path, sqlite_url: str) -> None:
    trial = a_trial("easy", True)
    trial["uuid"] = trial.pop("id")
    for name in TIMES:
        del trial[name]
    put(tmp_path / "results.json", {"uuid": "old", "results": [trial]})
    said = imported(FORM, tmp_path / "results.json", sqlite_url)
    assert said.figures["trial seconds"] == (None, None, "not stated")
    assert said.figures["n_resolved"] == (None, 1, "not stated")
    assert booked(
        sqlite_url, tmp_path, "SELECT DISTINCT time_quality, occurred_at FROM trajectory_finished"
    ) == [("none", None)]


def test_where_an_agent_was_never_installed_infrastructure_is_to_blame_whatever_the_reward(
    tmp_path: Path, sqlite_url: str
) -> None:
    put_results(tmp_path / "run", [a_trial("a", False, "agent_installation_failed")])
    imported(FORM, tmp_path / "run", sqlite_url)
    query = "SELECT reward, ended_in_stage, blame, trainable FROM trajectories"
    assert booked(sqlite_url, tmp_path, query) == [(0.0, "setup", "infrastructure", False)]


def test_bad_input_gets_value_rule_and_place(tmp_path: Path) -> None:
    put_results(tmp_path / "good", [a_trial("easy", True)])
    whole = (tmp_path / "good" / "results.json").read_text()
    put(tmp_path / "cut" / "results.json", whole[:-20])
    assert refused(FORM, tmp_path / "cut").startswith("results.json must be JSON: ")
    put_results(tmp_path / "empty", [])
    assert refused(FORM, tmp_path / "empty") == (
        f"{tmp_path / 'empty'} holds no attempt in format terminal-bench: the run is empty"
    )
    (tmp_path / "other").mkdir()
    assert refused(FORM, tmp_path / "other") == (
        "other must have a results.json in it or below, got none"
    )
    put(tmp_path / "strange" / "results.json", ["no", "object"])
    assert refused(FORM, tmp_path / "strange") == (
        "results.json# must be an object with results, as terminal-bench writes it, got"
        ' ["no", "object"]'
    )
    put_results(tmp_path / "half", [a_trial("easy", True) | {"is_resolved": 0.5}])
    assert refused(FORM, tmp_path / "half") == (
        "results.json#/results/0/is_resolved must be true or false, got 0.5"
    )
    put_results(tmp_path / "twice", [a_trial("easy", True), a_trial("easy", True)])
    assert refused(FORM, tmp_path / "twice").startswith(
        "trajectory_started of task_id easy must come once: it stands at results.json#/results/0 "
    )
    assert refused(FORM, tmp_path / "nowhere") == f"there is nothing at {tmp_path / 'nowhere'}"
    assert refused(FORM, tmp_path / "good", k="2") == (
        "--set k is no setting of this format (settings: none)"
    )
