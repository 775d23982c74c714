"""The trainer on two real processes: the same numbers as on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.models import (
    a_checkpoint,
    a_model,
    largest_difference,
    logits_of_transformers,
    some_tokens,
)
from tests.trainer_ranks import Job, run_job, run_ranks

pytestmark = pytest.mark.trainer

LENGTHS = [10, 17, 31, 8, 25, 3]
UNEVEN = [12, 1002]
"""10 and 1,000 tokens that count."""
POLICY = {"old_policy": "recomputed", "truncate_at": 2.0, "clip_high": 0.05, "clip_low": 0.05}
SPREADS = {
    "tensor": (a_model("qwen3"), {"tensor": 2}),
    "pipeline": (a_model("llama", tied=True), {"pipeline": 2, "recompute": "full"}),
    "data": (a_model("qwen3_moe"), {"distributed_optimizer": True}),
}


@dataclass(frozen=True)
class Pair:
    """The same job on one rank and on two."""

    start: Path
    one: Job
    two: Job

    @property
    def difference(self) -> float:
        """Of the weights after the steps."""
        return largest_difference(Path(self.one.out, "after"), Path(self.two.out, "after"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """All jobs of this module, done."""
    folder = tmp_path_factory.mktemp("ranks")
    found: dict[str, Pair] = {}
    for name, (config, settings) in SPREADS.items():
        start = a_checkpoint(folder / f"start-{name}", config)
        found[name] = Pair(
            start,
            Job(str(start), str(folder / f"one-{name}"), LENGTHS, loss=POLICY),
            Job(str(start), str(folder / f"two-{name}"), LENGTHS, loss=POLICY, settings=settings),
        )
    start = found["tensor"].start
    found["uneven"] = Pair(
        start,
        Job(str(start), str(folder / "one"), UNEVEN, tokens_max=1002, steps=1, loss=POLICY),
        Job(str(start), str(folder / "two"), UNEVEN, split=[[[0]], [[1]]], steps=1, loss=POLICY),
    )
    for pair in found.values():
        run_job(pair.one)
    run_ranks([pair.two for pair in found.values()], ranks=2, folder=folder)
    return found


@pytest.mark.parametrize("spread", SPREADS)
def test_two_ranks_do_what_one_does(pairs: dict[str, Pair], spread: str) -> None:
    one, two = pairs[spread].one.result, pairs[spread].two.result
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-4)
    for alone, together in zip(one["figures"], two["figures"], strict=True):
        assert together == pytest.approx(alone, abs=1e-4)
    assert one["losses"][2] < one["losses"][0] - 0.01  # the steps did something
    assert pairs[spread].difference < 1e-5


@pytest.mark.parametrize("spread", SPREADS)
def test_what_two_ranks_load_and_export_is_the_same_bit_for_bit(
    pairs: dict[str, Pair], spread: str
) -> None:
    assert largest_difference(pairs[spread].start, Path(pairs[spread].two.out, "before")) == 0


def test_the_export_of_two_tensor_ranks_has_transformers_logits(pairs: dict[str, Pair]) -> None:
    folder = Path(pairs["tensor"].two.out)
    theirs = logits_of_transformers(folder / "after", some_tokens()[0])
    ours = torch.load(folder / "logits.pt")
    assert (ours - theirs).abs().max().item() <= 1e-6


def test_tokens_weigh_the_same_on_whichever_rank_they_are(
    pairs: dict[str, Pair], tmp_path: Path
) -> None:
    """10 tokens on one rank and 1,000 on the other: the mean is over all 1,010 of them. A mean of
    the ranks' means would give each of the 10 a hundred times the weight; so do samples of equal
    weight, which shows that this test could tell."""
    pair = pairs["uneven"]
    assert pair.two.result["losses"] == pytest.approx(pair.one.result["losses"], abs=1e-5)
    assert pair.difference < 1e-6
    by_sample = POLICY | {"aggregation": "seq_mean_token_mean"}
    other = Job(
        str(pair.start), str(tmp_path / "other"), UNEVEN, tokens_max=1002, steps=1, loss=by_sample
    )
    run_job(other)
    assert largest_difference(Path(pair.one.out, "after"), Path(other.out, "after")) > 1e-4
