"""Small runs of verl, of the shape that it writes.

a_sample(10, "2+2?", 1.0)                          a line of 10.jsonl
a_line(10, 96.0)                                   a step's line of the console
a_folder(folder, {10: [a_sample(...)]}, console)   both
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TIMES = {
    "timing_s/gen": 30.0,
    "timing_s/reward": 0.5,
    "timing_s/old_log_prob": 10.0,
    "timing_s/ref": 5.0,
    "timing_s/adv": 0.5,
    "timing_s/update_actor": 50.0,
    "timing_s/testing": 20.0,
    "timing_s/save_checkpoint": 4.0,
}


def a_line(step: int, step_s: float, **more: float) -> str:
    """As verl prints it; four samples of 150 tokens on 2 GPUs."""
    numbers = TIMES | {
        "timing_s/step": step_s,
        "perf/time_per_step": step_s,
        "perf/total_num_tokens": 600,
        "perf/throughput": 600 / step_s / 2,
        "prompt_length/mean": 50.0,
        "response_length/mean": 100.0,
        "actor/grad_norm": 0.25,
    }
    parts = [f"{name}:{value!r}" for name, value in numbers.items()]
    parts += [f"{name}:np.float64({value!r})" for name, value in more.items()]
    return f"(TaskRunner pid=1) step:{step} - " + " - ".join(parts) + "\n"


def a_sample(step: int, prompt: str, score: Any, **more: Any) -> dict[str, Any]:
    return {"input": prompt, "output": "so", "gts": "4", "score": score, "step": step, **more}


def a_folder(folder: Path, samples: dict[int, list[dict[str, Any]]], console: str = "") -> Path:
    folder.mkdir(parents=True)
    for step, rows in samples.items():
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if console:
        (folder / "train.log").write_text(console)
    return folder
