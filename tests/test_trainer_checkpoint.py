"""Checkpoints: whole or not there, and training that goes on as if it had never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import an_id
from tests.models import a_model
from tests.training import RUN, Lab, a_lab, same
from trainer import checkpoint_files
from trainer.architecture import to_hf
from trainer.checkpoint_files import CheckpointError

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Four steps in one life."""
    lab = a_lab(tmp_path_factory.mktemp("unbroken"))
    lab.give(4)
    lab.train(4)
    return lab


def steps_of(lab: Lab) -> list[tuple[int, str, int, int]]:
    return [
        (fact.step, fact.batch_id, fact.from_version, fact.to_version)
        for fact in lab.facts("step_completed")
    ]


def batch_ids(*numbers: int) -> list[str]:
    return [an_id("batch", number) for number in numbers]


@pytest.mark.parametrize(
    "settings", [{}, {"distributed_optimizer": True}, {"precision": "bfloat16"}]
)
def test_resuming_is_bit_identical_to_never_having_stopped(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole, broken = a_lab(tmp_path / "whole", **settings), a_lab(tmp_path / "broken", **settings)
    for lab in (whole, broken):
        lab.give(4)
    whole.train(4)
    for last_step in (0, 1, 3, 4):
        broken.train(last_step)
    assert same(whole.weights(4), broken.weights(4))
    assert not same(whole.weights(3), whole.weights(4))
    assert steps_of(whole) == steps_of(broken)
    assert [fact.loss for fact in whole.facts("step_completed")] == [
        fact.loss for fact in broken.facts("step_completed")
    ]


@pytest.mark.fault
@pytest.mark.parametrize("point", ["before_save:2", "before_facts:2", "in_publish:2"])
def test_a_trainer_killed_in_a_step_does_it_once(tmp_path: Path, unbroken: Lab, point: str) -> None:
    lab = a_lab(tmp_path)
    lab.give(4)
    assert lab.run_process(point, 4) == -9
    lab.train(4, publisher=lab.publisher)
    assert same(lab.weights(4), unbroken.weights(4))
    assert steps_of(lab) == steps_of(unbroken)
    assert steps_of(lab) == [(n + 1, an_id("batch", n), n, n + 1) for n in range(4)]
    assert [fact.step for fact in lab.facts("checkpoint_saved")] == [0, 1, 2, 3, 4]
    # The version that it goes on from is brought to the engines first, whoever has it.
    resumed = 1 if point.startswith("before_save") else 2
    # The process that was killed had published up to version 1.
    first = (1, -1) if resumed == 1 else (2, 2)
    assert lab.published == [first, *[(n, n) for n in range(resumed + 1, 5)]]
    assert lab.facts("weights_orphaned") == []
    assert [fact.resumed_step for fact in lab.facts("trainer_started")] == [None, resumed]


@pytest.mark.fault
def test_versions_published_behind_the_last_checkpoint_are_orphaned_and_never_used_again(
    tmp_path: Path, unbroken: Lab
) -> None:
    lab = a_lab(tmp_path, checkpoint_every=2)
    lab.give(4)
    assert lab.run_process("after_publish:3", 4) == -9
    lab.train(4, publisher=lab.publisher)
    assert [fact.policy_version for fact in lab.facts("weights_orphaned")] == [3]
    orphaned = lab.facts("weights_orphaned")[0]
    assert orphaned.resumed_step == 2
    assert orphaned.resumed_from == str(lab.checkpoints / "step-00000002")
    ids = batch_ids(0, 1, 2, 3)
    # Step 3 was done twice: in the life that was lost, and again, as another version.
    assert steps_of(lab) == [
        (1, ids[0], 0, 1),
        (2, ids[1], 1, 2),
        (3, ids[2], 2, 3),
        (3, ids[2], 2, 4),
        (4, ids[3], 4, 5),
    ]
    assert lab.published == [(2, -1), (4, 3), (5, 4)]
    assert same(lab.weights(4)["weights"], unbroken.weights(4)["weights"])
    # Starting once more says nothing a second time.
    lab.train(4, publisher=lab.publisher)
    assert len(lab.facts("weights_orphaned")) == 1
    assert len(lab.facts("step_completed")) == 5


@pytest.mark.parametrize(
    ("file", "damage", "told"),
    [
        ("weights-tensor-0-pipeline-0.pt", "flip", "must have digest"),
        ("optimizer-tensor-0-pipeline-0.pt", "cut", "bytes, got"),
        ("random-0.pt", "remove", "is missing"),
        ("manifest.json", "cut", "can't be read"),
        ("manifest.json", "move", "doesn't match its own digest"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, unbroken: Lab, caplog: pytest.LogCaptureFixture, file: str, damage: str,
    told: str,
) -> None:  # fmt: skip
    folder = _copy(unbroken, tmp_path)
    path = folder / "step-00000004" / file
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "move":
        path.write_bytes(content.replace(b'"batches/0": 4', b'"batches/0": 3'))
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(flipped if damage == "flip" else content[:middle])
    found = checkpoint_files.newest(folder)
    assert found is not None
    assert found.folder.name == "step-00000003"
    assert "step-00000004 is damaged" in caplog.text
    assert told in caplog.text
    assert (folder / "damaged-step-00000004" / "manifest.json").exists()


def test_training_never_starts_afresh_because_checkpoints_are_damaged_or_gone(
    tmp_path: Path,
) -> None:
    lab = a_lab(tmp_path)
    lab.give(2)
    lab.train(1)
    for each in lab.checkpoints.glob("step-*"):
        (each / "random-0.pt").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
            lab.train(2)
    lab.checkpoints.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"trained up to step 1, but .* has no checkpoint"):
        lab.train(2)


def test_going_back_behind_a_damaged_checkpoint_does_its_step_again(
    tmp_path: Path, unbroken: Lab
) -> None:
    lab = a_lab(tmp_path)
    lab.give(4)
    lab.train(3, publisher=lab.publisher)
    (lab.checkpoints / "step-00000003" / "random-0.pt").unlink()
    lab.train(4, publisher=lab.publisher)
    ids = batch_ids(2, 3)
    assert steps_of(lab)[2:] == [(3, ids[0], 2, 3), (3, ids[0], 2, 4), (4, ids[1], 4, 5)]
    assert [fact.policy_version for fact in lab.facts("weights_orphaned")] == [3]
    assert same(lab.weights(4)["weights"], unbroken.weights(4)["weights"])


def test_weights_whose_export_is_gone_get_a_new_number(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, checkpoint_every=2)
    lab.give(4)
    lab.train(3, publisher=lab.publisher)
    (lab.checkpoints / "step-00000003" / "random-0.pt").unlink()
    (tmp_path / "versions" / "2").unlink()
    lab.published.clear()
    lab.train(3, publisher=lab.publisher)
    assert lab.published == [(4, 2), (5, 3)]
    assert steps_of(lab)[-1][2:] == (4, 5)


def test_a_checkpoint_of_another_shape_or_run_is_refused_and_kept(tmp_path: Path) -> None:
    lab = a_lab(tmp_path)
    lab.give(1)
    lab.train(1)
    for changed, told in (
        ({"distributed_optimizer": True}, "distributed_optimizer False instead of True"),
        ({"precision": "bfloat16"}, "precision float32 instead of bfloat16"),
    ):
        other = Lab(tmp_path, lab.settings | changed)
        with pytest.raises(CheckpointError, match=f"step-00000001 is of another shape: {told}"):
            other.train(2)
    config = json.dumps(to_hf(a_model(hidden=64), "float32"))
    (tmp_path / "model" / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"model\.hidden 48 instead of 64"):
        lab.train(2)
    assert (lab.checkpoints / "step-00000001").exists()


def test_two_trainers_cannot_use_one_folder(tmp_path: Path) -> None:
    with (
        checkpoint_files.locked(tmp_path),
        pytest.raises(CheckpointError, match="another trainer is using"),
        checkpoint_files.locked(tmp_path),
    ):
        pass


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, keep_checkpoints=2, checkpoint_every=2)
    lab.give(5)
    lab.train(5)
    assert sorted(each.name for each in lab.checkpoints.iterdir()) == [
        "lock",
        "step-00000004",
        "step-00000005",
    ]


def test_a_changed_learning_rate_counts_when_training_goes_on(tmp_path: Path) -> None:
    lab = a_lab(tmp_path, learning_rate=1e-2)
    lab.give(2)
    lab.train(1)
    lab.settings["learning_rate"] = 1e-30
    lab.train(2)
    assert same(lab.weights(1)["weights"], lab.weights(2)["weights"])


def test_a_checkpoint_says_where_to_read_on(unbroken: Lab) -> None:
    told = [
        (fact.step, fact.batch_positions, fact.batch_id)
        for fact in unbroken.facts("checkpoint_saved")
    ]
    ids = batch_ids(0, 1, 2, 3)
    assert told == [
        (0, {}, None),
        *[(n + 1, {"batches/0": n + 1}, ids[n]) for n in range(4)],
    ]
    assert all(fact.run_id == RUN for fact in unbroken.facts("checkpoint_saved"))


def _copy(lab: Lab, folder: Path) -> Path:
    import shutil

    return Path(shutil.copytree(lab.checkpoints, folder / "checkpoints"))
