"""Importing prime-rl and verifiers: episodes and metric rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.foreign import booked, imported, read, refused
from tests.foreign_prime_rl import BROKEN, T0, a_call, a_trace, an_episode, put_lines

LATE = a_trace("t-late", ok=True, is_timeout=True, stop_condition="agent_timeout")
JUDGE = a_trace("t-judge", agent={"trainable": False, "config": {}, "name": "judge"})
NOTHING = an_episode(
    4, [], ok=False, errors=[{"type": "EnvError", "message": "run() raised", "status_code": None}]
)


def test_episodes_are_groups_of_attempts_with_their_spans(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    out = tmp_path / "out"
    episodes = [an_episode(1, [a_trace("t1"), JUDGE]), an_episode(2, [BROKEN]),
                an_episode(3, [LATE]), NOTHING]  # fmt: skip
    put_lines(out / "rollouts" / "step_3" / "train" / "all", episodes)
    stray = an_episode(8, [a_trace("t8")])
    put_lines(out / "rollouts" / "step_3" / "train" / "effective", [episodes[0], stray])
    evaluated = an_episode(9, [a_trace("t9")], group=None)
    evaluated["run"]["work"]["type"] = "eval"
    put_lines(out / "rollouts" / "step_3" / "eval" / "all", [evaluated])
    rows = [{"step": 3, "time": T0 + 99, "time/step": 50.0, "time/wait_for_batch": 30.0,
             "time/broadcast_weights": 5.0, "perf/mfu": 12.5}]  # fmt: skip
    put_lines(out, rows, "metrics.jsonl")
    said = imported("prime-rl", out, url)
    assert said.status == 0
    assert said.figures["attempts that an error ended"][2] == "agrees"
    assert "effective/traces.jsonl: 2 episodes were trained on" in said.notes
    assert "in no `all`: episode-8" in said.notes
    assert "1 traces are of agents that aren't trained" in said.notes
    assert "0 facts new" in imported("prime-rl", out, url).notes

    def ask(query: str) -> list[Any]:
        return booked(url, tmp_path, query)

    assert ask(
        "SELECT slot, foreign_status, stop_reason, ended_in_stage, error_type, reward, turns,"
        " turns_failed, tool_calls, policy_clock_s FROM trajectories JOIN runs USING (run_id)"
        " WHERE kind = 'train' ORDER BY slot"
    ) == [
        (0, "agent_completed", "submitted", "verify", None, 1.1, 2, 1, 1, 13.0),
        (1, "sandbox_error", "error", "setup", "SandboxError", None, 0, 0, 0, None),
        (2, "agent_timeout", "clock_cap", "verify", None, 1.1, 2, 1, 1, 13.0),
        (3, "error", "error", None, "EnvError", None, 0, 0, 0, None),
    ]
    assert ask(
        "SELECT prompt_tokens, cached_tokens, completion_tokens, client_s, cost_usd, oldest_version"
        " FROM turns WHERE state = 'completed' AND slot = 2 ORDER BY turn_no"
    ) == [(400, 300, 20, 4.0, 0.5, 2), (400, 300, 20, 3.0, 0.5, 2)]
    assert ask(
        "SELECT turn_no, name, arguments.head, output.head, time_quality, wall_s"
        " FROM tool_call_completed WHERE slot = 2"
    ) == [(1, "bash", '{"cmd": "ls"}', "setup.py", "phase_only", None)]
    assert ask("SELECT DISTINCT start_s, backend, sandbox_id FROM sandbox_started") == [
        (3.0, "prime", "box-1")
    ]
    assert ask("SELECT step, wall_s, waiting_s, publishing_s, unattributed_s FROM steps") == [
        (3, 50.0, 30.0, 5.0, 15.0)
    ]
    assert ask("SELECT kind, name, target_step FROM runs JOIN opened_groups USING (run_id)"
               " ORDER BY kind") == [("eval", "night 3", None), ("train", "night", 3)]  # fmt: skip


def test_tokens_of_branches_and_of_failed_calls_count_once(tmp_path: Path) -> None:
    """Two branches share a sampled message, so `num_output_tokens` has its tokens twice."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    refused_call = a_call(None, 20, 21, error={"type": "ProviderError", "message": "malformed",
                                               "status_code": 502})  # fmt: skip
    calls = [a_call(2, 10, 14), a_call(4, 14, 16), a_call(5, 17, 20), refused_call]
    told = {"num_input_tokens": 400, "num_output_tokens": 80, "num_total_tokens": 480}
    put_lines(tmp_path / "out", [an_episode(1, [a_trace("t1", calls=calls, **told)])])
    said = imported("prime-rl", tmp_path / "out", url)
    assert said.figures["sampled tokens"] == (80, 80, "agrees")
    told["num_output_tokens"] = 100
    put_lines(tmp_path / "twice", [an_episode(1, [a_trace("t2", calls=calls, **told)])])
    said = imported("prime-rl", tmp_path / "twice", f"sqlite:///{tmp_path / 'other.db'}")
    assert (said.status, said.figures["sampled tokens"]) == (0, (80, 80, "agrees"))
    assert booked(url, tmp_path, "SELECT tokens_so_far FROM turn_failed") == [(20,)]
    silent = a_trace("t3", calls=[a_call(4, 17, 20, usage=None)], num_output_tokens=0)
    put_lines(tmp_path / "silent", [an_episode(1, [silent])])
    said = imported("prime-rl", tmp_path / "silent", f"sqlite:///{tmp_path / 'silent.db'}")
    assert said.figures["sampled tokens"] == (None, 0, "not stated")


