"""Importing prime-rl and verifiers: episodes and metric rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.foreign import booked, imported, read, refused

T0 = 1_767_225_600.0
"""2026-01-01, in seconds since the epoch."""
TASK = {"type": "Swe", "key": "repo-7", "hash": "h", "data": {"idx": 7}}


def span(start: float, end: float) -> dict[str, float]:
    return {"start": T0 + start, "end": T0 + end}


def a_call(node: int | None, start: float, end: float, **more: Any) -> dict[str, Any]:
    usual = {
        "node": node,
        "model": "qwen",
        "finish_reason": "tool_calls",
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "cached_input_tokens": 300,
                  "reasoning_tokens": None, "cost": 0.5},
        "time": span(start, end),
        "error": None,
    }  # fmt: skip
    return usual | more


def a_node(message: dict[str, Any], at: float, sampled: bool = False) -> dict[str, Any]:
    return {"parent": None, "message": message, "sampled": sampled, "timestamp": T0 + at}


ASKS = {
    "role": "assistant",
    "content": "let me look",
    "tool_calls": [{"id": "c1", "type": "function", "name": "bash", "arguments": '{"cmd": "ls"}'}],
}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "setup.py"}]}
SHOWN = {"role": "tool", "tool_call_id": "never-asked", "content": "an example in the prompt"}


def a_trace(trace_id: str, **more: Any) -> dict[str, Any]:
    usual = {
        "version": 1,
        "id": trace_id,
        "verifiers": {"version": "0.4.0", "commit": None},
        "task": TASK,
        "agent": {"config": {"model": "qwen"}, "trainable": True,
                  "runtime": {"type": "prime", "id": "box-1"}, "name": "agent"},
        "nodes": [
            a_node({"role": "user", "content": "fix it"}, 10),
            a_node(SHOWN, 10),
            a_node(ASKS, 14, sampled=True),
            a_node(ANSWER, 20),
            a_node({"role": "assistant", "content": "done"}, 20, sampled=True),
        ],
        "calls": [
            a_call(None, 9, 10, error={"type": "ProviderError", "message": "busy",
                                       "status_code": 503}, usage=None),
            a_call(2, 10, 14),
            a_call(4, 17, 20, finish_reason="stop"),
        ],
        "rewards": {"tests": {"score": 1.0, "weight": 1.0}, "style": {"score": 0.5, "weight": 0.2}},
        "is_completed": True,
        "ok": True,
        "stop_condition": "agent_completed",
        "is_timeout": False,
        "errors": [],
        "timing": {"start": T0, "boot": span(0, 3), "setup": span(3, 8), "agent": span(8, 21),
                   "finalize": span(21, 21.5), "scoring": span(22, 25)},
        "num_output_tokens": 40,
    }  # fmt: skip
    return usual | more


def an_episode(number: int, traces: list[dict[str, Any]], step: int = 3, **more: Any) -> Any:
    usual = {
        "id": f"episode-{number}",
        "env": {"id": "swe", "name": None},
        "task": TASK,
        "group": {"id": "g1"},
        "run": {"type": "train", "id": "run-1", "name": "night",
                "work": {"type": "train", "step": step, "policy": {"start": 2, "end": 2}}},
        "ok": True,
        "is_timeout": False,
        "errors": [],
        "traces": traces,
    }  # fmt: skip
    return usual | more


def write(folder: Path, episodes: list[Any], name: str = "traces.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in episodes))


BROKEN = a_trace(
    "t-broken",
    ok=False,
    stop_condition="sandbox_error",
    rewards={"tests": None, "style": None},
    errors=[{"type": "SandboxError", "message": "gone", "status_code": None}],
    calls=[],
    nodes=[],
    timing={"start": T0, "boot": span(0, 3), "setup": {"start": T0 + 3, "end": 0.0}},
    num_output_tokens=0,
)
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
    write(out / "rollouts" / "step_3" / "train" / "all", episodes)
    stray = an_episode(8, [a_trace("t8")])
    write(out / "rollouts" / "step_3" / "train" / "effective", [episodes[0], stray])
    evaluated = an_episode(9, [a_trace("t9")], group=None)
    evaluated["run"]["work"]["type"] = "eval"
    write(out / "rollouts" / "step_3" / "eval" / "all", [evaluated])
    rows = [{"step": 3, "time": T0 + 99, "time/step": 50.0, "time/wait_for_batch": 30.0,
             "time/broadcast_weights": 5.0, "perf/mfu": 12.5}]  # fmt: skip
    write(out, rows, "metrics.jsonl")
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


def test_an_evaluation_of_verifiers_own_is_an_evaluation(tmp_path: Path) -> None:
    alone = [an_episode(n, [a_trace(f"t{n}")], run=None, group=None) for n in range(2)]
    write(tmp_path / "outputs", alone)
    (run,) = read("prime-rl", tmp_path / "outputs")
    assert (run.kind, len(run.groups), len(run.attempts)) == ("eval", 1, 2)
    spans = [d.fields["version_spans"] for d in run.drafts() if d.name == "turn_completed"]
    assert spans == [[]] * 4


def test_a_policy_that_changed_meanwhile_is_not_guessed(tmp_path: Path) -> None:
    episode = an_episode(1, [a_trace("t1")])
    episode["run"]["work"]["policy"] = {"start": 2, "end": 4}
    write(tmp_path / "outputs", [episode])
    (run,) = read("prime-rl", tmp_path / "outputs")
    found = {d.name: d.fields for d in run.drafts()}
    assert found["group_opened"]["policy_version"] == 2
    assert found["turn_completed"]["version_spans"] == []


def test_bad_input_is_refused_with_value_rule_and_place(tmp_path: Path) -> None:
    write(tmp_path / "cut", [an_episode(1, [a_trace("t1")])])
    file = tmp_path / "cut" / "traces.jsonl"
    file.write_text(file.read_text()[:-30])
    assert "traces.jsonl line 1 must be JSON" in refused("prime-rl", tmp_path / "cut")
    write(tmp_path / "other", [{"prompt": "x", "completion": "y"}])
    assert "must be an episode with traces" in refused("prime-rl", tmp_path / "other")
    write(tmp_path / "empty", [])
    assert "the run is empty" in refused("prime-rl", tmp_path / "empty")
    (tmp_path / "none").mkdir()
    assert "got neither" in refused("prime-rl", tmp_path / "none")
    twice = [an_episode(1, [a_trace("t1")])] * 2
    write(tmp_path / "twice", twice)
    assert "must come once" in refused("prime-rl", tmp_path / "twice")
    odd = an_episode(1, [a_trace("t1", rewards={"tests": {"score": "high"}})])
    write(tmp_path / "odd", [odd])
    assert '/rewards/tests/score must be a number, got "high"' in refused(
        "prime-rl", tmp_path / "odd"
    )
