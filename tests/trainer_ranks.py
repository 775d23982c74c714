"""The trainer on several ranks: jobs that run under torchrun, or here on one rank.

`run_ranks(jobs, ranks)` starts torchrun on this file, once for all of them: starting it takes
longer than any job. `run_job(job)` does one of them in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Job:
    """A few steps from a checkpoint, exported before and after."""

    model: str
    """Folder of the checkpoint to start from."""
    out: str
    """Folder for `before`, `after`, result.json and, without a pipeline, logits.pt."""
    lengths: list[int]
    """Of the batch's samples."""
    tokens_max: int = 40
    """Of a micro-batch."""
    steps: int = 3
    """All on the same batch."""
    split: list[list[list[int]]] | None = None
    """For each rank its micro-batches, in place of a plan."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of Megatron."""
    loss: dict[str, Any] = field(default_factory=dict)
    """Settings of the loss."""

    @property
    def result(self) -> dict[str, Any]:
        """What `run_job` gave, once it has run."""
        return json.loads(Path(self.out, "result.json").read_text())


def run_ranks(jobs: list[Job], ranks: int, folder: Path, limit_s: float = 280) -> None:
    """Runs jobs one after the other under torchrun."""
    description = folder / "jobs.json"
    description.write_text(json.dumps([asdict(job) for job in jobs]))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={ranks}", "-m", "tests.trainer_ranks", str(description)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def run_job(job: Job) -> None:
    """Writes losses, norms and figures of each step, checkpoints, and logits of `some_tokens`."""
    import torch
    from megatron.core import parallel_state, tensor_parallel

    from tests.models import samples, some_tokens
    from trainer import hf_weights
    from trainer.architecture import read_config
    from trainer.loss_settings import LossSettings
    from trainer.megatron_settings import MegatronSettings, OptimizerSettings
    from trainer.model import bare, build_learner
    from trainer.packing import pack, plan
    from trainer.ranks import started
    from trainer.step import Work, score, train_step

    torch.set_num_threads(1)
    config, settings = read_config(Path(job.model)), MegatronSettings(**job.settings)
    # A large epsilon keeps the update smooth: plain Adam moves a weight by the whole learning rate
    # for a gradient of any size, so for one that is 0 but for rounding, too.
    optimizer = OptimizerSettings(learning_rate=1e-2, epsilon=1e-2, clip_norm=1.0)
    loss, batch = LossSettings(**job.loss), samples(*job.lengths)
    with started(settings, config) as device:
        learner = build_learner(config, settings, optimizer, device, weights=Path(job.model))
        module = bare(learner.model)
        hf_weights.export(module, config, Path(job.out, "before"))
        replicas = parallel_state.get_data_parallel_world_size()
        split = job.split or plan(job.lengths, job.tokens_max, replicas)
        mine = split[parallel_state.get_data_parallel_rank()]
        batches = [pack(batch, members) for members in mine]
        olds = score(learner, batches, temperature=loss.temperature) or [None] * len(batches)
        work = [Work(one, old=old) for one, old in zip(batches, olds, strict=True)]
        results = [train_step(learner, work, loss) for _ in range(job.steps)]
        hf_weights.export(module, config, Path(job.out, "after"))
        found = {
            "losses": [result.loss for result in results],
            "norms": [result.grad_norm for result in results],
            "figures": [dict(result.figures) for result in results],
        }
        Path(job.out, "result.json").write_text(json.dumps(found))  # the same on every rank
        if settings.pipeline == 1:
            tokens, positions = some_tokens()
            with torch.no_grad():
                logits = module(tokens, positions, None)
                logits = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
            torch.save(logits, Path(job.out, "logits.pt"))


def main(description: str) -> None:
    """Runs the jobs in that file, as one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for job in json.loads(Path(description).read_text()):
        run_job(Job(**job))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
