"""`rollbook train` on two ranks: it stops, goes on, and is bit by bit what it would have been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import ROOT, RUN, Lab, a_lab, same

pytestmark = pytest.mark.trainer


def torchrun(lab: Lab, steps: int) -> None:
    """The command, as each of two data-parallel ranks that share the optimizer's state."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "--no-python", "--",  # without it torchrun takes --run for one of its own options
         sys.executable, "-m", "api.cli",
         "train", "--run", RUN, "--log", lab.log, "--steps", str(steps),
         "--model", str(lab.folder / "model"), "--checkpoints", str(lab.checkpoints),
         "--spool", str(lab.folder / "spool"), "--set", "learning_rate=1e-2",
         "--set", "microbatch_tokens=64", "--set", "distributed_optimizer=true"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"step {steps} done, policy version {steps}" in done.stderr


def test_two_ranks_that_were_stopped_go_on_bit_by_bit(tmp_path: Path) -> None:
    whole, broken = a_lab(tmp_path / "whole"), a_lab(tmp_path / "broken")
    for lab in (whole, broken):
        lab.give(3)
    torchrun(whole, 3)
    torchrun(broken, 1)
    torchrun(broken, 3)
    files = sorted(path.name for path in (broken.checkpoints / "step-00000003").glob("*.pt"))
    assert len([name for name in files if name.startswith("random")]) == 2
    assert same(whole.weights(3), broken.weights(3))
    assert [fact.loss for fact in whole.facts("step_completed")] == [
        fact.loss for fact in broken.facts("step_completed")
    ]
    assert [fact.resumed_step for fact in broken.facts("trainer_started")] == [None, 1]
