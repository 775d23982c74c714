"""The training loop: what it takes, what it records, and how it ends."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.batches import SampleSpan
from ledger.facts import FACTS
from ledger.facts.lists import Phase
from ledger.log import TopicPartition
from tests.builders import an_id
from tests.recorded import eventually, facts_in
from tests.training import ROOT, RUN, Lab, a_batch, a_lab, a_sample, same
from trainer import checkpoint_files
from trainer.step_clock import StepClock
from trainer.training_settings import BadTrainingSettings, settings_of

pytestmark = pytest.mark.trainer

RECOMPUTED = {"old_policy": "recomputed", "truncate_at": 2.0}


def test_a_step_is_recorded_with_what_it_did(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, **RECOMPUTED)
    lab.give(3)
    progress = lab.train(3, publisher=lab.publisher)
    assert (progress.step, progress.version) == (3, 3)
    assert progress.positions == {TopicPartition("batches", 0): 3}
    steps = lab.facts("step_completed")
    told = [(fact.step, fact.batch_id, fact.from_version, fact.to_version) for fact in steps]
    assert told == [(n + 1, an_id("batch", n), n, n + 1) for n in range(3)]
    first = steps[0]
    # 10 + 17 + 24 + 31 tokens, of which two in each sample are a prompt.
    assert (first.trajectories, first.trained_tokens, first.computed_tokens) == (4, 74, 82)
    assert math.isfinite(first.loss)
    assert first.grad_norm > 0
    assert first.metrics["padding_share"] == 0.0
    assert first.metrics["microbatches"] == 2.0
    assert [fact.metrics["lag_mean"] for fact in steps] == [0.0, 1.0, 2.0]
    assert [fact.policy_version for fact in lab.facts("weights_published")] == [0, 1, 2, 3]


def test_a_batch_is_learned_from_in_as_many_epochs_as_are_asked_for(tmp_path: Path) -> None:
    once, twice = (
        a_lab(tmp_path / "once", **RECOMPUTED),
        a_lab(tmp_path / "twice", **RECOMPUTED, ppo_epochs=2),
    )
    for lab in (once, twice):
        lab.give(1)
        lab.train(1)
    (one,), (two,) = once.facts("step_completed"), twice.facts("step_completed")
    assert (one.metrics["epochs"], two.metrics["epochs"]) == (1.0, 2.0)
    assert (two.trained_tokens, two.computed_tokens) == (74, 2 * 82)
    # The ratio is 1 in the first epoch; from then on it says how far the policy has moved.
    assert one.metrics["kl_old"] == 0
    assert two.metrics["kl_old"] > 0
    phases = [span.phase for span in two.phases]
    assert phases[-4:] == 2 * [Phase.FORWARD_BACKWARD, Phase.OPTIMIZER]
    assert phases.count(Phase.LOGPROBS) == 1
    assert not same(once.weights(1), twice.weights(1))


def test_an_epoch_that_cannot_be_done_is_left_out_and_its_step_says_so(tmp_path: Path) -> None:
    """The first update throws the weights so far that nothing finite comes of them."""
    lab = a_lab(tmp_path, **RECOMPUTED, ppo_epochs=3, learning_rate=1e30)
    lab.give(1)
    assert lab.train(1).step == 1
    (step,) = lab.facts("step_completed")
    assert step.metrics["epochs"] == 1.0
    assert step.computed_tokens == 82
    assert lab.facts("batch_refused") == []


def test_phases_exclude_one_another_and_sum_to_the_wall_time(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, old_policy="recomputed")
    lab.give(3)
    lab.train(3, publisher=lab.publisher)
    steps = lab.facts("step_completed")
    for fact in steps:
        end = 0.0
        for span in fact.phases:
            assert span.start_offset_s >= end - 1e-9
            end = span.start_offset_s + span.seconds
        assert end <= fact.wall_s
    own = {Phase.WAITING, Phase.LOADING, Phase.LOGPROBS, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER}
    # The checkpoint and the publication of a step are phases of the next one.
    assert {span.phase for span in steps[0].phases} == own | {Phase.PUBLISHING}
    for fact in steps[1:]:
        assert {span.phase for span in fact.phases} == own | {Phase.PUBLISHING, Phase.CHECKPOINT}
        assert fact.phases[0].phase is Phase.CHECKPOINT
    for before, after in itertools.pairwise(steps):
        assert after.started_at == before.started_at + timedelta(seconds=before.wall_s)
        assert before.occurred_at == after.started_at


def test_the_clock_gives_a_step_all_the_time_since_the_one_before() -> None:
    times = iter([100.0, 101.0, 103.0, 103.5, 104.5, 110.0, 110.0, 112.0, 113.0])
    clock = StepClock(now=lambda: next(times))
    with clock.phase(Phase.WAITING):
        pass
    with clock.phase(Phase.LOADING):
        pass
    step = clock.end_step()
    assert [(s.phase, s.start_offset_s, s.seconds) for s in step.phases] == [
        (Phase.WAITING, 1.0, 2.0),
        (Phase.LOADING, 3.5, 1.0),
    ]
    assert step.wall_s == 10.0
    with clock.phase(Phase.CHECKPOINT):
        pass
    assert clock.end_step().phases[0].start_offset_s == 0.0
    again = StepClock()
    with (
        pytest.raises(RuntimeError, match="loading begins inside waiting"),
        again.phase(Phase.WAITING),
        again.phase(Phase.LOADING),
    ):
        pass


def test_a_batch_that_must_not_be_trained_on_is_named_and_the_next_one_is_taken(
    tmp_path: Path,
) -> None:
    whole, lab = a_lab(tmp_path / "whole"), a_lab(tmp_path / "lab")
    whole.give(2)
    whole.train(2)
    bad = a_batch(7, samples=[a_sample(0, advantage=math.inf)], step=2)
    lab.append(a_batch(0), a_batch(8, samples=[]), bad, a_batch(1))
    lab.train(2)
    refused = lab.facts("batch_refused")
    assert [(fact.batch_id, fact.reason) for fact in refused] == [
        (an_id("batch", 8), "empty"),
        (an_id("batch", 7), "nan"),
    ]
    assert refused[1].step == 2
    assert "must be finite numbers" in refused[1].detail.head
    assert same(lab.weights(2), whole.weights(2))
    # A trainer that comes back to them refuses them no second time.
    for step in (1, 2):
        _remove(lab, step)
    lab.train(2)
    assert len(lab.facts("batch_refused")) == 2


def test_a_step_is_done_in_place_of_a_last_one_whose_batch_was_refused(tmp_path: Path) -> None:
    lab = a_lab(tmp_path)
    lab.append(a_batch(0, step=1), a_batch(8, samples=[], step=2), a_batch(1, step=3))
    lab.train(2)
    assert [fact.step for fact in lab.facts("batch_refused")] == [2]
    assert [fact.step for fact in lab.facts("step_completed")] == [1, 3]


def _remove(lab: Lab, step: int) -> None:
    import shutil

    shutil.rmtree(lab.checkpoints / checkpoint_files.name_of(step))


def test_a_step_whose_loss_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    whole, lab = a_lab(tmp_path / "whole"), a_lab(tmp_path / "lab")
    whole.give(2)
    whole.train(2)
    # Finite by itself, and no more once it is multiplied.
    huge = [a_sample(700 + number, advantage=3e38) for number in range(4)]
    lab.append(a_batch(0), a_batch(7, samples=huge), a_batch(1))
    lab.train(2)
    assert [(fact.batch_id, fact.reason) for fact in lab.facts("batch_refused")] == [
        (an_id("batch", 7), "nan")
    ]
    assert "must be finite, got" in lab.facts("batch_refused")[0].detail.head
    assert same(lab.weights(2), whole.weights(2))
    assert [fact.to_version for fact in lab.facts("step_completed")] == [1, 2]


def test_staleness_is_enforced_against_the_version_that_the_step_trains_from(
    tmp_path: Path,
) -> None:
    lab = a_lab(tmp_path)
    lab.append(*[a_batch(number, max_staleness=1) for number in range(3)])
    newer = [a_sample(900 + n, version_spans=[SampleSpan(1, 2, 12)]) for n in range(4)]
    lab.append(a_batch(9, max_staleness=1, samples=newer))
    lab.train(3)
    assert [fact.batch_id for fact in lab.facts("step_completed")] == [
        an_id("batch", 0),
        an_id("batch", 1),
        an_id("batch", 9),
    ]
    assert [fact.reason for fact in lab.facts("batch_refused")] == ["stale"]
    detail = lab.facts("batch_refused")[0].detail.head
    assert "at most 1 versions older than 2, got version 0" in detail


def test_a_reference_model_keeps_the_weights_that_training_started_from(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, kl_coef=0.1)
    lab.give(3)
    lab.train(3)
    # Random weights come of the seed, and the reference is made after the model's.
    figures = [fact.metrics["kl_reference"] for fact in lab.facts("step_completed")]
    assert all(math.isfinite(figure) for figure in figures)
    assert len(figures) == 3


def test_training_waits_for_a_batch_and_stops_when_told(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, checkpoint_every=5)
    stop = threading.Event()

    def feed() -> None:
        try:
            eventually(lambda: bool(lab.facts("trainer_started")), 60.0)
            time.sleep(1.0)
            lab.give(1)
            eventually(lambda: bool(lab.facts("step_completed")), 60.0)
        finally:
            stop.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    progress = lab.train(9, stop.is_set)
    feeder.join()
    assert progress.step == 1
    # What was done is saved, though no checkpoint was due.
    assert (lab.checkpoints / "step-00000001").is_dir()
    waited = [
        span.seconds
        for span in lab.facts("step_completed")[0].phases
        if span.phase is Phase.WAITING
    ]
    assert sum(waited) >= 0.2
    assert type(facts_in(lab.log)[-1]) is FACTS["producer_closed"]


@pytest.mark.fault
def test_sigterm_finishes_the_step_and_saves_it(tmp_path: Path) -> None:
    lab = a_lab(tmp_path)
    lab.give(2)
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "train", "--run", RUN, "--log", lab.log,
         "--model", str(tmp_path / "model"), "--checkpoints", str(lab.checkpoints),
         "--steps", "9", "--spool", str(tmp_path / "spool"), "--set", "microbatch_tokens=64"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        done = lab.checkpoints / "step-00000002"
        eventually(lambda: done.is_dir() or process.poll() is not None, 120.0)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert f"{RUN}: step 2 done, policy version 2" in errors
    assert (lab.checkpoints / "step-00000002").is_dir()
    assert lab.facts("producer_closed")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"learning_rat": 1}, "there is no setting learning_rat"),
        ({"learning_rate": "fast"}, "learning_rate: Input should be a valid number"),
        ({"clip_low": "2"}, r"clip_low must be in \[0, 1\), got 2.0"),
        ({"token_mask": "3,2"}, "bounds must have 0 <= low <= high"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_named_with_their_place(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadTrainingSettings, match=rf"{told}.*here\)"):
        settings_of(given, "here")


def test_settings_come_as_text() -> None:
    given = {"learning_rate": "1e-3", "tensor": "2", "token_mask": "0.5,2"}
    settings = settings_of(given, "here")
    assert settings.optimizer.learning_rate == 1e-3
    assert settings.megatron.tensor == 2
    assert settings.loss.token_mask is not None
    assert (settings.loss.token_mask.low, settings.loss.token_mask.high) == (0.5, 2.0)


def test_settings_that_do_not_fit_the_model_are_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    lab = a_lab(tmp_path, tensor=2)
    with pytest.raises(BadTrainingSettings, match="world size must be a multiple of"):
        lab.train(1)
    assert not lab.checkpoints.exists()
