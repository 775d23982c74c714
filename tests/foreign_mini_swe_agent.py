"""Small runs of mini-swe-agent, of the shape that it writes.

a_trajectory("repo-1", turns=3)            a .traj.json that submitted in its last turn
put_run(folder, [a_trajectory(...)], [{"Submitted": ["repo-1"]}])
a_report(resolved=["repo-1"])              the SWE-bench harness's report
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.foreign import put

BEGAN = 1_775_795_000.0
"""Time of the first answer; each answer comes 3 s behind what was before it, each result 1 s."""


def an_answer(number: int, at: float, command: str = "ls") -> dict[str, Any]:
    """A turn: 1,000 prompt tokens more each time, of which all but 200 are cached."""
    prompt = 1_000 * (number + 1)
    return {
        "role": "assistant",
        "content": "",
        "extra": {
            "actions": [{"command": command, "tool_call_id": f"call_{number}"}],
            "response": {
                "id": f"response-{number}",
                "model": "a-model",
                "choices": [{"finish_reason": "tool_calls"}],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": 10,
                    "prompt_tokens_details": {"cached_tokens": prompt - 200},
                },
            },
            "cost": 0.5,
            "timestamp": at,
        },
    }


def a_result(number: int, at: float, **extra: Any) -> dict[str, Any]:
    """What a command came to."""
    told = {"raw_output": "a.py\n", "returncode": 0, "timestamp": at, "exception_info": ""}
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": "", "extra": told | extra}


def a_trajectory(
    instance_id: str, turns: int = 2, status: str = "Submitted", calls: int | None = None,
    last: dict[str, Any] | None = None, **info: Any,
) -> dict[str, Any]:  # fmt: skip
    """`turns` answers, each with its result but for a submission; `calls`, those counted; `last`
    goes into the last result."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": f"Solve {instance_id}."},
    ]
    at = BEGAN - 3
    for number in range(turns):
        at += 3
        messages.append(an_answer(number, at))
        if number < turns - 1 or status != "Submitted":
            at += 1
            extra = (last or {}) if number == turns - 1 or number == turns - 2 else {}
            messages.append(a_result(number, at, **extra))
    messages.append({"role": "exit", "content": "", "extra": {"exit_status": status}})
    return {
        "info": {
            "model_stats": {"instance_cost": 0.5 * turns, "api_calls": calls or turns},
            "config": {
                "agent": {"step_limit": 250, "cost_limit": 3.0},
                "model": {"model_name": "provider/a-model", "model_kwargs": {"temperature": 0.0}},
                "environment": {"image": f"image-of-{instance_id}", "executable": "docker"},
            },
            "mini_version": "2.4.6",
            "exit_status": status,
            "submission": "diff --git a b" if status == "Submitted" else "",
            **info,
        },
        "messages": messages,
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": instance_id,
    }


def put_run(
    folder: Path, trajectories: list[dict[str, Any]], statuses: list[dict[str, list[str]]]
) -> Path:
    """A run's folder; one exit_statuses file for each start of the program."""
    for each in trajectories:
        name = each["instance_id"]
        put(folder / name / f"{name}.traj.json", each)
    for number, each in enumerate(statuses):
        text = yaml.dump({"instances_by_exit_status": each})
        put(folder / f"exit_statuses_{BEGAN + number}.yaml", text)
    return folder


def a_report(**lists: list[str]) -> dict[str, Any]:
    """`resolved=[...]`, `unresolved=[...]`, `error=[...]`, `empty_patch=[...]`, with counts."""
    names = ("completed", "incomplete", "empty_patch", "submitted", "resolved", "unresolved",
             "error")  # fmt: skip
    ids = {name: lists.get(name, []) for name in names}
    scored = ("resolved", "unresolved", "empty_patch", "error")
    ids["submitted"] = ids["submitted"] or [each for name in scored for each in ids[name]]
    counts = {f"{name}_instances": len(ids[name]) for name in names if name != "incomplete"}
    return {
        "total_instances": len(ids["submitted"]) + len(ids["incomplete"]),
        **counts,
        **{f"{name}_ids": each for name, each in ids.items()},
        "schema_version": 2,
    }
