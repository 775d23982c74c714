"""Publishing without an engine: which versions are allowed, kept and accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import a_checkpoint, a_model
from tests.recorded import Make
from trainer.architecture import ModelConfig
from trainer.distributed import buckets
from trainer.engine_keeper import Target, check_fits
from trainer.engines import EngineState
from trainer.hf_files import WrongCheckpoint
from trainer.megatron_settings import MegatronSettings, OptimizerSettings
from trainer.model import Learner, build_learner
from trainer.publish import Publisher
from trainer.publish_settings import PublishSettings
from trainer.ranks import started

pytestmark = pytest.mark.trainer


@pytest.fixture
def life(make: Make, sqlite_url: str, tmp_path: Path) -> Any:
    """One life of a trainer that publishes for no engine, always into the same folder."""

    @contextmanager
    def life(model: ModelConfig | None = None, **given: Any) -> Iterator[tuple[Publisher, Learner]]:
        one, config = MegatronSettings(), model or a_model()
        settings = PublishSettings(**({"engines": ()} | given))
        with started(one, config) as device:
            learner = build_learner(config, one, OptimizerSettings(), device)
            with Publisher(settings, tmp_path / "exports", make(sqlite_url)) as publisher:
                yield publisher, learner

    return life


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_versions_only_grow_over_all_lives(life: Any) -> None:
    with life() as (publisher, learner):
        assert publisher.newest is None
        publisher.publish(learner, 3, step=3)
        for used in (-1, 0, 3):
            with pytest.raises(ValueError, match=f"version must be at least 4, got {used}"):
                publisher.publish(learner, used, step=4)
    with life() as (publisher, learner):
        assert publisher.newest == 3
        with pytest.raises(ValueError, match="version must be at least 4, got 3"):
            publisher.publish(learner, 3, step=3)
        assert publisher.publish(learner, 4, step=3).version == 4


def test_a_version_from_an_earlier_life_can_be_adopted_and_no_other(life: Any) -> None:
    with life() as (publisher, learner):
        publisher.publish(learner, 3, step=3)
    with life() as (publisher, _):
        assert publisher.adopt(3) == ()
        with pytest.raises(ValueError, match=r"version must be one of \[3\], got 2"):
            publisher.adopt(2)


def test_old_versions_go_and_so_does_what_a_killed_export_left(life: Any, tmp_path: Path) -> None:
    (tmp_path / "exports" / ".version-00000004.partial").mkdir(parents=True)
    with life(keep=2) as (publisher, learner):
        for version in (1, 2, 5):
            published = publisher.publish(learner, version, step=version)
        assert names(tmp_path / "exports") == ["version-00000002", "version-00000005"]
        assert names(published.folder) == ["config.json", "model.safetensors"]
        size = sum(path.stat().st_size for path in published.folder.iterdir())
        assert published.size_bytes == size


def test_a_folder_holds_versions_of_one_model(life: Any) -> None:
    with life() as (publisher, learner):
        publisher.publish(learner, 1, step=1)
    with (
        life(a_model(layers=1)) as (publisher, learner),
        pytest.raises(WrongCheckpoint, match=r"exports must hold versions of .*layers=1.*layers=2"),
    ):
        publisher.publish(learner, 2, step=2)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"engines": ("http://a", "http://a/")}, "once each"),
        ({"method": "distributed", "pause": "none"}, "half of the weights"),
        ({"pause": "freeze"}, "pause must be one of none, abort, retract, in_place, got 'freeze'"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"limit_s": 0.0}, r"limit_s must be above 0 seconds, got 0\.0"),
    ],
)
def test_settings_that_can_not_be_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PublishSettings(**({"engines": ()} | given))


def test_an_engine_gets_only_what_is_of_its_own_model(tmp_path: Path) -> None:
    config = a_model()
    engines = a_checkpoint(tmp_path / "engine", replace(config, context=64, eos_token_id=None))
    fits = Target(1, a_checkpoint(tmp_path / "ours", config), config)
    check_fits(EngineState("0", True, str(engines)), fits, None)
    check_fits(EngineState("0", True, "a-name"), fits, engines)
    with pytest.raises(FileNotFoundError, match="a-name"):
        check_fits(EngineState("0", True, "a-name"), fits, None)
    for other in (replace(config, mlp_hidden=96), replace(config, rope_theta=1e6)):
        folder = a_checkpoint(tmp_path / f"{other.mlp_hidden}-{other.rope_theta}", other)
        with pytest.raises(WrongCheckpoint, match="must be of the engine's model"):
            check_fits(EngineState("0", True, str(engines)), Target(1, folder, other), None)
        # A folder that isn't what its target says: its tensors are looked at, too.
        if other.mlp_hidden == 96:
            with pytest.raises(WrongCheckpoint, match="of another shape"):
                check_fits(EngineState("0", True, str(engines)), Target(1, folder, config), None)


def test_parts_have_every_tensor_once_in_order_and_the_last_says_so() -> None:
    tensors = [(f"t{number}", torch.zeros(size)) for number, size in enumerate([10, 10, 30, 5, 1])]
    found = [([name for name, _ in part], last) for part, last in buckets(tensors, 80)]
    assert found == [(["t0", "t1"], False), (["t2"], False), (["t3", "t4"], True)]
    assert list(buckets([], 80)) == []
