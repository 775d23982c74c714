"""mini-swe-agent: turns from messages, retries from exit statuses, rewards from reports."""

from __future__ import annotations

from pathlib import Path

from tests.foreign import booked, imported, put, read, refused
from tests.foreign_mini_swe_agent import a_report, a_trajectory, put_run

FORM = "mini-swe-agent"


def test_a_run_is_joined_with_its_exit_statuses_and_its_harness_report(
    tmp_path: Path, sqlite_url: str
) -> None:
    """easy submits, broken dies in its second start's engine call, and pulled was tried twice."""
    error = "litellm.InternalServerError: gone"
    slow = {
        "returncode": -1,
        "exception_info": "Command timed out",
        "exception_type": "TimeoutExpired",
    }
    folder = put_run(
        tmp_path / "runs" / "a_run",
        [
            a_trajectory("easy", turns=3, last=slow),
            a_trajectory("broken", 1, "InternalServerError", calls=2, exception_str=error),
            a_trajectory("pulled"),
        ],
        [
            {"Submitted": ["easy", "missspelled"], "TimeoutExpired": ["pulled", "never"]},
            {"Submitted": ["pulled"], "InternalServerError": ["broken"]},
        ],
    )
    put(
        tmp_path / "runs" / "a-model.a_run.json", a_report(resolved=["easy"], unresolved=["pulled"])
    )
    said = imported(FORM, tmp_path / "runs", sqlite_url)
    assert said.status == 0
    assert said.figures["submitted_instances"] == (2, 2, "agrees")
    assert said.figures["api_calls"] == (7, 7, "agrees")
    assert said.figures["cost in USD"] == (3.0, 3.0, "agrees")
    assert said.figures["prompt tokens"] == (10_000, 10_000, "agrees")
    assert said.figures["cached tokens"] == (8_800, 8_800, "agrees")
    assert said.figures["tool calls"] == (6, 6, "agrees")
    assert said.figures["tool results"] == (4, 4, "agrees")
    assert said.figures["attempts that were replaced"] == (1, 1, "agrees")
    assert "1 ids of exit_statuses in a_run name no trajectory: missspelled" in said.notes
    assert "says nothing of broken" in said.notes
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT task_id, replaces IS NOT NULL AS again, foreign_status, reward, turns,"
        " turns_failed, tool_calls, wall_s, blame, trainable"
        " FROM trajectories ORDER BY task_id, again",
    ) == [
        ("broken", False, "InternalServerError", None, 1, 1, 1, 1.0, "infrastructure", False),
        ("easy", False, "Submitted", 1.0, 3, 0, 3, 8.0, None, True),
        ("never", False, "TimeoutExpired", None, 0, 0, 0, None, "infrastructure", False),
        ("pulled", False, "TimeoutExpired", None, 0, 0, 0, None, "infrastructure", False),
        ("pulled", True, "Submitted", 0.0, 2, 0, 2, 4.0, None, True),
    ]
    assert folder.exists()


def test_seconds_are_the_gaps_between_messages_and_the_first_turn_has_none(
    tmp_path: Path, sqlite_url: str
) -> None:
    slow = {
        "returncode": -1,
        "exception_info": "Command timed out",
        "exception_type": "TimeoutExpired",
    }
    put_run(tmp_path / "a_run", [a_trajectory("easy", turns=2, last=slow)], [])
    assert imported(FORM, tmp_path / "a_run", sqlite_url).status == 0
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT turn_no, client_s, prompt_tokens, cached_tokens, finish_reason, request_id"
        " FROM turn_completed ORDER BY turn_no",
    ) == [
        (0, None, 1_000, 800, "tool_calls", "response-0"),
        (1, 3.0, 2_000, 1_800, "tool_calls", "response-1"),
    ]
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT turn_no, wall_s, exit_code, timed_out, error_type, arguments.head, output.head"
        " FROM tool_call_completed ORDER BY tool_call_no",
    ) == [
        (0, 1.0, -1, True, "TimeoutExpired", "ls", "a.py\n"),
        (1, None, None, None, None, "ls", "diff --git a b"),
    ]


