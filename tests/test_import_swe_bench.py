"""SWE-bench: run reports, submissions that name only some instances, published figures that err."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.foreign import booked, imported, put, refused
from tests.foreign_mini_swe_agent import a_report

FORM = "swe-bench"
OUTCOMES = (
    "SELECT task_id, foreign_status, reward, error_type_of_reward FROM trajectories JOIN ("
    "SELECT trajectory_id, error_type AS error_type_of_reward FROM reward_assigned"
    ") USING (trajectory_id) ORDER BY task_id"
)


def test_a_run_report_keeps_errors_unscored_and_what_was_never_submitted_unstarted(
    tmp_path: Path, sqlite_url: str
) -> None:
    report = a_report(
        resolved=["a"], unresolved=["b", "oom"], empty_patch=["c"], error=["d"], incomplete=["e"]
    )
    report |= {"infra_failure_ids": ["oom"], "failure_reasons": {"oom": "out_of_memory"}}
    said = imported(FORM, put(tmp_path / "gpt-4.1.nightly.json", report), sqlite_url)
    assert said.status == 0, said
    assert said.figures["resolved_instances"] == (1, 1, "agrees")
    assert said.figures["total_instances"] == (6, 6, "agrees")
    assert booked(sqlite_url, tmp_path, OUTCOMES) == [
        ("a", "resolved", 1.0, None),
        ("b", "unresolved", 0.0, None),
        ("c", "empty_patch", 0.0, None),
        ("d", "error", None, "error_ids"),
        ("oom", "unresolved", 0.0, "out_of_memory"),
    ]
    assert booked(sqlite_url, tmp_path, "SELECT name, model, tasks, slots FROM runs") == [
        ("nightly", "gpt-4.1", 6, 6)
    ]
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT disposition, count(*) FROM dispositions GROUP BY ALL ORDER BY 1",
    ) == [("evaluated", 4), ("excluded", 1), ("never_started", 1)]


def test_of_a_submission_only_the_ids_that_some_file_names_are_attempts(
    tmp_path: Path, sqlite_url: str
) -> None:
    """1 of 4 is 25 percent of the dataset, though only 3 instances have a name."""
    folder = tmp_path / "verified" / "20250101_agent"
    put(folder / "results" / "results.json",
        {"resolved": ["a"], "no_generation": ["b"], "no_logs": ["c"]})  # fmt: skip
    put(folder / "metadata.yaml", "tags: {model: [one, two]}\n")
    said = imported(FORM, folder, sqlite_url, "--set", "dataset_size=4")
    assert said.status == 0, said
    assert said.figures["resolved, percent of the dataset"] == (25.0, 25.0, "agrees")
    assert "1 others are no attempts here" in said.notes
    assert booked(sqlite_url, tmp_path, OUTCOMES) == [
        ("a", "resolved", 1.0, None),
        ("b", "no_generation", 0.0, None),
        ("c", "no_logs", None, "no_logs"),
    ]
    assert booked(sqlite_url, tmp_path, "SELECT split, model, tasks FROM runs") == [
        ("verified", "one, two", 4)
    ]


def test_a_published_percentage_that_its_own_instances_contradict_is_a_finding(
    tmp_path: Path, sqlite_url: str
) -> None:
    """66.7 is 2 of 3, rounded; 52.8 is not 1 of 3."""
    passes: dict[str, list[bool]] = {"right": [True, True, False], "wrong": [True, False, False]}
    entries: list[dict[str, Any]] = [
        {
            "name": name,
            "folder": name,
            "resolved": published,
            "per_instance_details": {
                f"i-{i}": {"resolved": each, "cost": 0.25, "api_calls": 10}
                for i, each in enumerate(passes[name])
            },
        }
        for name, published in (("right", 66.7), ("wrong", 52.8))
    ]
    entries.append({"name": "bare", "resolved": 10.0})
    board = {"leaderboards": [{"name": "Verified", "results": entries}]}
    path = put(tmp_path / "leaderboards.json", board)
    said = imported(FORM, path, sqlite_url)
    assert said.status == 1
    assert "7 of the 8 figures that the files state agree, 1 differ without" in said.notes
    assert "1 entries list no instances, so they are no runs: bare" in said.notes
    assert said.figures["resolved, percent"][0] == 52.8
    assert said.figures["resolved, percent"][2] == "differs"
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT name, count(*) FILTER (passed), sum(foreign_calls), sum(cost_usd)"
        " FROM trajectories JOIN runs USING (run_id) GROUP BY name ORDER BY name",
    ) == [("right", 2, 30, 0.75), ("wrong", 1, 30, 0.75)]


def test_the_harness_logs_alone_tell_verdicts_and_tests(tmp_path: Path, sqlite_url: str) -> None:
    tests = {"FAIL_TO_PASS": {"success": ["t1"], "failure": ["t2"]},
             "PASS_TO_PASS": {"success": ["t3"], "failure": []}}  # fmt: skip
    verdict = {"resolved": False, "patch_is_None": False, "tests_status": tests}
    put(tmp_path / "logs" / "m" / "a" / "report.json", {"a": verdict})
    assert imported(FORM, tmp_path / "logs", sqlite_url).status == 0
    query = "SELECT reward, tests_passed, tests_failed, foreign_status FROM trajectories"
    assert booked(sqlite_url, tmp_path, query) == [(0.0, 2, 1, "completed")]


def test_a_verdict_that_was_cut_short_is_an_error_as_the_harness_has_it(
    tmp_path: Path, sqlite_url: str
) -> None:
    logs = tmp_path / "out" / "logs" / "night" / "m"
    put(logs / "a" / "report.json", {"a": {"resolved": True, "patch_is_None": False}})
    put(logs / "b" / "report.json", "{")
    put(logs / "c" / "report.json", " ")
    put(logs / "d" / "report.json", {"d": {"patch_is_None": False}})
    said = imported(FORM, tmp_path / "out" / "logs", sqlite_url)
    assert said.status == 0, said
    assert booked(sqlite_url, tmp_path, OUTCOMES) == [
        ("a", "completed", 1.0, None),
        ("b", "error", None, "no_verdict"),
        ("c", "error", None, "no_verdict"),
        ("d", "error", None, "no_verdict"),
    ]
    put(tmp_path / "out" / "m.night.json", a_report(resolved=["a"], error=["b", "c", "d"]))
    other = f"sqlite:///{tmp_path / 'other.db'}"
    said = imported(FORM, tmp_path / "out", other, "--report", str(tmp_path / "out" / "logs"))
    assert (said.status, said.figures["error_instances"]) == (0, (3, 3, "agrees"))


def test_logs_tell_a_run_id_with_a_dot_from_the_model(tmp_path: Path, sqlite_url: str) -> None:
    logs = tmp_path / "logs"
    put(logs / "night.2" / "org__m-1.5" / "a" / "report.json", {"a": {"resolved": True}})
    path = put(tmp_path / "org__m-1.5.night.2.json", a_report(resolved=["a"]))
    assert imported(FORM, path, sqlite_url, "--report", str(logs)).status == 0
    assert booked(sqlite_url, tmp_path, "SELECT name, model FROM runs") == [
        ("night.2", "org/m-1.5")
    ]


def test_a_prediction_for_no_instance_of_the_dataset_explains_the_total(
    tmp_path: Path, sqlite_url: str
) -> None:
    report = a_report(resolved=["a"], unresolved=["b"], incomplete=["c"])
    report["submitted_ids"] = ["a", "b", "stray"]
    report["submitted_instances"] = 3
    said = imported(FORM, put(tmp_path / "m.night.json", report), sqlite_url)
    assert said.status == 0, said
    assert said.figures["total_instances"] == (
        3,
        4,
        "differs: predictions for none of the dataset's instances: 1",
    )
    report["total_instances"] = 2
    said = imported(FORM, put(tmp_path / "m.other.json", report), sqlite_url)
    assert (said.status, said.figures["total_instances"]) == (1, (2, 4, "differs"))


def test_bad_input_gets_value_rule_and_place(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(FORM, tmp_path / "empty").startswith("empty must have a run report, a results")
    assert refused(FORM, put(tmp_path / "a.json", {"x": 1})) == (
        "a.json# must be a run report of the SWE-bench harness, an object with resolved_ids,"
        ' got {"x": 1}'
    )
    both = a_report(resolved=["a"], unresolved=["a"])
    assert refused(FORM, put(tmp_path / "b.json", both)) == (
        "b.json#: an instance must be in one of resolved_ids and unresolved_ids, got a in both"
    )
    assert "holds no attempt in format swe-bench: the run is empty" in refused(
        FORM, put(tmp_path / "c.json", a_report())
    )
    board = {"leaderboards": [{"name": "Lite", "results": [{"name": "bare"}]}]}
    assert refused(FORM, put(tmp_path / "d.json", board)) == (
        "d.json# must have per_instance_details of an entry, got none"
    )
    good = put(tmp_path / "e.json", a_report(resolved=["a"]))
    assert refused(FORM, good, dataset_size="many") == (
        "--set dataset_size must be a whole number, got 'many'"
    )
