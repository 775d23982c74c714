"""Small results of Terminal-Bench, of the shape that its harness writes.

a_trial("task-1", True)                          resolved, with all clocks, 100 s long
put_results(folder, [a_trial(...), ...])         results.json and run_metadata.json
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.foreign import put

TIMES = {
    "trial_started_at": "2025-07-13T11:00:00+00:00",
    "agent_started_at": "2025-07-13T11:00:20+00:00",
    "agent_ended_at": "2025-07-13T11:01:20+00:00",
    "test_started_at": "2025-07-13T11:01:25+00:00",
    "test_ended_at": "2025-07-13T11:01:35+00:00",
    "trial_ended_at": "2025-07-13T11:01:40+00:00",
}
"""20 s to set up, 60 s of the agent, 10 s of tests, 100 s in all."""


def a_trial(
    task_id: str, resolved: bool | None, mode: str = "unset", number: int = 0, **fields: Any
) -> dict[str, Any]:
    """One trial; `number` makes its id."""
    tests = None if resolved is None else {"test_it": "passed" if resolved else "failed"}
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{task_id}/{number}")),
        "trial_name": f"{task_id}.{number}-of-5.run",
        "task_id": task_id,
        "instruction": f"Do {task_id}.",
        "is_resolved": resolved,
        "failure_mode": mode,
        "parser_results": tests,
        "recording_path": None,
        "total_input_tokens": 1000,
        "total_output_tokens": 10,
        **TIMES,
        **fields,
    }


def put_results(
    folder: Path, trials: list[dict[str, Any]], name: str = "run", **totals: Any
) -> Path:
    """A run's files; totals as the harness sums them up, where they aren't given."""
    resolved = [each["task_id"] for each in trials if each["is_resolved"]]
    sums = {
        "n_resolved": len(resolved),
        "n_unresolved": len(trials) - len(resolved),
        "accuracy": len(resolved) / len(trials) if trials else 0.0,
        "pass_at_k": {},
    }
    run_id = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
    put(folder / "results.json", {"id": run_id, "results": trials, **sums, **totals})
    metadata = {
        "run_id": name,
        "dataset_name": "terminal-bench-core",
        "dataset_version": "0.1.1",
        "agent_name": "an-agent",
        "model_name": "a-model",
        "n_concurrent_trials": 4,
        "api_key": "sk-secret",
    }
    put(folder / "run_metadata.json", metadata)
    return folder
