"""Small runs of prime-rl and verifiers, of the shape that they write.

a_trace("t1", is_timeout=True)                     one attempt: two turns, a tool call, a reward
an_episode(1, [a_trace("t1")], step=3)             a line of traces.jsonl
put_lines(folder, [an_episode(...), ...])          traces.jsonl, or metrics.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
"""An attempt whose sandbox was lost while it was set up."""


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


def put_lines(folder: Path, episodes: list[Any], name: str = "traces.jsonl") -> Path:
    """A file of lines; its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in episodes))
    return folder