def test_runs_of_one_policy_can_be_one_evaluation_with_two_attempts_a_task(
    tmp_path: Path, sqlite_url: str
) -> None:
    """One task passes in both runs, one in one of them: pass@1 0.75, pass@2 1."""
    reports = {
        "one": a_report(resolved=["a", "b"]),
        "two": a_report(resolved=["a"], unresolved=["b"]),
    }
    for name, report in reports.items():
        put_run(tmp_path / "runs" / name, [a_trajectory("a"), a_trajectory("b", turns=3)], [])
        put(tmp_path / f"m.{name}.json", report)
    other = a_trajectory("a")
    other["info"]["config"]["agent"]["step_limit"] = 10
    put_run(tmp_path / "runs" / "other", [other], [])
    given = [
        option for name in reports for option in ("--report", str(tmp_path / f"m.{name}.json"))
    ]
    assert imported(FORM, tmp_path / "runs", sqlite_url, "--set", "merge=true", *given).status == 0
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT name, attempts_per_task, slots, turn_cap FROM runs ORDER BY name",
    ) == [("one+two", 2, 4, 250), ("other", 1, 1, 10)]
    assert booked(
        sqlite_url,
        tmp_path,
        "SELECT task_id, count(*) FILTER (passed) FROM trajectories JOIN runs USING (run_id)"
        " WHERE name = 'one+two' GROUP BY task_id ORDER BY task_id",
    ) == [("a", 2), ("b", 1)]


def test_ids_come_from_the_content_and_not_from_where_it_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        put_run(tmp_path / place / "a_run", [a_trajectory("easy")], [{"Submitted": ["easy"]}])
    one, other = (read(FORM, tmp_path / place)[0].drafts() for place in ("here", "there"))
    assert [each.fields["event_id"] for each in one] == [each.fields["event_id"] for each in other]


def test_bad_input_gets_value_rule_and_place(tmp_path: Path) -> None:
    folder = put_run(tmp_path / "cut", [a_trajectory("easy")], [])
    file = folder / "easy" / "easy.traj.json"
    file.write_text(file.read_text()[:-9])
    assert refused(FORM, folder).startswith("easy/easy.traj.json must be JSON: ")
    (tmp_path / "empty").mkdir()
    assert refused(FORM, tmp_path / "empty") == (
        "empty must have <instance>.traj.json below it, got none"
    )
    put(tmp_path / "sweagent" / "x.traj.json", {"trajectory": [], "history": [], "info": {}})
    assert "must be a trajectory of mini-swe-agent, format mini-swe-agent-1.x" in refused(
        FORM, tmp_path / "sweagent"
    )
    orphan = a_trajectory("orphan", turns=1)
    orphan["messages"].insert(2, orphan["messages"][2] | {"role": "tool"})
    put_run(tmp_path / "orphan", [orphan], [])
    assert "must be the result of a command of the message before it" in refused(
        FORM, tmp_path / "orphan"
    )
    good = put_run(tmp_path / "good", [a_trajectory("easy")], [])
    put(good / "exit_statuses_1.yaml", "instances_by_exit_status: [easy]")
    assert refused(FORM, good) == (
        "exit_statuses_1.yaml must have instances_by_exit_status, a list of ids for each status"
    )
    put(good / "exit_statuses_1.yaml", "a: {b")
    assert refused(FORM, good).startswith("exit_statuses_1.yaml must be YAML: ")
    put(good / "exit_statuses_1.yaml", "instances_by_exit_status: {}")
    put(good / "m.good.json", a_report(resolved=["easy"], error=["easy"]))
    assert refused(FORM, good) == (
        "m.good.json#: an instance must be in one of resolved_ids and error_ids, got easy in both"
    )
    assert refused(FORM, good, merge="maybe") == "--set merge must be true or false, got 'maybe'"
