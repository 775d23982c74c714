"""Small jobs of Harbor and trajectories in ATIF, of the shape that Harbor writes.

a_trial("task-1", reward=1.0)                     one that went well, with all phases
put_job(folder, [a_trial(...), ...])              a job's folder, with its statistics
an_atif([a_step(...), ...])                       a trajectory
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.foreign import put

PHASES = {
    "environment_setup": (0, 5),
    "agent_setup": (5, 15),
    "agent_execution": (15, 75),
    "verifier": (75, 90),
}
"""Seconds from the start: 5, 10, 60 and 15 long."""


def clock(second: int, zone: str = "Z") -> str:
    """A time; 02:00 and so many seconds."""
    return f"2026-04-13T02:{second // 60:02d}:{second % 60:02d}.000000{zone}"


def a_trial(
    task: str, number: int = 0, rewards: dict[str, float] | None = None, error: str | None = None,
    reached: int = 4, zone: str = "Z", **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """A trial that came through `reached` phases, with an exception in the last where `error`."""
    phases: dict[str, Any] = {
        name: {"started_at": clock(start, zone), "finished_at": clock(end, zone)}
        if i < reached
        else None
        for i, (name, (start, end)) in enumerate(PHASES.items())
    }
    exception = {
        "exception_type": error,
        "exception_message": "it broke",
        "exception_traceback": "Traceback",
        "occurred_at": clock(95, ""),
    }
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{task}/{number}")),
        "task_name": task,
        "trial_name": f"{task[:32]}__{number:07d}",
        "source": "a-dataset",
        "task_checksum": f"checksum of {task}",
        "config": {
            "job_id": "job-1",
            "agent": {"name": "an-agent", "model_name": "a-model", "env": {"API_KEY": "sk-1"}},
            "environment": {"type": "docker"},
        },
        "agent_info": {"name": "an-agent", "version": "1.0", "model_info": None},
        "agent_result": {"n_input_tokens": 300, "n_cache_tokens": 200, "n_output_tokens": 30},
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": exception if error else None,
        "started_at": clock(0, zone),
        "finished_at": clock(100, zone),
        **phases,
        **fields,
    }


def put_job(
    folder: Path, trials: list[dict[str, Any]], evals: dict[str, Any] | None = None, **stats: Any
) -> Path:
    """A job's folder; `evals`, statistics of an-agent on a-dataset."""
    errors = sum(each["exception_info"] is not None for each in trials)
    told = {"n_trials": len(trials), "n_errors": errors, **stats}
    if evals is not None:
        told["evals"] = {"an-agent__a-dataset": evals}
    result = {"id": "job-1", "started_at": clock(0, ""), "n_total_trials": len(trials),
              "stats": told}  # fmt: skip
    put(folder / "result.json", result)
    put(folder / "config.json", {"job_name": folder.name, "n_concurrent_trials": 2})
    for each in trials:
        put(folder / each["trial_name"] / "result.json", each)
    return folder


def a_step(source: str = "agent", **fields: Any) -> dict[str, Any]:
    """A step; an agent's has 100 prompt tokens, 50 of them cached, and 10 completion tokens."""
    step: dict[str, Any] = {"source": source, "message": "", **fields}
    if source == "agent" and "metrics" not in fields:
        metrics = {"prompt_tokens": 100, "completion_tokens": 10, "cached_tokens": 50}
        step |= {"metrics": metrics, "model_name": "another-model"}
    return step


def a_call(number: int, **arguments: Any) -> dict[str, Any]:
    """A tool call."""
    return {"tool_call_id": f"call-{number}", "function_name": "bash", "arguments": arguments}


def an_atif(
    steps: list[dict[str, Any]], totals: tuple[int, int, int] | None = None, **root: Any
) -> dict[str, Any]:
    """A trajectory; `totals`, its prompt, cached and completion tokens."""
    final = None
    if totals is not None:
        names = ("total_prompt_tokens", "total_cached_tokens", "total_completion_tokens")
        final = dict(zip(names, totals, strict=True))
    numbered = [{"step_id": i, **step} for i, step in enumerate(steps, 1)]
    return {
        "schema_version": "ATIF-v1.6",
        "session_id": "session",
        "agent": {"name": "an-agent", "version": "1.0", "model_name": "a-model"},
        "steps": numbered,
        "final_metrics": final,
        **root,
    }
