"""Small runs of miles, of the shape that it writes.

a_sample(0, 0, 1.0)                                what Sample.to_dict gives
put_dump(folder, "0.pt", [a_sample(...)])          a rollout dump; without tensors it needs no torch
streams(folder, phases=[a_phase("train", 0, 1)])   the dashboard's folder
"""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

T0 = 1_767_225_600.0
"""2026-01-01, in seconds since the epoch."""


def a_sample(index: int, group: int, reward: Any, **more: Any) -> dict[str, Any]:
    """As Sample.to_dict gives it."""
    usual = {
        "index": index,
        "group_index": group,
        "prompt": f"fix {group}",
        "tokens": [1, 2, 3, 4, 5],
        "response": "so",
        "response_length": 3,
        "reward": reward,
        "loss_mask": [1, 0, 1],
        "weight_versions": ["3"],
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
        "prefix_cache_info": {"cached_tokens": 4, "total_prompt_tokens": 10},
    }
    return usual | more


def first_turn() -> list[dict[str, Any]]:
    """The dashboard's events of an attempt up to the end of its first tool call."""
    return [
        an_event("attempt_start", 10, 0),
        an_event("gen_start", 10, 0, turn=0),
        an_event("gen_end", 14, 0, turn=0),
        an_event("tool_start", 14, 0, turn=1, detail="agent gap"),
        an_event("tool_end", 16.5, 0, turn=1, detail="agent gap"),
    ]


def streams(folder: Path, **rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    meta = {"run_name": "night", "start_ts": T0, "args": {"lr": 1e-6, "wandb_key": "hidden"}}
    (folder / "meta.json").write_text(json.dumps(meta))
    for name, records in rows.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text)


def a_phase(name: str, start: float, end: float, rank: int = 0) -> dict[str, Any]:
    end = end if end == -1 else T0 + end
    return {"name": name, "t0": T0 + start, "t1": end, "node": "n", "gpus": [0], "rank": rank,
            "role": "train"}  # fmt: skip


def an_event(kind: str, at: float, index: int, turn: int = -1, detail: str = "") -> dict[str, Any]:
    return {"ts": T0 + at, "kind": kind, "sample_index": index, "group_index": 0, "turn": turn,
            "weight_version": "3", "detail": detail}  # fmt: skip


def put_dump(folder: Path, name: str, samples: list[dict[str, Any]], rollout_id: int = 0) -> None:
    """What torch.save writes of a value without tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    value = {"rollout_id": rollout_id, "metadata": {}, "samples": samples}
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/byteorder", b"little")