def test_an_answer_that_was_cut_off_is_no_submission(tmp_path: Path) -> None:
    cut = a_trace("t1", calls=[a_call(2, 10, 14), a_call(4, 17, 20, finish_reason="length")])
    whole = a_trace("t2", calls=[a_call(2, 10, 14, finish_reason="length"), a_call(4, 17, 20)])
    capped = a_trace("t3", calls=cut["calls"], stop_condition="max_turns")
    late = a_trace("t4", calls=cut["calls"], is_timeout=True, stop_condition="agent_timeout")
    put_lines(tmp_path / "out", [an_episode(1, [cut, whole, capped, late])])
    (run,) = read("prime-rl", tmp_path / "out")
    ends = [d.fields["stop_reason"] for d in run.drafts() if d.name == "trajectory_finished"]
    assert ends == ["output_cap", "submitted", "turn_cap", "clock_cap"]


def test_a_borrowed_box_is_started_once(tmp_path: Path) -> None:
    box = {"type": "prime", "id": "box-1"}
    agents = [{"config": {}, "runtime": box | {"borrowed": each}} for each in (False, True)]
    traces = [a_trace(f"t{place}", agent=agent) for place, agent in enumerate(agents)]
    put_lines(tmp_path / "out", [an_episode(1, traces)])
    (run,) = read("prime-rl", tmp_path / "out")
    owner, borrower = run.attempts
    assert owner.counts["sandbox_started"] == owner.counts["sandbox_prepared"] == 1
    assert not {"sandbox_started", "sandbox_prepared"} & borrower.counts.keys()


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 500, "completion_tokens": 9, "cost": 0.25}
    judged = a_trace("t1", extra_usage=[usage], metrics={"lines": 12.0, "depth": None})
    put_lines(tmp_path / "out", [an_episode(1, [judged, a_trace("t2", metrics={"lines": 3.0})])])
    (run,) = read("prime-rl", tmp_path / "out")
    assert run.notes == [
        "1 calls of judges and others beside the agent, of 0.25 USD: left out",
        "metrics that no reward is made of are left out: depth, lines",
    ]


def test_a_score_that_is_no_number_leaves_the_whole_reward_unknown(tmp_path: Path) -> None:
    """verifiers writes null for a score of NaN; its sum is NaN then, not that of the others."""
    rewards = {"tests": {"score": None, "weight": 1.0}, "style": {"score": 0.5, "weight": 0.2}}
    put_lines(tmp_path / "out", [an_episode(1, [a_trace("t1", rewards=rewards)])])
    (run,) = read("prime-rl", tmp_path / "out")
    (reward,) = [d.fields for d in run.drafts() if d.name == "reward_assigned"]
    assert (reward["value"], reward["components"]) == (None, {"style": 0.5})
    assert "the reward must be a finite number" in run.notes[0]


def test_an_evaluation_of_verifiers_own_is_an_evaluation(tmp_path: Path) -> None:
    alone = [an_episode(n, [a_trace(f"t{n}")], run=None, group=None) for n in range(2)]
    put_lines(tmp_path / "outputs", alone)
    (run,) = read("prime-rl", tmp_path / "outputs")
    assert (run.kind, len(run.groups), len(run.attempts)) == ("eval", 1, 2)
    spans = [d.fields["version_spans"] for d in run.drafts() if d.name == "turn_completed"]
    assert spans == [[]] * 4


def test_a_policy_that_changed_meanwhile_is_not_guessed(tmp_path: Path) -> None:
    episode = an_episode(1, [a_trace("t1")])
    episode["run"]["work"]["policy"] = {"start": 2, "end": 4}
    put_lines(tmp_path / "outputs", [episode])
    (run,) = read("prime-rl", tmp_path / "outputs")
    found = {d.name: d.fields for d in run.drafts()}
    assert found["group_opened"]["policy_version"] == 2
    assert found["turn_completed"]["version_spans"] == []


def test_bad_input_is_refused_with_value_rule_and_place(tmp_path: Path) -> None:
    put_lines(tmp_path / "cut", [an_episode(1, [a_trace("t1")])])
    file = tmp_path / "cut" / "traces.jsonl"
    file.write_text(file.read_text()[:-30])
    assert "traces.jsonl line 1 must be JSON" in refused("prime-rl", tmp_path / "cut")
    put_lines(tmp_path / "other", [{"prompt": "x", "completion": "y"}])
    assert "must be an episode with traces" in refused("prime-rl", tmp_path / "other")
    put_lines(tmp_path / "empty", [])
    assert "the run is empty" in refused("prime-rl", tmp_path / "empty")
    (tmp_path / "none").mkdir()
    assert "got neither" in refused("prime-rl", tmp_path / "none")
    twice = [an_episode(1, [a_trace("t1")])] * 2
    put_lines(tmp_path / "twice", twice)
    assert "must come once" in refused("prime-rl", tmp_path / "twice")
    odd = an_episode(1, [a_trace("t1", rewards={"tests": {"score": "high"}})])
    put_lines(tmp_path / "odd", [odd])
    assert '/rewards/tests/score must be a number, got "high"' in refused(
        "prime-rl", tmp_path / "odd"
    )
