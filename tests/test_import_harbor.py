"""Harbor: where a trial failed by its phases, rewards of any form, clocks with and without zone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.foreign import booked, imported, put, read, refused
from tests.foreign_harbor import a_call, a_step, a_trial, an_atif, put_job

FORM = "harbor"


def test_a_job_is_an_evaluation_whose_statistics_the_ledger_bears_out(
    tmp_path: Path, sqlite_url: str
) -> None:
    """solved passes in 1 of 2 trials; half gets 0.5; slow ran out of time and passed all the same;
    unbuilt died in docker build, which Harbor calls a RuntimeError."""
    trials = [
        a_trial("solved", 0, {"reward": 1.0}),
        a_trial("solved", 1, {"reward": 0.0}),
        a_trial("half", 0, {"reward": 0.5}),
        a_trial("slow", 0, {"reward": 1.0}, "AgentTimeoutError"),
        a_trial("unbuilt", 0, None, "RuntimeError", 1, agent_result=None),
        a_trial("uninstalled", 0, None, "AgentSetupTimeoutError", 2, agent_result=None),
        a_trial("untested", 0, None, "RewardFileNotFoundError", 4),
    ]
    evals = {
        "n_trials": 4,
        "n_errors": 4,
        "metrics": [{"mean": 2.5 / 7}],
        "reward_stats": {"reward": {"1.0": ["a", "b"], "0.5": ["c"], "0.0": ["d"]}},
        "exception_stats": {"RuntimeError": ["unbuilt"], "AgentTimeoutError": ["slow"]},
    }
    job = put_job(tmp_path / "a-job", trials, evals)
    put(job / "half__0000000" / "verifier" / "ctrf.json",
        {"results": {"summary": {"tests": 5, "passed": 3, "failed": 2}}})  # fmt: skip
    said = imported(FORM, job, sqlite_url)
    assert said.status == 0, said
    assert said.figures["evals: mean"][2] == "agrees"
    assert said.figures["environment_setup seconds"] == (30.0, 30.0, "agrees")
    assert said.figures["agent_setup seconds"] == (50.0, 50.0, "agrees")
    assert said.figures["agent_execution seconds"] == (300.0, 300.0, "agrees")
    assert said.figures["verifier seconds"] == (75.0, 75.0, "agrees")
    assert said.figures["n_input_tokens"] == (1500, 1500, "agrees")
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT task_id, slot, foreign_status, stop_reason, reward, passed, ended_in_stage, blame,"
        " trainable FROM trajectories ORDER BY task_id, slot",
    ) == [
        ("half", 0, "completed", "submitted", 0.5, False, None, None, True),
        ("slow", 0, "AgentTimeoutError", "clock_cap", 1.0, True, None, "policy", True),
        ("solved", 0, "completed", "submitted", 1.0, True, None, None, True),
        ("solved", 1, "completed", "submitted", 0.0, False, None, None, True),
        ("unbuilt", 0, "RuntimeError", "error", None, None, "sandbox_start",
         "infrastructure", False),
        ("uninstalled", 0, "AgentSetupTimeoutError", "error", None, None, "setup",
         "infrastructure", False),
        ("untested", 0, "RewardFileNotFoundError", "submitted", None, None, None, "policy", False),
    ]  # fmt: skip
    assert booked(
        sqlite_url, tmp_path, "SELECT DISTINCT tests_passed, tests_failed FROM reward_assigned"
        " WHERE tests_passed IS NOT NULL"
    ) == [(3, 2)]  # fmt: skip
    (configuration,) = booked(sqlite_url, tmp_path, "SELECT configuration FROM runs")[0]
    assert "sk-1" not in configuration


def test_a_trajectory_beside_a_trial_is_its_turns_and_calls_and_another_model_is_kept(
    tmp_path: Path, sqlite_url: str
) -> None:
    """Three steps of the agent with metrics, one without: a step is not a turn."""
    steps = [
        a_step("user"),
        a_step(tool_calls=[a_call(0, command="ls")]),
        a_step(metrics=None, tool_calls=[a_call(1), a_call(2)], observation={
            "results": [{"source_call_id": "call-2", "content": "second"}, {"content": "first"}]}),
        a_step(),
        a_step(),
    ]  # fmt: skip
    metadata = {"api_request_times_msec": [1500, 500, 250]}
    told = {"n_input_tokens": 300, "n_cache_tokens": 150, "n_output_tokens": 30}
    trial = a_trial("solved", 0, {"reward": 1.0}, agent_result=told | {"metadata": metadata})
    job = put_job(tmp_path / "a-job", [trial])
    put(job / trial["trial_name"] / "agent" / "trajectory.json", an_atif(steps, (300, 150, 30)))
    said = imported(FORM, job, sqlite_url)
    assert said.status == 0, said
    assert "configured for a-model, and its turns name another-model" in said.notes
    assert booked(sqlite_url, tmp_path, "SELECT turn_no, client_s, model FROM turns") == [
        (0, 1.5, "another-model"), (1, 0.5, "another-model"), (2, 0.25, "another-model"),
    ]  # fmt: skip
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT turn_no, arguments.head, output.head FROM tool_call_completed"
        " ORDER BY tool_call_no",
    ) == [(0, '{"command": "ls"}', None), (0, "{}", "first"), (0, "{}", "second")]


def test_a_clock_without_a_zone_is_asked_for_and_its_seconds_are_kept(
    tmp_path: Path, sqlite_url: str
) -> None:
    job = put_job(tmp_path / "a-job", [a_trial("task", 0, {"reward": 1.0}, zone="")])
    said = imported(FORM, job, sqlite_url)
    assert "times name no zone" in said.notes
    assert said.figures["agent_execution seconds"] == (60.0, 60.0, "agrees")
    query = "SELECT time_quality, strftime(occurred_at, '%H:%M') FROM trajectory_started"
    assert booked(sqlite_url, tmp_path, query) == [("none", None)]
    other = f"sqlite:///{tmp_path / 'other' / 'log.db'}"
    (tmp_path / "other").mkdir()
    said = imported(FORM, job, other, "--timezone", "America/New_York")
    assert "no zone" not in said.notes
    assert booked(other, tmp_path / "other", query) == [("exact", "06:00")]


def test_of_several_rewards_none_is_chosen_unless_the_user_says_which(
    tmp_path: Path, sqlite_url: str
) -> None:
    job = put_job(tmp_path / "a-job", [a_trial("task", 0, {"a": 1.0, "b": 0.0})])
    said = imported(FORM, job, sqlite_url)
    assert "has several rewards (a, b), so the attempt has none" in said.notes
    query = "SELECT value, components['a'], components['b'] FROM reward_assigned"
    assert booked(sqlite_url, tmp_path, query) == [(None, 1.0, 0.0)]
    (run,) = read(FORM, job, reward_key="b")
    rewards = [each.fields["value"] for each in run.drafts() if each.name == "reward_assigned"]
    assert rewards == [0.0]
    assert "must have the reward 'c' of --set reward_key, got a, b" in refused(
        FORM, job, reward_key="c"
    )


def test_a_text_of_a_million_characters_is_its_ends_and_its_digest(tmp_path: Path) -> None:
    trial: dict[str, Any] = a_trial("task", 0, None, "RuntimeError", 1)
    trial["exception_info"]["exception_message"] = "x" * 954_061
    (run,) = read(FORM, put_job(tmp_path / "a-job", [trial]))
    (failed,) = [each for each in run.drafts() if each.name == "sandbox_failed"]
    error = failed.fields["error"]
    assert (error.size, len(error.head), len(error.tail)) == (954_071, 2_000, 2_000)


def test_bad_input_gets_value_rule_and_place(tmp_path: Path) -> None:
    job = put_job(tmp_path / "bare", [])
    assert refused(FORM, job) == (
        "bare must have a trial's result.json in it or below, got none"
        " (bare says that it has 0 trials, and none of them is here)"
    )
    job = put_job(tmp_path / "cut", [a_trial("task", 0, {"reward": 1.0})])
    (job / "result.json").write_text('{"id": "job')
    assert refused(FORM, job).startswith("result.json must be JSON: ")
    put_job(tmp_path / "words", [a_trial("task", 0, {"reward": "good"})])  # type: ignore[dict-item]
    assert refused(FORM, tmp_path / "words") == (
        'task__0000000/result.json#/verifier_result/rewards/reward must be a number, got "good"'
    )
    put_job(tmp_path / "when", [a_trial("task", 0, {"reward": 1.0}, started_at="yesterday")])
    assert refused(FORM, tmp_path / "when") == (
        'task__0000000/result.json#/started_at must be a time in ISO 8601, got "yesterday"'
    )
    trial = a_trial("task", 0, {"reward": 1.0})
    job = put_job(tmp_path / "other", [trial])
    put(job / trial["trial_name"] / "agent" / "trajectory.json", {"messages": []})
    assert "must be a trajectory in ATIF, with schema_version ATIF-v1.x" in refused(FORM, job)
