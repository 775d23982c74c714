"""Importing miles: dumps as torch writes them, and the dashboard's streams."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ledger.facts.lists import Phase
from producers.importers.miles_dashboard import lifetimes, phases
from producers.importers.miles_dump import trained
from producers.importers.miles_pickle import Tensor, load
from producers.importers.miles_steps import timed_steps
from producers.importers.source import BadImport, Json, SourceFile
from tests.foreign import booked, imported, read, refused
from tests.foreign_miles import T0, a_phase, a_sample, an_event, first_turn, streams


def dump(folder: Path, name: str, samples: list[dict[str, Any]], rollout_id: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": rollout_id, "metadata": {}, "samples": samples}, folder / name)


def dump_rank(folder: Path, name: str, indices: list[int], **columns: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"sample_indices": indices, "raw_reward": [1.0, 0.0, 0.5, 0.0], **columns}
    torch.save({"rollout_id": 0, "rank": int(name[2]), "rollout_data": data}, folder / name)


def as_json(records: list[dict[str, Any]]) -> list[Json]:
    return [Json(each, SourceFile("x.jsonl", "0", ""), f"/{i}") for i, each in enumerate(records)]


PHASES = [
    a_phase("train_wait", 0, -1),
    a_phase("train_wait", 0, 100),
    a_phase("update_weights", 2, 5),
    a_phase("train", 100, 160),
    a_phase("train", 100, 161, rank=1),
    a_phase("log_probs", 101, 111),
    a_phase("actor_train", 111, 159),
    a_phase("train", 260, 320),
    a_phase("train_wait", 320, -1),
]
EVENTS = [
    *first_turn(),
    an_event("gen_start", 16.5, 0, turn=1),
    an_event("gen_end", 20, 0, turn=1),
    an_event("attempt_end", 21, 0, detail="completed"),
]
SAMPLES = [
    a_sample(0, 0, 1.0),
    a_sample(1, 0, 0.0, status="aborted"),
    a_sample(2, 1, 0.5, status="truncated", loss_mask=torch.tensor([1, 1, 1])),
    a_sample(3, 1, None, status="failed", metadata={"instance_id": "repo-7"}, loss_mask=None),
]


@pytest.fixture(scope="module")
def details(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A --dump-details folder with everything in it."""
    folder = tmp_path_factory.mktemp("details")
    dump(folder / "rollout_data", "0.pt", SAMPLES)
    dump(folder / "rollout_data", "eval_0.pt", [a_sample(0, 0, np.float64(1.0))])
    for rank in range(2):  # tensor-parallel: the same samples twice
        masks = [torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1])]
        dump_rank(folder / "train_data", f"0_{rank}.pt", [0, 2], loss_masks=masks)
    streams(
        folder / "dashboard",
        phases=PHASES[:7] + PHASES[8:],
        trajectories=EVENTS,
        metrics=[{"ts": T0, "step_key": "rollout/step", "step": 0,
                  "metrics": {"perf/actor_train_time": 48.0, "train/loss": 0.5}}],
        topology=[{"ts": T0, "engines": [{"addr": "e", "gpus": [["n", 0], ["n", 1]]}]}],
        engine_series=[
            {"ts": T0, "addr": "e", "metric": f"sglang:{name}", "labels": {}, "value": value}
            for name, value in (("num_running_reqs", 5.0), ("gen_throughput", 12.5))
        ],
    )  # fmt: skip
    return folder


