"""Console output of slime, as it prints it.

console(folder, LINES)                             console.log: optimizer step 0, rollout 1
"""

from __future__ import annotations

from pathlib import Path

LINES = """\
(TrainRayActor pid=7) [2026-01-02 03:04:05] loss.py:71 - step 0: {'train/loss': 1e-06, 'train/grad_norm': 0.25}
noise, also about step 3: nothing
rollout 1: {'rollout/raw_reward': 0.375, 'rollout/step': 1, 'name': 'x'}
step 1: {'train/loss': np.float64(0.5), 'train/grad_norm': nan}
perf 1: {'perf/sleep_time': 5.0, 'perf/update_weights_time': 2.5, 'perf/wake_up_time': 2.5, \
'perf/data_preprocess_time': 0.5, 'perf/train_wait_time': 340.0, 'perf/log_probs_time': 17.0, \
'perf/actor_train_time': 42.0, 'perf/train_time': 60.0, 'perf/step_time': 400.0, \
'perf/wait_time_ratio': 0.85}
perf 1: {'perf/rollout_time': 320.0}
"""  # noqa: E501


def console(folder: Path, text: str) -> Path:
    """console.log in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "console.log"
    path.write_text(text)
    return path