def test_a_whole_folder_is_a_run_and_its_evaluations(details: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    said = imported("miles", details, url)
    assert said.figures["rollout 0 attempts"] == (4, 4, "agrees")
    assert said.figures["rollout 0 sampled tokens"] == (10, 10, "agrees")
    assert said.figures["rollout 0 samples trained on"] == (2, 2, "agrees")
    assert said.figures["rollout 0 actor_train_time"] == (48.0, 48.0, "agrees")
    assert "1 aborted samples have a reward of 0" in said.notes
    assert "1 phases are open" in said.notes
    assert "0 facts new" in imported("miles", details, url).notes

    def ask(query: str) -> list[Any]:
        return booked(url, tmp_path, query)

    assert ask(
        "SELECT slot, foreign_status, stop_reason, reward, turns_declared, tool_calls, wall_s,"
        " model_s, tool_s FROM trajectories JOIN runs USING (run_id) WHERE kind = 'train'"
        " AND task_id <> 'repo-7' ORDER BY foreign_status"
    ) == [
        (1, "aborted", "cancelled", 0.0, None, 0, None, None, None),
        (0, "completed", "submitted", 1.0, 2, 1, 11.0, 7.5, 2.5),
        (0, "truncated", "output_cap", 0.5, None, 0, None, None, None),
    ]
    assert ask("SELECT reward, error_type FROM trajectories WHERE task_id = 'repo-7'") == [
        (None, "failed")
    ]
    assert ask(
        "SELECT step, wall_s, waiting_s, publishing_s, logprobs_s, forward_backward_s,"
        " unattributed_s, trajectories, trained_tokens, loss, epoch(started_at) FROM steps"
    ) == [(0, 160.0, 97.0, 3.0, 10.0, 48.0, 2.0, 2, 5, 0.5, T0)]
    assert ask("SELECT running, generation_tokens_per_s FROM engine_sampled") == [(5, 12.5)]
    assert ask(
        "SELECT parent_policy_version, pass_at_1_pooled FROM pass_at_1 JOIN runs USING (run_id)"
    ) == [(3, 1.0)]
    ((configuration,),) = ask("SELECT configuration FROM run_declared WHERE kind = 'train'")
    assert json.loads(configuration) == {"lr": 1e-06, "wandb_key": "***"}


def test_a_step_reaches_from_training_to_training_and_an_open_phase_is_none() -> None:
    found, still_open = phases(as_json(PHASES))
    assert still_open == 1
    first, second = timed_steps(found)
    assert [(span.phase, span.start_offset_s, span.seconds) for span in first.phases] == [
        (Phase.WAITING, 0.0, 2.0),
        (Phase.PUBLISHING, 2.0, 3.0),
        (Phase.WAITING, 5.0, 95.0),
        (Phase.LOGPROBS, 101.0, 10.0),
        (Phase.FORWARD_BACKWARD, 111.0, 48.0),
    ]
    assert (second.start - T0, second.end - T0) == (160.0, 320.0)
    assert [(span.phase, span.seconds) for span in second.phases] == [(Phase.WAITING, 100.0)]


def test_a_sample_that_is_resumed_has_two_attempts() -> None:
    again = [an_event("attempt_start", 50, 0), an_event("gen_end", 60, 0, turn=0)]
    first, second = lifetimes(as_json([*again, *EVENTS]))[0]
    assert [(span.start, span.end) for span in first.requests] == [
        (T0 + 10, T0 + 14),
        (T0 + 16.5, T0 + 20),
    ]
    assert [span.detail for span in first.tools] == ["agent gap"]
    assert (second.ended, [span.start for span in second.requests]) == (None, [None])


def test_ranks_that_hold_the_same_samples_count_once(details: Path) -> None:
    told = trained(details / "train_data", details)[0]
    assert sorted(told.samples) == [0, 2]
    assert told.tokens == 5
    assert told.raw_rewards == [1.0, 0.0, 0.5, 0.0]


def test_leaves_of_one_attempt_count_as_one_and_a_dict_of_rewards_needs_a_key(
    tmp_path: Path,
) -> None:
    parts = {"tests": 1.0, "style": 0.25}
    leaves = [a_sample(0, 0, parts), a_sample(0, 0, parts), a_sample(1, 0, parts)]
    dump(tmp_path / "dumps", "7.pt", leaves, rollout_id=7)
    (run,) = read("miles", tmp_path / "dumps", reward_key="tests")
    rewards = [d.fields for d in run.drafts() if d.name == "reward_assigned"]
    assert [(each["value"], each["components"]) for each in rewards] == [(1.0, parts)] * 2
    ends = [d.fields for d in run.drafts() if d.name == "trajectory_finished"]
    assert [each["foreign_completion_tokens"] for each in ends] == [4, 2]
    assert "1 samples share an index" in run.notes[0]
    (unkeyed,) = read("miles", tmp_path / "dumps")
    values = [d.fields["value"] for d in unkeyed.drafts() if d.name == "reward_assigned"]
    assert values == [None, None]


def test_what_torch_and_numpy_write_is_read_without_them(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(
        {
            "long": torch.arange(6).reshape(2, 3)[1],
            "float": torch.tensor([1.5, 2.5]),
            "scalar": np.float32(0.5),
            "flag": np.bool_(True),
            "array": np.arange(3),
            "names": {"a"},
            "raw": b"\xff",
        },
        path,
    )
    found = load(path, "x.pt")
    assert isinstance(found["long"], Tensor)
    assert (found["long"].values(), found["float"].values()) == ([3, 4, 5], [1.5, 2.5])
    assert (found["scalar"], found["flag"], found["raw"]) == (0.5, True, b"\xff")
    assert found["names"] == {"a"}


class Hostile:
    """Runs something when it is unpickled by a reader that trusts it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (Hostile(os.mkdir, "made"), f"{os.mkdir.__module__}.mkdir"),
        (Hostile(eval, "open('made', 'w')"), "builtins.eval"),
        (Hostile(getattr, torch.Size, "__class__"), "builtins.getattr"),
        (Path("x"), "pathlib"),
    ],
)
def test_a_hostile_pickle_is_refused_by_name_and_runs_nothing(
    thing: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dump(tmp_path / "dumps", "0.pt", [a_sample(0, 0, 1.0, metadata={"x": thing})])
    message = refused("miles", tmp_path / "dumps")
    assert f"0.pt names {name}" in message.replace("__builtin__", "builtins")
    assert "nothing of it was run" in message
    assert not Path("made").exists()


def test_a_bare_pickle_a_cut_one_and_another_zip_are_refused(tmp_path: Path) -> None:
    bare = tmp_path / "0.pt"
    bare.write_bytes(pickle.dumps({"samples": []}))
    assert "0.pt must be a zip as torch.save writes it" in refused("miles", bare)
    dump(tmp_path / "cut", "0.pt", SAMPLES)
    cut = tmp_path / "cut" / "0.pt"
    cut.write_bytes(cut.read_bytes()[:-40])
    assert "must be a zip" in refused("miles", cut)
    other = tmp_path / "1.pt"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02]q\x00(K\x01")
    assert "1.pt must be a whole pickle" in refused("miles", other)
    packed = tmp_path / "2.pt"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 1_000)
    assert "must hold stored members" in refused("miles", packed)
    torch.save([1, 2], tmp_path / "3.pt")
    assert "3.pt# must be an object with samples" in refused("miles", tmp_path / "3.pt")
    (tmp_path / "none").mkdir()
    assert "got none of these" in refused("miles", tmp_path / "none")


def test_a_tensor_that_reaches_past_its_storage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(4), path)
    short = tmp_path / "y.pt"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(short, "w") as target:
        for member in whole.namelist():
            content = whole.read(member)
            target.writestr(member, content[:8] if "/data/" in member else content)
    with pytest.raises(BadImport, match="storage 0 must have 4 items of 8 bytes, got 8 bytes"):
        load(short, "y.pt").values()
